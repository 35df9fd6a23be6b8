"""The folder of `file:///absolute/folder`: its path, its file system, and names in it that survive a power cut.

A new name is safe only after its parent directory was synced.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from persist_core.errors import InvalidUri
from persist_core.location.finding import Finding, Grade, grade_if
from persist_core.location.uri import LocationUri


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
    if ":" in path and not HADOOP_GLOB.isdisjoint(path):
        raise InvalidUri(f"{uri.text!r}: with ':' and one of *?[]{{}}\\ Spark cannot read it; rename the folder")
    return Path(path)


HADOOP_GLOB = frozenset("*?[]{}\\")  # what makes a path a pattern to Hadoop
NETWORK_FILE_SYSTEM = re.compile(
    r"(fuse\.)?(nfs4?|cifs|smb3|smbfs|9p|vboxsf|sshfs|glusterfs|ceph(-fuse)?|afs|lustre|s3fs|gcsfuse|rclone)"
)
MIN_FREE_BYTES = 1 << 30  # a run stages its parts beside the existing ones

_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes blanks in names


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The type of the file system that holds `path` ("ext4", "nfs4"), or `None` if this system does not report it."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:
        return None
    path, found, depth = path.resolve(), None, -1
    for _device, mounted, kind, *_ in (line.split(" ") for line in lines if line.count(" ") >= 2):
        at = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), mounted))
        if path.is_relative_to(at) and len(at.parts) >= depth:  # of equal mount points the last is on top
            found, depth = kind, len(at.parts)
    return found


def diagnose_file_system(path: Path) -> Iterator[Finding]:
    """Free space where `path` is, or where it would be created."""
    there = next(folder for folder in (path, *path.parents) if folder.is_dir())
    free_bytes = shutil.disk_usage(there).free
    yield grade_if(
        free_bytes < MIN_FREE_BYTES,
        "free_space",
        f"{free_bytes / (1 << 30):.1f} GiB free at {there}",
        expected=f"at least {MIN_FREE_BYTES / (1 << 30):g} GiB",
        remedy="free some space",
        grade=Grade.WARNING,
    )


def sync_directory(path: Path) -> None:
    """Flush the names that `path` holds. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_names(descriptor)
    finally:
        os.close(descriptor)


def sync_names(directory: int) -> None:
    """Flush the names in an open directory. Some file systems cannot: their errors as in PostgreSQL's `fd.c`."""
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise


def create_directory(path: Path, mode: int = 0o700) -> None:
    """Create `path` and its missing parents durably, for their owner alone. Raises `OSError`.

    What exists keeps its mode, so users who share a location make its folder themselves.
    """
    missing = []
    for directory in (path, *path.parents):
        if directory.exists():
            break
        missing.append(directory)
    for directory in reversed(missing):
        directory.mkdir(mode, exist_ok=True)
        sync_directory(directory.parent)
