"""Metrics of tasks for Airflow's own Stats: StatsD, Datadog or OpenTelemetry, whichever `[metrics]` turns on.

    a stage's try  --measured-------> tries, stage_duration
    a new commit   --report_commit--> commits, changes, written bytes, late records
    a shard        --report_shards--> the gauges that `persist metrics` prints

The metrics themselves are defined in `persist_core.inspection.metrics`.

1. Nothing here fails a task, nor keeps it for more than `FLUSH_S`: whatever goes wrong is logged once a process.
2. If no backend is on, nothing is read and nothing is computed.
3. Backends with tags get `persist.NAME` with the tags location and shard, and dag_id for what tells of a run. StatsD
   without tags gets the values in the name, as Airflow's own metrics have them: `persist.NAME.LOCATION.SHARD...`.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from persist_airflow.compat import AirflowSkipException, Context, Stats, conf, puts_off
from persist_airflow.failures import PersistCasConflict, warn_once
from persist_core.clock import SystemClock
from persist_core.handles.client import PersistClient
from persist_core.inspection import metrics
from persist_core.inspection.inspector import MAX_STATES, Inspector
from persist_core.inspection.metrics import Metric
from persist_core.inspection.summaries import commit_facts
from persist_core.shard.state import Commit

MAX_STAT_CHARS = 250  # Airflow drops longer ones, tags included, and logs a stack trace for each
SECONDS_XCOM = "persist_seconds"  # read by the page for shards
ENDING_STAGES = ("append", "retry")
FLUSH_S = 2.0  # a collector that answers takes milliseconds
_INVALID = re.compile(r"[^a-zA-Z0-9_.-]")  # Airflow drops a stat with another character in its name or in a tag
_Method = TypeVar("_Method", bound=Callable[..., Any])

_log = logging.getLogger(__name__)


def is_on() -> bool:
    return any(_is_set(name) for name in ("statsd_datadog_enabled", "statsd_on", "otel_on"))


def has_tags() -> bool:
    """True if the backend, in Airflow's order of choice, keeps tags."""
    if _is_set("statsd_datadog_enabled"):
        return _is_set("statsd_datadog_metrics_tags")
    return _is_set("statsd_influxdb_enabled") if _is_set("statsd_on") else True


def measured(stage: str) -> Callable[[_Method], _Method]:
    """Decorate an operator's method that takes the context: time it, and count the try by how it ends.

    The operator has `persist_conn_id` and `shard`. A task that is put off (deferred, rescheduled) has not ended. Its
    seconds, without the time for which it was put off, become an XCom: Airflow's duration of a task includes that time.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def run(operator: Any, context: Context) -> Any:
            started_ms, result = SystemClock().now_ms(), "success"
            try:
                return method(operator, context)
            except BaseException as error:
                result = _result_of(error)
                raise
            finally:
                if result:
                    took_ms = SystemClock().now_ms() - started_ms
                    if result == "success":
                        _push_seconds(context, max(took_ms, 0) / 1000)
                    _report_try(operator, context, stage, result, took_ms)
                    export()

        return cast(_Method, run)

    return decorate


@dataclass(frozen=True)
class Counted:
    """Stands for the operator of a shard that has a task together with others."""

    persist_conn_id: str
    shard: str


def report_tries(persist_conn_id: str, context: Context, stage: str, tries: Mapping[str, tuple[str, int]]) -> None:
    """Do as `measured`, for a task of several shards: for each the result of its try, and its duration in ms.

    The XCom says of each its seconds, and whether the dag run has nothing more to commit for it.
    """
    found = {}
    for shard, (result, took_ms) in tries.items():
        is_done = result == "skipped" or (result == "success" and stage in ENDING_STAGES)
        found[shard] = {"seconds": took_ms / 1000, "is_done": is_done}
    _push_seconds(context, found)
    for shard, (result, took_ms) in tries.items():
        _report_try(Counted(persist_conn_id, shard), context, stage, result, took_ms)
    export()


def count(operator: Any, context: Context, metric: Metric, number: int = 1, *labels: str) -> None:
    """Add to a counter of the operator's shard. `labels` are the values of the metric's own labels."""
    _safely(lambda: _count(operator, context, metric, number, labels))


def report_commit(operator: Any, context: Context, client: PersistClient, commit: Commit) -> None:
    """Count what a new commit changed and wrote. Reads its manifest."""

    def report() -> None:
        facts = commit_facts(commit, client.manifest(commit))
        for kind, number in metrics.changes_of(facts).items():
            _count(operator, context, metrics.CHANGES, number, (kind,))
        for reason, number in metrics.late_of(facts).items():
            _count(operator, context, metrics.LATE_RECORDS, number, (reason,))
        _count(operator, context, metrics.RECORDS, (facts.stats or {}).get("records_read"), ())
        _count(operator, context, metrics.WRITTEN, facts.size_bytes, ())
        _count(operator, context, metrics.COMMITS, 1, ())

    _safely(report)


def report_shards(persist_conn_id: str, client: PersistClient, shards: Sequence[str]) -> None:
    """Set the gauges of these shards. Reads their states, newest manifests and conflicts."""

    def report() -> None:
        found = Inspector(client, threads=MAX_STATES).newest_commits(shards)
        for metric, labels, value in metrics.labeled_samples(found, location=persist_conn_id):
            if metric.kind == "gauge":
                _send(Stats.gauge, metric, value, labels)

    _safely(report)


def export() -> None:
    """Send what was reported, before the task's process ends. A measured method does so by itself."""
    _safely(_flush)


