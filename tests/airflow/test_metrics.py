"""Metrics of tasks through Airflow's own Stats, received by a real UDP socket and a real HTTP server."""

from __future__ import annotations

import gzip
import http.server
import importlib
import importlib.metadata
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persist_airflow import metrics as reported
from persist_airflow.compat import Stats, conf
from persist_airflow.factory import build_upsert_dag
from persist_airflow.failures import warn_once
from persist_core.cli.main import run_command
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.inspection.metrics import RUN_METRICS, SHARD_METRICS
from persist_core.inspection.metrics import TRIES as TRIES_METRIC
from persist_core.location.settings import PersistLocation
from tests.airflow.airflow_process import run
from tests.airflow.fruit import NAME, Fruit, end_ms, end_of
from tests.airflow.statsd_sink import statsd_sink
from tests.airflow.task_driver import DagRunDriver
from tests.docker.dashboards import check_data
from tests.servers.prometheus import prometheus, running_exporter, running_prometheus, statsd_exporter

pytestmark = pytest.mark.airflow_2_11

DRIVER = ("-m", "tests.airflow.metrics_driver")
ROOT = Path(__file__).resolve().parents[2]
SHARD = f"location=persist_default,shard={NAME}"
DAG_ID = f"dag_id=persist_upsert__{NAME}"
TRIES = {
    "mint success": 3, "mint skipped": 1, "write success": 1, "append success": 3, "append conflict": 1,
    "checkpoint success": 2,
}  # fmt: skip


def test_statsd_with_tags(
    fruit: Fruit, migrated: Path, location: PersistLocation, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with statsd_sink() as sink:
        for name, value in sink.settings(statsd_influxdb_enabled="True").items():
            monkeypatch.setenv(name, value)
        out = run(fruit.dags, migrated, location, *DRIVER, str(fruit.dags))
    assert "metrics were not sent" not in out
    found = sink.values()
    tries = {
        f"{stage} {result}": len(found[f"tries,{SHARD},stage={stage},result={result},{DAG_ID}"])
        for stage, result in (name.split() for name in TRIES)
    }
    assert tries == TRIES
    assert found[f"changes,{SHARD},kind=insert,{DAG_ID}"] == ["1|c"] * 2
    assert found[f"changes,{SHARD},kind=error,{DAG_ID}"] == ["1|c"] * 2
    assert found[f"late_records,{SHARD},reason=time,{DAG_ID}"] == ["1|c"] * 2
    assert found[f"records_read,{SHARD},{DAG_ID}"] == ["2|c"] * 2
    assert found[f"commits,{SHARD},{DAG_ID}"] == ["1|c"] * len(client.state(NAME).commits) == ["1|c"] * 3
    assert found[f"conflicts,{SHARD},{DAG_ID}"] == ["1|c"], "each conflict is counted once, whatever tries follow"
    assert found[f"heals,{SHARD},{DAG_ID}"] == ["1|c"]
    written = [client.manifest(commit).size_bytes for commit in client.state(NAME).commits]
    assert found[f"written_bytes,{SHARD},{DAG_ID}"] == [f"{size}|c" for size in written if size]
    assert len(found[f"stage_duration,{SHARD},stage=append,{DAG_ID}"]) == 4
    assert all(value.endswith("|ms") for value in found[f"stage_duration,{SHARD},stage=append,{DAG_ID}"])
    assert found[f"rows,{SHARD}"][-1] == found[f"errors_alive,{SHARD}"][-1] == "2|g"
    assert found[f"upper_timestamp_seconds,{SHARD}"][-1] == f"{end_ms(2) / 1000}|g"
    assert found[f"attention,{SHARD},problem=errors"] == ["1|g"] * 4, "two checkpoints, list_shards and maintain_shard"
    assert found[f"merges,{SHARD},dag_id=maintenance"] == ["1|c"]
    known = {metric.stat.removeprefix("persist.") for metric in (*SHARD_METRICS, *RUN_METRICS)}
    assert {name.partition(",")[0] for name in found} <= known
    _check_dashboard(fruit.dags.parent, client, sink.lines)


def _check_dashboard(folder: Path, client: PersistClient, lines: list[str]) -> None:
    """With what the tasks sent, and what `persist metrics` prints, every panel of the dashboard has data."""
    try:
        prometheus(), statsd_exporter()
    except pytest.skip.Exception:
        return  # the closing list of real parts names what is missing; the packets are checked anyway
    client.open_since(NAME, "report", since=Frontier(end_ms(0)))
    texts = folder / "texts"
    texts.mkdir()
    assert run_command(["metrics", "--output", str(texts / "persist.prom")]) == 0
    with running_exporter() as exporter, running_prometheus(folder, texts, exporter) as server:
        exporter.send(lines)
        server.wait_for(f'persist_commits_total{{job="statsd", shard="{NAME}"}}')
        server.wait_for(f'persist_commits_total{{job="textfile", shard="{NAME}"}}')
        exporter.send(lines)  # again: a rate needs a counter that moves
        server.wait_for("increase(persist_commits_total[1h]) > 0")
        check_data(server)


def test_statsd_without_tags_has_the_shard_in_the_name(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _capture(monkeypatch, statsd_on=True)
    text = (fruit.dags / "collections" / f"{NAME}.yaml").read_text()
    (fruit.dags / "collections" / f"{NAME}.yaml").unlink()
    fruit.write_collection("fresh.fruit", text)
    config = importlib.import_module("persist_core.config.collection").load_collection(
        fruit.dags / "collections" / "fresh.fruit.yaml"
    )
    DagRunDriver(build_upsert_dag(config), end_of(0)).run_all()
    names = Counter(name for name, _, tags in sent if not tags)
    assert len(names) == len({name for name, _, _ in sent})
    assert names["persist.tries.persist_default.fresh__fruit.append.success"] == 1
    assert names["persist.rows.persist_default.fresh__fruit"] == 1
    assert client.state("fresh.fruit").newest_commit is not None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (False, True)),
        ({"statsd_on": True}, (True, False)),
        ({"statsd_on": True, "statsd_influxdb_enabled": True}, (True, True)),
        ({"otel_on": True}, (True, True)),
        ({"otel_on": True, "statsd_on": True}, (True, False)),
        ({"statsd_datadog_enabled": True, "statsd_datadog_metrics_tags": True, "statsd_on": True}, (True, True)),
        ({"statsd_datadog_enabled": True, "statsd_influxdb_enabled": True}, (True, False)),
    ],
)
def test_the_backend_is_the_one_that_airflow_chooses(
    settings: dict[str, bool], expected: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conf, "getboolean", lambda _, name, **__: settings.get(name, False))
    assert (reported.is_on(), reported.has_tags()) == expected


