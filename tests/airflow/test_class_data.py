"""A class-data archive is requested only if the JVM can make one."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_airflow.class_data import FOLDER_ENV, class_data

OPTIONS = "spark.driver.extraJavaOptions"


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "conf").mkdir()
    return {FOLDER_ENV: str(tmp_path / "archives"), "SPARK_CONF_DIR": str(tmp_path / "conf")}


def test_the_first_job_makes_the_archive_and_later_ones_use_it(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with class_data({OPTIONS: "-Xa"}, env, "attempt") as conf:
        assert conf[OPTIONS].startswith("-Xa -XX:ArchiveClassesAtExit=")
        made = Path(conf[OPTIONS].split("ArchiveClassesAtExit=")[1].split()[0])
        made.write_bytes(b"archive")
    with class_data({}, env, "attempt 2") as conf:
        used = Path(conf[OPTIONS].split("SharedArchiveFile=")[1].split()[0])
        assert used.read_bytes() == b"archive"


def test_a_file_in_sparks_configuration_folder_rules_it_out(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "conf" / "spark-env.sh").touch()
    with class_data({"a": "b"}, env, "attempt") as conf:
        assert conf == {"a": "b"}


def test_it_is_off_unless_a_folder_is_named() -> None:
    with class_data({"a": "b"}, {}, "attempt") as conf:
        assert conf == {"a": "b"}


def test_a_job_that_fails_leaves_no_archive(tmp_path: Path) -> None:
    env = environment(tmp_path)

    def fail() -> None:
        with class_data({}, env, "attempt") as conf:
            Path(conf[OPTIONS].split("ArchiveClassesAtExit=")[1].split()[0]).write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "archives").iterdir()) == []