def _push_seconds(context: Context, value: object) -> None:
    """Keep it for the page. Never raises: what the task has done is done, a commit perhaps."""
    try:
        context["ti"].xcom_push(key=SECONDS_XCOM, value=value)
    except Exception as error:  # noqa: BLE001 - Airflow's API may not answer
        _log.warning("the task's seconds were not kept: %s: %s", type(error).__name__, error)


def _report_try(operator: Any, context: Context, stage: str, result: str, took_ms: int) -> None:
    def report() -> None:
        labels = _labels(operator, context, metrics.STAGE_DURATION, (stage,))
        _send(Stats.timing, metrics.STAGE_DURATION, max(took_ms, 0), labels)
        _count(operator, context, metrics.TRIES, 1, (stage, result))

    _safely(report)


def _result_of(error: BaseException) -> str:
    """The try's result for `tries`; empty if it has not ended."""
    if puts_off(error):
        return ""
    if isinstance(error, AirflowSkipException):
        return "skipped"
    return "conflict" if isinstance(error, PersistCasConflict) else "failed"


def _count(operator: Any, context: Context, metric: Metric, number: metrics.Value, labels: Sequence[str]) -> None:
    if number:
        _send(Stats.incr, metric, number, _labels(operator, context, metric, labels))


def _labels(operator: Any, context: Context, metric: Metric, labels: Sequence[str]) -> dict[str, str]:
    values = (operator.persist_conn_id, operator.shard, *labels)
    return {**dict(zip(metric.all_labels, values, strict=True)), "dag_id": context["dag_run"].dag_id}


def _send(send: Callable[..., Any], metric: Metric, value: float, labels: Mapping[str, str]) -> None:
    """Send one value under the name, and with the tags, that the backend can take."""
    clean = {name: _INVALID.sub("_", text) for name, text in labels.items()}
    if not has_tags():
        parts = [clean[name].replace(".", "__") for name in metric.all_labels]  # `.` separates, as in Airflow's names
        name = ".".join([metric.stat, *parts])
        if len(name) <= MAX_STAT_CHARS:
            send(name, value)
        return
    if _length(metric, clean) > MAX_STAT_CHARS:
        clean.pop("dag_id", None)  # the shard says nearly as much
    if _length(metric, clean) <= MAX_STAT_CHARS:
        send(metric.stat, value, tags=clean)


def _flush() -> None:
    """With OpenTelemetry, export now: Airflow's task processes end without it, and the interval is a minute.

    A collector that does not answer is waited for in a thread, which may outlive this call.
    """
    if _is_set("statsd_datadog_enabled") or _is_set("statsd_on"):
        return
    provider: Any = importlib.import_module("opentelemetry.metrics").get_meter_provider()
    flush = threading.Thread(target=functools.partial(_safely, provider.force_flush), daemon=True)
    flush.start()
    flush.join(FLUSH_S)


def _length(metric: Metric, tags: Mapping[str, str]) -> int:
    return len(metric.stat) + sum(len(name) + len(text) + 2 for name, text in tags.items())


def _safely(report: Callable[[], object]) -> None:
    """Do it if metrics are on. Never raises."""
    try:
        if is_on():
            report()
    except Exception as error:  # noqa: BLE001 - a task is not to fail for its metrics, whatever a client raises
        warn_once(_log, f"metrics were not sent: {type(error).__name__}: {error}")


def _is_set(name: str) -> bool:
    return bool(conf.getboolean("metrics", name, fallback=False))