def test_nothing_is_read_if_metrics_are_off(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = _capture(monkeypatch)
    monkeypatch.setattr(reported, "Inspector", None)
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()
    assert sent == []
    assert client.state(NAME).upper.time == end_ms(0)


def test_a_task_does_not_fail_for_its_metrics(
    fruit: Fruit,
    client: PersistClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    _capture(monkeypatch, statsd_on=True)
    for name in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, name, broken)
    DagRunDriver(build_upsert_dag(fruit.config()), end_of(0)).run_all()
    assert client.state(NAME).upper.time == end_ms(0)
    logs = (caplog.text, capsys.readouterr().out)  # 3.x logs to the one, 2.11 to both
    assert max(log.count("metrics were not sent: OSError: no route to host") for log in logs) == 1


def test_a_collector_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    started, answer = threading.Event(), threading.Event()

    def force_flush() -> None:
        started.set()
        answer.wait(30)

    provider = SimpleNamespace(force_flush=force_flush)
    _capture(monkeypatch, otel_on=True)
    monkeypatch.setattr(importlib.import_module("opentelemetry.metrics"), "get_meter_provider", lambda: provider)
    monkeypatch.setattr(reported, "FLUSH_S", 0.05)
    reported.export()
    assert started.wait(30)
    assert not answer.is_set()
    answer.set()


def test_names_and_tags_that_airflow_would_drop_are_made_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = _capture(monkeypatch, otel_on=True)
    tags = {"location": "käse, =x", "shard": "s" * 128, "stage": "mint", "result": "success", "dag_id": "d" * 250}
    monkeypatch.setattr(Stats, "incr", lambda name, count, tags: sent.append((name, count, tags)))
    for each in (tags, {**tags, "dag_id": "short"}, {**tags, "location": "l" * 200}):
        reported._send(Stats.incr, TRIES_METRIC, 1, each)
    (long_id, short_id) = (found for _, _, found in sent)
    assert long_id == {"location": "k_se___x", "shard": "s" * 128, "stage": "mint", "result": "success"}
    assert short_id["dag_id"] == "short"


def test_every_name_is_valid_for_opentelemetry() -> None:
    module = "airflow._shared.observability" if IS_AIRFLOW_3 else "airflow"
    validators: Any = importlib.import_module(f"{module}.metrics.validators")
    for metric in (*SHARD_METRICS, *RUN_METRICS):
        name = validators.stat_name_otel_handler("airflow", metric.stat, max_length=63)  # the limit of older servers
        assert name == f"airflow.{metric.stat}"


IS_AIRFLOW_3 = importlib.metadata.version("apache-airflow").startswith("3")


def test_opentelemetry(
    fruit: Fruit, migrated: Path, location: PersistLocation, monkeypatch: pytest.MonkeyPatch, otlp: list[Any]
) -> None:
    """Each task exports before it ends, because Airflow's task processes do not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = run(fruit.dags, migrated, location, *DRIVER, str(fruit.dags))
    assert "metrics were not sent" not in out
    found: dict[str, list[Any]] = {}
    for request in otlp:
        for scope in (scope for resource in request.resource_metrics for scope in resource.scope_metrics):
            for metric in scope.metrics:
                found.setdefault(metric.name.removeprefix("airflow.persist."), []).append(metric)
    assert found.keys() >= {"commits", "changes", "rows", "tries", "stage_duration"}
    points = [point for metric in found["commits"] for point in metric.sum.data_points]
    assert sum(point.as_int for point in points) == 3, "deltas, as docs/metrics.md says"
    for point in points:
        tags = {each.key: each.value.string_value for each in point.attributes}
        assert tags == {"location": "persist_default", "shard": NAME, "dag_id": f"persist_upsert__{NAME}"}
    (rows,) = found["rows"][-1].gauge.data_points
    assert (rows.as_int or rows.as_double) == 2
    if IS_AIRFLOW_3:
        assert found["stage_duration"][-1].unit == "ms"


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A collector on 127.0.0.1 and the settings to use it; the decoded requests."""
    messages: Any = importlib.import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    requests: list[Any] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            requests.append(messages.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    port = server.server_address[1]
    for name, value in {
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__OTEL_PORT": str(port),
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{port}/v1/metrics",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
    }.items():
        monkeypatch.setenv(name, value)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def _capture(monkeypatch: pytest.MonkeyPatch, **settings: bool) -> list[tuple[str, float, dict[str, str]]]:
    """Turn on these settings, and keep what would be sent: name, value, tags."""
    sent: list[tuple[str, float, dict[str, str]]] = []
    plain = conf.getboolean

    def getboolean(section: str, name: str, **options: Any) -> bool:
        return settings.get(name, False) if section == "metrics" else plain(section, name, **options)

    def send(name: str, value: float, tags: dict[str, str] | None = None) -> None:
        sent.append((name, value, tags or {}))

    monkeypatch.setattr(conf, "getboolean", getboolean)
    for name in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, name, send)
    warn_once.cache_clear()
    return sent


class Unreachable:
    """A task instance of an Airflow that does not answer."""

    def xcom_push(self, **_: object) -> None:
        raise ConnectionError("503")


def test_seconds_that_cannot_be_kept_fail_no_task() -> None:
    """The task may have committed."""
    context: Any = {"ti": Unreachable()}

    def execute(operator: reported.Counted, context: Any) -> str:  # noqa: ARG001 - the signature of a method
        return "committed"

    commit = reported.measured("append")(execute)
    assert commit(reported.Counted("persist_default", NAME), context) == "committed"
    reported.report_tries("persist_default", context, "append", {NAME: ("success", 1)})
