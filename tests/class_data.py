"""The archives of Spark's classes that all tests share: a job that a task starts takes a third less time with one."""

from __future__ import annotations

from pathlib import Path

from persist_airflow.class_data import FOLDER_ENV
from persist_core.location.settings import PersistLocation

_CACHE = Path(__file__).resolve().parents[1] / ".cache" / "class-data"


def class_data(location: PersistLocation) -> dict[str, str]:
    """What the environment of a task says about the archive. The first job makes it."""
    return {FOLDER_ENV: str(_folder(location))}


def made_class_data(location: PersistLocation) -> dict[str, str]:
    """The same for tasks that do not make the archive: they are killed, which could leave half, or too few use it."""
    return class_data(location) if any(_folder(location).glob("*.jsa")) else {}


def _folder(location: PersistLocation) -> Path:
    """Jobs on S3 have another class path, which an archive has to fit."""
    return _CACHE / "s3" if location.blob_uri.startswith("s3:") else _CACHE
