"""The connection type: where the location comes from, what its Test button does, what it never prints."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from persist_airflow import hook
from persist_airflow.failures import PersistStepFailed
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.provider import get_provider_info
from persist_core.config.collection import CollectionConfig
from persist_core.errors import ConfigError, Determinate
from persist_core.handles.client import PersistClient
from persist_core.keys import LOCATION
from persist_core.location import S3Blob, S3Consensus
from persist_core.location.s3.uri import S3Settings
from persist_core.location.settings import ENV_BLOB_URI, ENV_CONSENSUS_URI, PersistLocation
from tests.airflow.amazon import ENDPOINTS
from tests.airflow.fruit import NAME

pytestmark = pytest.mark.airflow_2_11
IS_AIRFLOW_3 = importlib.metadata.version("apache-airflow").startswith("3")


@pytest.fixture(autouse=True)
def _no_location_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in (ENV_BLOB_URI, ENV_CONSENSUS_URI):
        monkeypatch.delenv(name, raising=False)


def connect(
    monkeypatch: pytest.MonkeyPatch,
    conn_id: str = "persist_default",
    login: str | None = None,
    password: str | None = None,
    **extra: str,
) -> None:
    """An Airflow connection of type `persist`, as an environment variable."""
    connection = {"conn_type": "persist", "login": login, "password": password, "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))


def test_the_location_comes_from_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "lake", blob_uri="file:///lake/blob", consensus_uri="sqlite:////lake/c.db")
    assert PersistHook("lake").get_location() == PersistLocation("file:///lake/blob", "sqlite:////lake/c.db")


def test_without_a_connection_it_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_BLOB_URI, "file:///env/blob")
    monkeypatch.setenv(ENV_CONSENSUS_URI, "sqlite:////env/c.db")
    assert PersistHook().get_location() == PersistLocation("file:///env/blob", "sqlite:////env/c.db")


def test_a_location_nowhere_says_where_it_may_be_said() -> None:
    """And the task is tried again: it may be in a secrets backend that has failed."""
    with pytest.raises(Determinate, match="persist_default") as caught:
        PersistHook().get_location()
    for place in ("blob_uri", "consensus_uri", ENV_BLOB_URI, ENV_CONSENSUS_URI):
        assert place in str(caught.value)


def in_environment(
    monkeypatch: pytest.MonkeyPatch, blob_uri: str = "file:///env/blob", consensus_uri: str = "sqlite:////env/c.db"
) -> None:
    """A location there, beside the connections."""
    monkeypatch.setenv(ENV_BLOB_URI, blob_uri)
    monkeypatch.setenv(ENV_CONSENSUS_URI, consensus_uri)


@pytest.mark.parametrize("conn_id", ["persist_default", "lake"])
@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, "no blob_uri and no consensus_uri;"),
        ({"blob_uri": "file:///lake/blob"}, "no consensus_uri;"),
        ({"blob_url": "file:///lake/blob", "consensus_uri": "sqlite:////env/c.db"}, "no blob_uri;"),
    ],
)
def test_half_a_connection_is_not_completed_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch, conn_id: str, extra: dict[str, str], told: str
) -> None:
    connect(monkeypatch, conn_id, **extra)
    in_environment(monkeypatch)
    with pytest.raises(ConfigError, match=f"{conn_id}.* its extra has {told} a location is a pair"):
        PersistHook(conn_id).get_location()


def test_a_connection_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Airflow says the same of a connection whose backend fails. A later try may find it."""
    in_environment(monkeypatch, f"file://{tmp_path}/blob", f"sqlite:///{tmp_path}/c.db")
    for use in (PersistHook.get_location, PersistHook.get_environment, PersistHook.get_conn):
        with pytest.raises(Determinate, match="'lake': Airflow has found no such connection, or a secrets backend"):
            use(PersistHook("lake"))
    with pytest.raises(PersistStepFailed, match="storage_determinate: Airflow connection 'lake'"), task_client("lake"):
        pass
    ok, message = PersistHook("lake").test_connection()
    assert not ok
    assert "'lake'" in message
    assert not list(tmp_path.iterdir()), "nothing was opened"


class Sealed:
    """A secrets backend that fails."""

    def get_connection(self, conn_id: str) -> None:
        raise RuntimeError(f"503, sealed: {conn_id}")


def seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the only secrets backend fail."""
    if IS_AIRFLOW_3:
        monkeypatch.setattr("airflow.sdk.execution_time.supervisor.ensure_secrets_backend_loaded", lambda: [Sealed()])
    else:
        monkeypatch.setattr("airflow.models.connection.ensure_secrets_loaded", lambda: [Sealed()])


@pytest.mark.parametrize("file", [False, True])
def test_an_outage_switches_to_no_other_location(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, file: bool
) -> None:
    """The default connection and what counts without it must agree while both are there."""
    connect(monkeypatch, password="hunter2", blob_uri="file:///lake/blob", consensus_uri="postgresql://me@db/x")
    if file:
        (tmp_path / "persist.toml").write_text("blob_uri = 'file:///env/blob'\nconsensus_uri = 'sqlite:///c.db'\n")
    else:
        in_environment(monkeypatch, "file:///lake/blob", "postgresql://me:hunter2@db/y")
    where = str(tmp_path / "persist.toml") if file else "the environment"
    with pytest.raises(ConfigError, match="it names blob file:///lake/blob, consensus postgresql") as caught:
        PersistHook().get_location()
    assert f"but {where} names blob file:///" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    connect(monkeypatch, "lake", blob_uri="file:///lake/blob", consensus_uri="postgresql://me@db/x")
    assert PersistHook("lake").get_location().blob_uri == "file:///lake/blob", "it is named: nothing else counts"
    seal(monkeypatch)
    with pytest.raises(Determinate, match="'lake'"):
        PersistHook("lake").get_location()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("file:///lake/", "sqlite:///c.db"), ("file:///lake", "sqlite:///{cwd}/c.db")),
        (("file:///a%20b", "postgresql://db/x?sslmode=require"), ("file:///a b", "postgres://you:p%2Fw@db/x")),
        (
            ("s3://b/p?region=eu", "postgresql://db/x"),
            ("s3://b/p?access_key_id=A&secret_access_key=s", "postgresql://db/x"),
        ),
    ],
)
def test_a_location_that_is_written_in_another_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one: tuple[str, str], other: tuple[str, str]
) -> None:
    connect(monkeypatch, login="me" if "postgres" in one[1] else None, blob_uri=one[0], consensus_uri=one[1])
    in_environment(monkeypatch, other[0], other[1].replace("{cwd}", str(tmp_path)))
    assert PersistHook().get_location().blob_uri == one[0]


def test_the_test_button_makes_a_round_trip_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: PersistClient
) -> None:
    client.ensure_shard(NAME)
    connect(monkeypatch, blob_uri=f"file://{tmp_path}/blob", consensus_uri=f"sqlite:///{tmp_path}/consensus.db")
    ok, message = PersistHook().test_connection()
    assert ok, message
    assert f"file://{tmp_path}/blob" in message
    assert client.shards() == [NAME]
    assert [each.key for each in client.blob.list_keys_and_metadata("")] == [LOCATION]


def test_the_test_button_works_before_anything_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    connect(monkeypatch, blob_uri=f"file://{tmp_path}/new/blob", consensus_uri=f"sqlite:///{tmp_path}/new/c.db")
    ok, message = PersistHook().test_connection()
    assert ok, message


@pytest.mark.parametrize("broken", ["blob", "consensus"])
def test_the_test_button_reports_a_store_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    uris = {
        "blob_uri": f"file://{tmp_path}/{'file/blob' if broken == 'blob' else 'blob'}",
        "consensus_uri": f"sqlite:///{tmp_path}/{'file/c.db' if broken == 'consensus' else 'c.db'}",
    }
    connect(monkeypatch, **uris)
    ok, message = PersistHook().test_connection()
    assert not ok
    assert "file" in message


@pytest.mark.parametrize(
    "secret_uri",
    [
        "postgresql://user:hunter2@db.example.org/x",
        "s3://key:hunter2@bucket/p",
        "sqlite:////x?password=hunter2",
        "hunter2",
    ],
)
def test_the_test_button_prints_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret_uri: str) -> None:
    connect(monkeypatch, blob_uri=f"file://{tmp_path}/blob", consensus_uri=secret_uri)
    ok, message = PersistHook().test_connection()
    assert not ok
    assert secret_uri == "hunter2" or "hunter2" not in message


def test_login_and_password_are_masked_in_the_consensus_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr(hook, "mask_secret", masked.append)
    uri = "postgresql://db.example.org:5433/x?sslmode=verify-full"
    connect(monkeypatch, login="me", password="p/w@1", blob_uri="file:///blob", consensus_uri=uri)
    monkeypatch.setenv("PERSIST_CONNECTION_VENDOR", "s3://vendor?access_key_id=a&secret_access_key=s3%2Bk")
    location = PersistHook().get_location()
    assert location.consensus_uri == "postgresql://me:p%2Fw%401@db.example.org:5433/x?sslmode=verify-full"
    assert set(masked) == {"p/w@1", "p%2Fw%401", "s3+k", "s3%2Bk"}
    connect(monkeypatch, password="hunter2", blob_uri="file:///blob", consensus_uri="postgresql://me@db/x")
    assert PersistHook().get_location().consensus_uri == "postgresql://me:hunter2@db/x"


@pytest.mark.parametrize(
    ("login", "consensus_uri", "told"),
    [
        ("me", "sqlite:////lake/c.db", "expected postgresql://host:port/database"),
        ("me", "postgresql://other@db/x", "names a user or a password, and others were given"),
        (None, "postgresql://db/x", "a password was given for it without a user"),
    ],
)
def test_a_password_that_has_no_place_is_refused(
    monkeypatch: pytest.MonkeyPatch, login: str | None, consensus_uri: str, told: str
) -> None:
    connect(monkeypatch, login=login, password="hunter2", blob_uri="file:///blob", consensus_uri=consensus_uri)
    with pytest.raises(ConfigError, match=told) as caught:
        PersistHook().get_location()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("consensus_uri", "postgresql://me:hunter2@db/x"),
        ("consensus_uri", "postgresql://db/x?user=me&password=hunter2"),
        ("consensus_uri", "postgresql://db/x?user=me&%70assword=hunter2"),
        ("consensus_uri", "postgresql://db/x?sslkey=client.key&sslpassword=hunter2"),
        ("blob_uri", "s3://bucket/p?access_key_id=AKIA1&secret_access_key=hunter2"),
        ("blob_uri", "s3://bucket/p?access_key_id=AKIA1&secret_access_key=x&session_token=hunter2"),
    ],
)
def test_a_secret_in_extra_is_refused_and_masked(monkeypatch: pytest.MonkeyPatch, name: str, uri: str) -> None:
    masked: list[str] = []
    monkeypatch.setattr(hook, "mask_secret", masked.append)
    uris = {"blob_uri": "file:///blob", "consensus_uri": "postgresql://db/x", name: uri}
    connect(monkeypatch, **uris)
    with pytest.raises(ConfigError, match=f"{name} is .* found a password or secret key in the extra field") as caught:
        PersistHook().get_location()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" in masked


def test_users_and_key_files_in_a_uri_are_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "postgresql://me@db/x?sslkey=client.key&passfile=pgpass"
    connect(monkeypatch, blob_uri="s3://bucket/p?endpoint=http://host:9000", consensus_uri=uri)
    assert PersistHook().get_location().consensus_uri == uri


# credentials of an Airflow AWS connection


S3 = {"blob_uri": "s3://bucket/p", "consensus_uri": "s3://bucket/p"}


@pytest.mark.usefixtures("amazon")
def test_an_aws_connection_gives_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    connect(monkeypatch, "plain", **S3, aws_conn_id="keys")
    connect(monkeypatch, "assumed", **S3, aws_conn_id="role")
    keys = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert PersistHook("plain").get_environment() == keys | {"AWS_SESSION_TOKEN": ""}, "the worker's own is hidden"
    region = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert PersistHook("assumed").get_environment() == keys | region | {"AWS_SESSION_TOKEN": "t0k3n"}
    client = PersistHook("assumed").get_conn()
    for store in (client.blob, client.location.consensus):
        assert isinstance(store, (S3Blob, S3Consensus))
        settings = store._settings
        found = (settings.access_key_id, settings.secret_access_key, settings.session_token, settings.region)
        assert found == ("AKIA1", "hunter2", "t0k3n", "eu-west-1")
        assert "hunter2" not in repr(settings) + store.uri
    client.location.close()
    added = {name for name in os.environ if name.startswith("AWS_")} - before.keys()
    assert not added, "another task of this process may be another connection's"


@pytest.mark.usefixtures("amazon")
def test_an_aws_connection_that_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, **S3, aws_conn_id="broken")
    with pytest.raises(ConfigError, match=r"'broken' \(aws_conn_id\) gives no credentials: ValueError") as caught:
        PersistHook().get_conn()
    assert "hunter2" not in str(caught.value)


def test_an_aws_connection_without_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon", None)
    connect(monkeypatch, **S3, aws_conn_id="keys")
    ok, message = PersistHook().test_connection()
    assert not ok
    assert "apache-airflow-providers-amazon" in message


@pytest.mark.usefixtures("amazon")
def test_a_sources_connection_is_the_aws_connection_of_that_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its keys, region and endpoint, for the source's bucket; a variable of that name goes over it."""
    masked: list[str] = []
    monkeypatch.setattr(hook, "mask_secret", masked.append)
    monkeypatch.setitem(ENDPOINTS, "role", "http://127.0.0.1:7070")
    connect(monkeypatch, blob_uri="file:///blob", consensus_uri="sqlite:////c.db")
    body = {"name": "orders", "key": "id", "columns": {"id": "bigint"}, "delete": "none"}
    source = {"path": "s3://vendor/feed/*.json", "format": "json", "connection": "role"}
    config = CollectionConfig.model_validate({**body, "source": source})
    assert PersistHook().get_location().connections == {}
    client = PersistHook(configs=[config]).get_conn()
    settings = client.location.feed_settings("s3://vendor/feed", "role")
    assert settings == S3Settings(
        "vendor",
        endpoint="http://127.0.0.1:7070",
        region="eu-west-1",
        access_key_id="AKIA1",
        secret_access_key="hunter2",
        session_token="t0k3n",
    )
    assert "hunter2" in masked
    assert "hunter2" not in repr(client.location)
    client.location.close()
    monkeypatch.setenv("PERSIST_CONNECTION_ROLE", "s3://vendor?profile=own")
    assert PersistHook(configs=[config]).get_location().connections == {
        "PERSIST_CONNECTION_ROLE": "s3://vendor?profile=own"
    }


