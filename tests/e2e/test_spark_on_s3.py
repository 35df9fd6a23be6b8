"""The bundled seven days, and a view of them, through `spark-submit` on S3, against a plain replay of the feed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_core.config.collection import load_collection
from persist_core.config.view import load_view
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.inspection.values import json_value
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.run import RunReport
from persist_core.spark_job.launch import Start, write_batch
from persist_core.spark_job.process import SparkProcess
from persist_core.time_text import parse_time
from tests.core.feed_replay import check_days
from tests.core.make_feed import DAYS
from tests.one_run import run_one
from tests.sampling import is_long
from tests.servers import s3
from tests.servers.certificates import TRUST_STORE_PASSWORD, Authority
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.servers.spark_cluster import CONF, SparkCluster
from tests.spark.s3_store import s3_server

SHARD, VIEW = "customers", "by_city"
ROOT = Path(__file__).resolve().parents[2]
DAY_MS = 86_400_000
START_MS, UNTIL_MS = parse_time("2026-01-01", what="start"), parse_time("2026-01-08", what="until")
LOCAL = "local[2]"
at_night = pytest.mark.skipif(not is_long(), reason="tests/spark shows it at less cost (PERSIST_PROFILE=nightly)")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> S3Server:
    return s3_server(request)


def run(location: PersistLocation, start: Start) -> RunReport:
    """`persist run customers`, in this process but for Spark."""
    config = load_collection(ROOT / "dags" / "collections" / f"{SHARD}.yaml")
    with open_location(location) as opened:
        client = PersistClient(opened)
        write = functools.partial(write_batch, client, start, config)
        return run_one(client, config, until=UNTIL_MS, write=write)


def run_view(location: PersistLocation, folder: Path, start: Start) -> RunReport:
    """`persist run by_city`, a view of that collection."""
    path = folder / f"{VIEW}.yaml"
    path.write_text(f"query: SELECT city, count(*) AS n, sum(balance) AS balance FROM {SHARD} GROUP BY city\n")
    config = load_view(path, collections=ROOT / "dags" / "collections")
    with open_location(location) as opened:
        client = PersistClient(opened)
        write = functools.partial(write_batch, client, start, config)
        return run_one(client, config, until=None, write=write)


def by_city(customers: list[dict[str, Any]]) -> list[str]:
    """The result of the view's query."""
    cities: dict[str | None, list[Any]] = {}
    for customer in customers:
        cities.setdefault(customer["city"], []).append(customer["balance"])
    rows = []
    for city, balances in cities.items():
        known = [balance for balance in balances if balance is not None]
        rows.append({"city": city, "n": len(balances), "balance": sum(known) if known else None})
    return sorted(map(repr, rows))


def check_contents(location: PersistLocation) -> None:
    """Oks and errs at the end of each day equal a plain replay; the shard is checked whole on the way."""
    rows, errors = {}, {}
    with open_location(location) as opened:
        client = PersistClient(opened)
        assert fsck(client, SHARD).violations == ()
        reader = client.open_reader(SHARD)
        for day in range(1, DAYS + 1):
            last = START_MS + day * DAY_MS - 1
            rows[day] = [as_json(row) for row in reader.snapshot(last).to_pylist()]
            errors[day] = reader.errors(last).to_pylist()
    check_days(rows, errors)


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {name: json_value(value) for name, value in row.items()}


@pytest.fixture
def tls_server(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """One that speaks TLS by a certificate of a private authority, which Python and Java are configured to trust."""
    authority = Authority(tmp_path)
    trust = {"trustStore": authority.java_trust_store, "trustStorePassword": TRUST_STORE_PASSWORD}
    options = " ".join(f"-Djavax.net.ssl.{name}={value}" for name, value in trust.items())
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
    for made in s3.running(server.name, tmp_path / "s3", authority.issue("127.0.0.1")):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.path))
        yield made


@pytest.mark.family("days of a source")
def test_seven_days_on_s3_are_the_same_and_no_secret_shows(tls_server: S3Server, tmp_path: Path) -> None:
    """Both stores on S3, with keys in the URIs and nowhere else: neither log nor Spark's own record may repeat them.

    Over TLS: a Spark that did not check the certificate would not be noticed here, one that could not check it would.
    """
    uri = f"{tls_server.new_uri('team/persist')}&access_key_id={ACCESS_KEY}&secret_access_key={SECRET_KEY}"
    assert "=https://" in uri
    location = PersistLocation(uri, uri)
    logs, events = tmp_path / "logs", tmp_path / "events"
    events.mkdir()
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(events), "spark.log.level": "INFO"}
    with SparkProcess(location, LOCAL, conf, log_folder=logs).kept() as start:
        run(location, start)
        check_contents(location)
        refreshed = run_view(location, tmp_path, start)
    assert [each.commit.upper for each in refreshed.rounds] == [UNTIL_MS]
    with open_location(location) as opened:
        client = PersistClient(opened)
        customers = client.open_reader(SHARD).snapshot().to_pylist()
        assert sorted(map(repr, client.open_reader(VIEW).snapshot().to_pylist())) == by_city(customers)
        assert fsck(client, VIEW).is_clean
    written = [path for path in (*logs.iterdir(), *events.rglob("*")) if path.is_file()]
    assert len(written) >= 2, "a log, and events"
    assert [path.name for path in written if SECRET_KEY.encode() in path.read_bytes()] == []


@at_night
@pytest.mark.spark_cluster
def test_seven_days_by_a_spark_cluster_are_the_same(
    server: S3Server, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """Executors on hosts of their own, which have no credentials but the driver's."""
    location = PersistLocation(server.new_uri(), f"sqlite:///{tmp_path}/consensus.db")
    run(location, SparkProcess(location, spark_cluster.master, CONF))
    check_contents(location)


@at_night
def test_a_job_without_the_jars_says_how_to_get_them(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist_core.spark_job.process.with_s3a_jars", lambda conf, *_: dict(conf))
    location = PersistLocation(server.new_uri(), f"sqlite:///{tmp_path}/consensus.db")
    with pytest.raises(
        InvalidInput, match=r"S3AFileSystem is not on its class path.*make spark-jars.*PERSIST_SPARK_JARS"
    ):
        run(location, SparkProcess(location, LOCAL))
    with open_location(location) as opened:
        assert PersistClient(opened).state(SHARD).batches == ()
