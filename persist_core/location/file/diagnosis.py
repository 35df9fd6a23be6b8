"""Checks of a folder's file system for `persist doctor`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from persist_core.location.finding import Finding, Grade, grade_if

NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "ceph", "afs", "lustre")
)
MIN_FREE_BYTES = 1 << 30  # a run stages its parts beside the existing ones

_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes blanks in names


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The type of the file system that holds `path` ("ext4", "nfs4"), or `None` if this system does not report it."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    found, depth = None, -1
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
