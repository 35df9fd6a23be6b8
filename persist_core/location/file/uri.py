"""`file:///absolute/folder` as a path."""

from __future__ import annotations

from pathlib import Path

from persist_core.errors import InvalidUri
from persist_core.location.uri import LocationUri

PARAMETERS: frozenset[str] = frozenset()


def parse_file_uri(uri: LocationUri) -> Path:
    """The folder, absolute. Raises `InvalidUri`."""
    path = uri.path.removeprefix("//localhost") if uri.path.startswith("//localhost/") else uri.path
    if path.startswith("///"):
        path = path[2:]
    if not path.startswith("/") or path.startswith("//"):
        raise InvalidUri(f"{uri.text!r}: expected an absolute folder on this machine, file:///folder")
    if path.strip("/") == "":
        raise InvalidUri(f"{uri.text!r}: the root of the file system cannot be a location; name a folder")
    if ".." in path.split("/"):
        raise InvalidUri(f"{uri.text!r}: '..' is not allowed; write the folder's resolved path")
    return Path(path)
