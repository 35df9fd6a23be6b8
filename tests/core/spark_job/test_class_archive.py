"""The archive of Spark's classes: used only if it is there, whole, and this user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from persist_core.errors import InvalidInput
from persist_core.spark_job.installation import archive_flags, archive_made, archive_of


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name in ("java/bin/java", "spark/bin/spark-submit"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    return {"JAVA_HOME": f"{tmp_path}/java", "SPARK_HOME": f"{tmp_path}/spark", "HOME": f"{tmp_path}/home"}


def test_an_archive_is_used_once_it_is_whole(environment: dict[str, str], tmp_path: Path) -> None:
    assert archive_flags(environment) == []
    with archive_made(environment) as (path, flag):
        Path(flag.removeprefix("-XX:ArchiveClassesAtExit=")).write_bytes(b"classes")
        assert archive_flags(environment) == []
    assert path == archive_of(environment)
    assert path.parent == tmp_path / "home" / ".cache" / "airflow-persist"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert archive_flags(environment) == [f"-XX:SharedArchiveFile={path}"]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_another_java_or_spark_has_another_archive(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other" / "bin").mkdir(parents=True)
    (tmp_path / "other" / "bin" / "spark-submit").touch()
    changed = [{"JAVA_HOME": f"{tmp_path}/other"}, {"SPARK_HOME": f"{tmp_path}/other"}]
    assert len({archive_of({**environment, **each}) for each in ({}, *changed)}) == 3


def test_an_archive_of_another_user_is_not_used(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with archive_made(environment) as (_, flag):
        Path(flag.removeprefix("-XX:ArchiveClassesAtExit=")).touch()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    assert archive_flags(environment) == []


def test_no_place_and_no_archive(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="expected Java 13 or newer"), archive_made(environment):
        pass
    for lacking in ({"HOME": ""}, {"HOME": "/my home"}):
        assert archive_flags({**environment, **lacking}) == []
        with pytest.raises(InvalidInput, match="no HOME without blanks"), archive_made({**environment, **lacking}):
            pass
