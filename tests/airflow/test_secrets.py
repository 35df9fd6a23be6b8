"""No secret of the location shows, whatever the Spark master: on argv, in logs, XComs, templates and exceptions."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from persist_airflow.compat import AirflowException, AirflowFailException
from persist_airflow.factory import build_upsert_dag
from persist_core.location.settings import ENV_BLOB_URI, ENV_CONNECTION, ENV_CONSENSUS_URI, PersistLocation
from persist_core.location.uri import secrets_of
from tests.airflow.amazon import SECRET_KEY, TOKEN
from tests.airflow.fruit import Fruit, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.servers.backends import on_postgresql

pytestmark = [pytest.mark.airflow_2_11, on_postgresql]
STAND_IN = Path(__file__).with_name("stand_in_submit.py")
MINT, WRITE = "mint_batch_descriptions", "write_batches"
YARN, KUBERNETES, STANDALONE = "yarn", "k8s://https://kube.example:6443", "spark://spark.example:7077"
IN_KUBERNETES = {
    f"spark.kubernetes.driver.secretKeyRef.{name}": f"persist:{name}"
    for name in (ENV_CONSENSUS_URI, "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
}


@dataclass
class Submit:
    """The stand-in for `spark-submit`, and the secrets of the location."""

    notes: Path
    secrets: tuple[str, ...]

    def noted(self) -> Any:
        return json.loads(self.notes.read_text())


@pytest.fixture
def submit(
    tmp_path: Path, location: PersistLocation, fruit: Fruit, monkeypatch: pytest.MonkeyPatch, amazon: None
) -> Submit:
    """A location with a database password and the keys of a role, by an Airflow connection; a day of input."""
    del amazon
    fruit.write_days(range(1))
    script = tmp_path / "spark" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("STAND_IN_NOTES", str(tmp_path / "notes"))
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)  # its provider is not installed here
    for name in (ENV_BLOB_URI, ENV_CONSENSUS_URI):
        monkeypatch.delenv(name)
    uri = urlsplit(location.consensus_uri)
    bare = f"postgresql://{uri.netloc.rpartition('@')[2]}{uri.path}?{uri.query}"
    extra = {"blob_uri": location.blob_uri, "consensus_uri": bare, "aws_conn_id": "role"}
    connection = {"conn_type": "persist", "login": uri.username, "password": unquote(uri.password or "")}
    monkeypatch.setenv("AIRFLOW_CONN_PERSIST_DEFAULT", json.dumps({**connection, "extra": extra}))
    in_kubernetes = {"AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_SESSION_TOKEN": TOKEN}
    in_kubernetes[ENV_CONSENSUS_URI] = location.consensus_uri
    secrets = {f"persist:{name}": value for name, value in in_kubernetes.items()}
    monkeypatch.setenv("STAND_IN_SECRETS", json.dumps(secrets))
    return Submit(tmp_path / "notes", (SECRET_KEY, TOKEN, *secrets_of(location.consensus_uri)))


def spark_at(monkeypatch: pytest.MonkeyPatch, master: str, deploy_mode: str | None) -> None:
    """Let Airflow's Spark connection be that."""
    extra = {} if deploy_mode is None else {"deploy-mode": deploy_mode}
    connection = {"conn_type": "spark", "host": master, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def minted(fruit: Fruit, **spark: Any) -> DagRunDriver:
    """A dag run up to its write task."""
    run = DagRunDriver(build_upsert_dag(fruit.config(), spark=spark), end_of(0))
    run.run(MINT)
    return run


def check_nothing_shows(
    submit: Submit, run: DagRunDriver, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """No secret shows in what other people see of the task."""
    task = run.executed[WRITE]
    shown = {
        "log": caplog.text + "".join(capfd.readouterr()),
        "xcoms": json.dumps(run.xcoms),
        "templates": repr({name: getattr(task, name) for name in task.template_fields}),
    }
    if submit.notes.exists():
        shown["argv"] = repr(submit.noted()["argv"])
        assert "Spark-Submit cmd" in shown["log"], "the provider's log is among what is searched"
    for secret in submit.secrets:
        for where, text in shown.items():
            assert secret not in text, where


@pytest.mark.parametrize(
    ("master", "deploy_mode", "conf"),
    [
        ("local[2]", None, {}),
        (STANDALONE, None, {}),
        (STANDALONE, "client", {}),
        (YARN, None, {}),
        (YARN, "cluster", {"spark.redaction.regex": "mine"}),
        (KUBERNETES, "client", {}),
        (KUBERNETES, "cluster", IN_KUBERNETES),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_job_gets_its_location_and_nobody_else_sees_it(
    fruit: Fruit,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    *,
    master: str,
    deploy_mode: str | None,
    conf: dict[str, str],
    fails: bool,
) -> None:
    spark_at(monkeypatch, master, deploy_mode)
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    run = minted(fruit, conf=conf, env_vars={"MINE": "a b"}, verbose=True)
    with caplog.at_level(logging.DEBUG):
        if fails:
            monkeypatch.setenv("STAND_IN_FAILS", "yes")
            with pytest.raises(AirflowException, match="ended without an answer") as caught:
                run.run(WRITE)
            told = "".join(traceback.format_exception(caught.value))
            assert "Java heap space" in told
            assert not any(secret in told for secret in submit.secrets)
        else:
            assert run.run(WRITE)["manifest_key"] is not None
    check_nothing_shows(submit, run, caplog, capfd)
    noted = submit.noted()
    driver = noted["driver"]
    assert driver["AWS_SECRET_ACCESS_KEY"] == SECRET_KEY
    assert driver["AWS_SESSION_TOKEN"] == TOKEN
    assert driver["MINE"] == "a b"
    assert (noted["mode"], deploy_mode) in ((None, None), (None, "client"), ("0o600", "cluster"))
    assert noted["file"] is None or not Path(noted["file"]).exists()
    assert run.executed[WRITE].env_vars == {"MINE": "a b"}
    private = [part for part in noted["argv"] if part.startswith("spark.authenticate")]
    environment = noted["environment"]
    assert "SPARK_REMOTE" not in environment, "the connection says where the job runs"
    if master.startswith("local"):
        assert private == ["spark.authenticate=true"], "the secret is made by Spark, in the driver"
        assert noted["scratch"] == "0o700"
        assert not Path(environment["SPARK_LOCAL_DIRS"]).exists()
    else:
        assert (private, noted["scratch"]) == ([], None), "its administrators say"
    if master == YARN and deploy_mode == "cluster":
        hidden = "|".join((ENV_BLOB_URI, ENV_CONSENSUS_URI, ENV_CONNECTION, "AWS_ACCESS_KEY_ID"))
        assert f"spark.redaction.regex=mine|{hidden}" in noted["argv"]
    if master == KUBERNETES and deploy_mode == "cluster":
        assert not any(secret in noted["text"] for secret in submit.secrets), "Spark copies it into a ConfigMap"


@pytest.mark.parametrize(
    ("master", "conf", "told"),
    [
        (STANDALONE, {}, "cluster mode: there is no safe way to give the job its location"),
        (KUBERNETES, {}, "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, PERSIST_CONSENSUS_URI would stand readable"),
    ],
)
def test_without_a_safe_way_the_task_fails_with_the_remedy(
    fruit: Fruit,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    *,
    master: str,
    conf: dict[str, str],
    told: str,
) -> None:
    spark_at(monkeypatch, master, "cluster")
    run = minted(fruit, conf=conf)
    with caplog.at_level(logging.DEBUG), pytest.raises(AirflowFailException, match=told) as caught:
        run.run(WRITE)
    assert "deploy mode client" in str(caught.value)
    assert not submit.notes.exists(), "nothing was submitted"
    assert not any(secret in "".join(traceback.format_exception(caught.value)) for secret in submit.secrets)
    check_nothing_shows(submit, run, caplog, capfd)


@pytest.mark.parametrize("own_file", [False, True])
def test_sparks_defaults_still_count(
    fruit: Fruit, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, own_file: bool
) -> None:
    spark_at(monkeypatch, YARN, "cluster")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.of.the.cluster yes")
    (tmp_path / "own.conf").write_text("spark.of.the.task yes")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
    run = minted(fruit, **({"properties_file": str(tmp_path / "own.conf")} if own_file else {}))
    run.run(WRITE)
    wanted = "spark.of.the.task yes\n" if own_file else "spark.of.the.cluster yes\n"
    text = submit.noted()["text"]
    assert text.startswith(wanted)
    assert f"spark.yarn.appMasterEnv.{ENV_CONSENSUS_URI} postgresql://" in text
    assert run.executed[WRITE].properties_file == (str(tmp_path / "own.conf") if own_file else None)
