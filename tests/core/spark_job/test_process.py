"""A local Spark in a process of ours: its folders, and what the platform's own settings do to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_core.errors import InvalidInput
from persist_core.spark_job.process import LOCAL_MASTER, scratch_folders, tuned_conf


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The platform's `spark-defaults.conf`, which does not exist yet."""
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    (tmp_path / "conf").mkdir()
    return tmp_path / "conf" / "spark-defaults.conf"


@pytest.mark.parametrize("where", ["environment", "conf", "defaults"])
def test_each_disk_gets_a_private_folder(
    defaults: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "file").touch()
    disks = f"{tmp_path}/a, {tmp_path}/new/b,{tmp_path}/file"
    if where == "environment":
        monkeypatch.setenv("SPARK_LOCAL_DIRS", disks)
    if where == "defaults":
        defaults.write_text(f"# spark.local.dir /no\nspark.local.dir={disks} \n")
    with scratch_folders(LOCAL_MASTER, {"spark.local.dir": disks} if where == "conf" else {}) as variables:
        made = [Path(name) for name in variables["SPARK_LOCAL_DIRS"].split(",")]
        assert [path.parent for path in made] == [tmp_path / "a", tmp_path / "new" / "b"]
        assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700]
    assert not any(path.exists() for path in made)


def test_a_disk_that_is_none_is_an_error(defaults: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults.touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(defaults))
    with (
        pytest.raises(InvalidInput, match=r"Spark's own files can be made: .*; correct SPARK_LOCAL_DIRS"),
        scratch_folders(LOCAL_MASTER, {}),
    ):
        pass
    with scratch_folders("yarn", {}) as variables:
        assert variables == {}, "its administrators say"


@pytest.mark.parametrize(
    ("written", "options", "is_serial"),
    [
        ("spark.driver.extraJavaOptions -Dhttps.proxyHost=proxy -Dx=1", "-Dhttps.proxyHost=proxy -Dx=1", True),
        ("spark.driver.extraJavaOptions = -XX:+UseG1GC", "-XX:+UseG1GC", False),
        ("#spark.driver.extraJavaOptions -Dno\nspark.driver.extraJavaOptionsToo -Dno", "-Xshare:auto", True),
    ],
)
def test_options_of_the_platforms_jvm_count(defaults: Path, written: str, options: str, *, is_serial: bool) -> None:
    defaults.write_text(f"spark.a 1\n{written}\n")
    found = tuned_conf(LOCAL_MASTER, ())["spark.driver.extraJavaOptions"]
    assert found.endswith(f" {options}")
    assert ("-XX:+UseSerialGC" in found) is is_serial
    assert "-Dno" not in found
