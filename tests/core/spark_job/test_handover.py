"""How a location reaches a job's driver, for each kind of master, and the file that carries it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput
from persist_core.location.settings import PersistLocation
from persist_core.location.uri import secrets_of, with_login
from persist_core.spark_job.handover import hand_over, location_environment, properties_file, remove_leftovers

LOCATION = {"PERSIST_BLOB_URI": "s3://b/p", "PERSIST_CONSENSUS_URI": "postgresql://me:hush@db/x"}
CLUSTER = {"spark.submit.deployMode": "cluster"}


@pytest.mark.parametrize("master", ["local[2]", "local", "spark://h:7077", "yarn", "k8s://https://h"])
def test_a_driver_in_this_process_gets_its_environment_alone(master: str) -> None:
    given = hand_over(LOCATION, master=master, deploy_mode=None, conf={})
    assert (given.environment, given.properties, given.conf) == (LOCATION, {}, {})
    assert "hush" not in repr(given)


def test_yarn_in_cluster_mode_gets_a_hidden_file() -> None:
    given = hand_over(LOCATION, master="yarn", deploy_mode=None, conf=CLUSTER)
    assert given.properties == {f"spark.yarn.appMasterEnv.{name}": value for name, value in LOCATION.items()}
    assert given.conf["spark.redaction.regex"].startswith("(?i)secret|password|token|access[.]?key|PERSIST_BLOB_URI|")
    assert "hush" not in repr(given)


def test_kubernetes_in_cluster_mode_gets_no_secret() -> None:
    with pytest.raises(InvalidInput, match=r"secretKeyRef\.PERSIST_CONSENSUS_URI=<secret>:<key>") as caught:
        hand_over(LOCATION, master="k8s://https://h", deploy_mode="cluster", conf={})
    assert "hush" not in str(caught.value)
    conf = {"spark.kubernetes.driver.secretKeyRef.PERSIST_CONSENSUS_URI": "persist:uri"}
    given = hand_over(LOCATION, master="k8s://https://h", deploy_mode="cluster", conf=conf)
    assert given.properties == {"spark.kubernetes.driverEnv.PERSIST_BLOB_URI": "s3://b/p"}


def test_a_sources_connection_is_handed_over_like_a_location() -> None:
    name, uri = "PERSIST_CONNECTION_VENDOR", "s3://vendor?access_key_id=me&secret_access_key=hush"
    variables = location_environment(PersistLocation("mem:", "mem:", {name: uri}))
    assert variables[name] == uri
    given = hand_over(variables, master="yarn", deploy_mode=None, conf=CLUSTER)
    assert given.properties[f"spark.yarn.appMasterEnv.{name}"] == uri
    assert "PERSIST_CONNECTION_" in given.conf["spark.redaction.regex"]
    with pytest.raises(InvalidInput, match=rf"secretKeyRef\.{name}=<secret>:<key>") as caught:
        hand_over(variables, master="k8s://https://h", deploy_mode="cluster", conf={})
    assert "hush" not in str(caught.value) + repr(given)
    without = location_environment(PersistLocation("mem:", "mem:", {name: "s3://vendor?region=eu-west-1"}))
    assert hand_over(without, master="k8s://https://h", deploy_mode="cluster", conf={}).properties


@pytest.mark.parametrize("master", ["spark://h:7077", "mesos://h"])
def test_other_clusters_are_refused(master: str) -> None:
    with pytest.raises(InvalidInput, match="use deploy mode client"):
        hand_over(LOCATION, master=master, deploy_mode="cluster", conf={})


def test_the_file_is_private_and_ends_with_the_job(tmp_path: Path) -> None:
    base = tmp_path / "spark-defaults.conf"
    base.write_text("spark.a 1")
    values = {"plain": "x=y z", "path": "C:\\new", "lines": "a\nb", "led": " =x"}
    with properties_file(values, base) as path:
        assert path is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        text = path.read_text()
    assert not path.exists()
    assert text == "spark.a 1\nplain x=y z\npath C:\\\\new\nlines a\\nb\nled \\ =x\n"
    with properties_file({}, base) as none:
        assert none is None


def test_files_of_killed_submits_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, running, other = (
        tmp_path / name for name in ("persist-spark-a.conf", "persist-spark-b.conf", "spark-c.conf")
    )
    link = tmp_path / "persist-spark-link.conf"
    for path in (left, running, other):
        path.write_text("secret")
    link.symlink_to(other)
    for path in (left, other, link):
        os.utime(path, (0, 0), follow_symlinks=False)
    with properties_file({"a": "b"}, None) as made:
        assert made is not None
        assert set(tmp_path.iterdir()) == {running, other, link, made}
    assert remove_leftovers(SystemClock()) == []
    left.write_text("secret")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    os.utime(left, (0, 0))
    assert remove_leftovers(SystemClock()) == []


def test_scratch_of_killed_submits_is_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, busy, new, other = (tmp_path / f"persist-{name}" for name in ("scratch-a", "scratch-b", "scratch-c", "d"))
    link = tmp_path / "persist-scratch-link"
    link.symlink_to(other)
    for folder in (left, busy, new, other):
        (folder / "blockmgr" / "0c").mkdir(parents=True)
        (folder / "blockmgr" / "0c" / "shuffle.data").write_text("rows")
    for folder in (left, busy, other):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (0, 0))
    os.utime(link, (0, 0), follow_symlinks=False)
    (busy / "blockmgr" / "0c" / "shuffle.data").write_text("more rows")
    assert remove_leftovers(SystemClock()) == [left]
    assert set(tmp_path.iterdir()) == {busy, new, other, link}
    for path in (*busy.rglob("*"), busy):
        os.utime(path, (0, 0))
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert remove_leftovers(SystemClock()) == []


@pytest.mark.parametrize(
    ("uri", "secrets"),
    [
        ("file:///data", ()),
        ("sqlite:////data/a:b@c.db", ()),
        ("postgresql://db/x", ()),
        ("postgresql://me@db/x?sslkey=/me/key.pem", ()),
        ("postgresql://me:p%40ss@db/x", ("p%40ss", "p@ss")),
        ("postgresql://me:p/s@s@db/x", ("p/s@s",)),
        ("postgresql://db/x?password=hush", ("hush",)),
        ("s3://b/p?access_key_id=me&secret_access_key=hush&session_token=t", ("hush", "t")),
    ],
)
def test_the_secrets_in_a_uri(uri: str, secrets: tuple[str, ...]) -> None:
    assert secrets_of(uri) == secrets


def test_a_login_goes_into_the_uri_percent_encoded() -> None:
    assert with_login("postgresql://h:1,h2:2/x?a=b", "m@e", "p/w") == "postgresql://m%40e:p%2Fw@h:1,h2:2/x?a=b"
    assert with_login("sqlite:////x", None, "") == "sqlite:////x"
