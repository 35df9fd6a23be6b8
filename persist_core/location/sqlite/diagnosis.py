"""Checks of an SQLite database for `persist doctor`: free space, and working locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from persist_core.location.file.diagnosis import NETWORK_FILE_SYSTEMS, diagnose_file_system, file_system_of
from persist_core.location.finding import Finding, grade_if


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
