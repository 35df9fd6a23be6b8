"""The file of `sqlite:////absolute/file.db` or `sqlite:///relative/file.db`, and checks of it for `persist doctor`.

As in SQLAlchemy the path follows `sqlite:///`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from persist_core.errors import InvalidUri
from persist_core.location.file.folder import NETWORK_FILE_SYSTEMS, diagnose_file_system, file_system_of
from persist_core.location.finding import Finding, grade_if
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


def diagnose(path: Path) -> Iterator[Finding]:
    """See `Examinable`. `path` is the database file, whether or not it exists yet."""
    yield from diagnose_file_system(path)
    kind = file_system_of(path)
    yield grade_if(
        kind in NETWORK_FILE_SYSTEMS,
        "file_locks",
        f"{path} is on {kind or 'an unknown file system'}",
        expected="a local disk: SQLite's locks do not work on network file systems",
        remedy="keep the database on a local disk, or use postgresql: for several machines",
    )
