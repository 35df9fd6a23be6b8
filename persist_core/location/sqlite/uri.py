"""`sqlite:////absolute/file.db` or `sqlite:///relative/file.db` as a path; as in SQLAlchemy it follows `sqlite:///`."""

from __future__ import annotations

from pathlib import Path

from persist_core.errors import InvalidUri
from persist_core.location.uri import LocationUri

PARAMETERS: frozenset[str] = frozenset()


def parse_sqlite_uri(uri: LocationUri) -> Path:
    """The database file, relative to the working directory if the URI's is. Raises `InvalidUri`."""
    if not uri.path.startswith("///"):
        raise InvalidUri(f"{uri.text!r}: expected sqlite:////absolute/file.db or sqlite:///relative/file.db")
    path = uri.path[3:]
    if path in ("", ":memory:") or path.endswith("/"):
        raise InvalidUri(f"{uri.text!r}: expected a database file; for a store in memory use mem:")
    return Path(path)