@pytest.mark.usefixtures("amazon")
def test_sources_with_one_connection_and_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buckets by one connection; a broken one, and two of one variable, are errors of the collections alone."""
    connect(monkeypatch, blob_uri="file:///blob", consensus_uri="sqlite:////c.db")
    said: list[str] = []
    monkeypatch.setattr(PersistHook, "log", SimpleNamespace(warning=lambda text, *given: said.append(text % given)))
    body = {"key": "id", "columns": {"id": "bigint"}, "delete": "none"}
    by = {"bucket-a": "role", "bucket-b": "role", "bucket-c": "broken", "bucket-d": "a-b", "bucket-e": "a_b"}
    sources = [{"path": f"s3://{bucket}/*.json", "format": "json", "connection": by[bucket]} for bucket in by]
    configs = [CollectionConfig.model_validate({**body, "name": f"c{n}", "source": s}) for n, s in enumerate(sources)]
    client = PersistHook(configs=configs).get_conn()
    for bucket in ("bucket-a", "bucket-b"):
        settings = client.location.feed_settings(f"s3://{bucket}/feed", "role")
        assert (settings.bucket, settings.access_key_id) == (bucket, "AKIA1")
    with pytest.raises(ConfigError, match=r"source.connection 'broken' is not known"):
        client.location.feed_settings("s3://bucket-c/feed", "broken")
    client.location.close()
    *similar, line = said
    assert ["a-b, a_b differ only in case or in signs" in each for each in similar] == [True, True]
    assert "'broken' (aws_conn_id) gives no credentials: ValueError" in line
    assert "hunter2" not in line


PROBE = """
import json, os
from airflow.models.connection import Connection
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
hook = Connection(conn_id="lake", conn_type="persist").get_hook()
print(json.dumps({
    "provider": manager.providers["airflow-persist"].data,
    "hook": [f"{type(hook).__module__}.{type(hook).__name__}", hook.persist_conn_id],
    "links": sorted(manager.extra_links_class_names),
    "notifiers": sorted(manager.notification),
    "fields": sorted(key for key in manager.connection_form_widgets if key.startswith("extra__persist__")),
    "hidden": manager.field_behaviours["persist"]["hidden_fields"],
}))
"""


def test_airflow_finds_hook_form_link_and_notifier() -> None:
    """In a process of its own: Airflow keeps what it found, and warns about itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert {**found["provider"], **get_provider_info()} == found["provider"]
    assert found["hook"] == ["persist_airflow.hook.PersistHook", "lake"]
    assert "persist_airflow.links.ShardLink" in found["links"]
    assert "persist_airflow.notifications.LogNotifier" in found["notifiers"]
    assert found["fields"] == [f"extra__persist__{name}" for name in ("aws_conn_id", "blob_uri", "consensus_uri")]
    assert not {"login", "password"} & set(found["hidden"])
    assert "extra" in found["hidden"]
