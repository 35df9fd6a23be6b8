"""Where a job's jars for S3 come from, its variables for the location, and the locked lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from persist_core.errors import InvalidInput
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.handover import location_environment
from persist_core.spark_job.jars import JARS_CONF, JARS_ENV, PACKAGES_CONF, hadoop_version, s3a_jars, with_s3a_jars
from tests.env import spark_jars

S3 = "s3://bucket/prefix"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of jars, as PERSIST_SPARK_JARS names one."""
    for name in ("s3.jar", "hadoop-aws-3.5.0.jar", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def test_only_a_location_on_s3_gets_jars(folder: Path) -> None:
    environment = {JARS_ENV: str(folder)}
    assert with_s3a_jars({"a": "b"}, ["file:///data"], environment, None) == {"a": "b"}
    jars = f"{folder}/hadoop-aws-3.5.0.jar,{folder}/s3.jar"
    assert with_s3a_jars({"a": "b"}, ["file:///data", S3], environment, None) == {"a": "b", JARS_CONF: jars}


def test_what_the_user_brings_stays(folder: Path) -> None:
    environment = {JARS_ENV: str(folder)}
    packages = {PACKAGES_CONF: "x:y:1,org.apache.hadoop:hadoop-aws:3.5.0"}
    assert with_s3a_jars(packages, ["file:///data", S3], environment, None) == packages
    own = {JARS_CONF: "/mine/hadoop-aws-3.5.0.jar"}
    assert with_s3a_jars(own, ["file:///data", S3], environment, None) == own
    more = with_s3a_jars({JARS_CONF: "/mine/driver.jar"}, ["file:///data", S3], environment, None)
    assert more[JARS_CONF].startswith("/mine/driver.jar,")
    assert len(more[JARS_CONF].split(",")) == 3


def test_a_folder_without_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"PERSIST_SPARK_JARS is .* holds no hadoop-aws jar; `make spark-jars`"):
        s3a_jars({JARS_ENV: str(tmp_path)}, None)


def test_the_cache_is_that_of_the_sparks_hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, cache = tmp_path / "spark", tmp_path / "cache"
    for path in (home / "jars" / "hadoop-client-api-3.4.2.jar", cache / "3.4.2" / "a.jar", cache / "3.5.0" / "b.jar"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr("persist_core.spark_job.jars._CACHE", cache)
    assert hadoop_version(home) == "3.4.2"
    assert s3a_jars({}, home) == [cache / "3.4.2" / "a.jar"]
    (home / "jars" / "hadoop-aws-3.4.2.jar").touch()
    assert s3a_jars({}, home) == []
    assert hadoop_version(tmp_path) is None


def test_keys_in_a_uri_go_into_the_environment_and_hide_others() -> None:
    location = PersistLocation(f"{S3}?access_key_id=me&secret_access_key=hush", "mem:")
    assert location_environment(location) == {
        **location.to_env(),
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_SESSION_TOKEN": "",
    }
    profile = PersistLocation(f"{S3}?profile=team", "mem:")
    hidden = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"), "")
    assert location_environment(profile) == {**profile.to_env(), **hidden, "AWS_PROFILE": "team"}
    for uri in (S3, "file:///data", "mem:"):
        location = PersistLocation(uri, "mem:")
        assert location_environment(location) == location.to_env()


@pytest.mark.parametrize("name", sorted(spark_jars.ROOTS))
def test_a_list_is_whole_and_small(name: str) -> None:
    jars = spark_jars.read_list(name)
    assert jars == sorted(jars)
    modules = {jar.coordinates.rpartition(":")[0] for jar in jars}
    roots = {root.rpartition(":")[0] for root in spark_jars.ROOTS[name]}
    assert roots <= modules
    assert len(modules) == len(jars), "one version of each"
    assert not any("bundle" in module for module in modules)
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in jars)
    for jar in jars:
        assert spark_jars._coordinates(jar.file_name) == jar.coordinates
