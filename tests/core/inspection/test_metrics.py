"""The Prometheus text, read back by Prometheus' own parser, against what plain reads find."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.inspection.facts import ATTENTION
from persist_core.inspection.inspector import Inspector
from persist_core.inspection.metrics import (
    COMMITS,
    RUN_METRICS,
    SHARD_METRICS,
    Metric,
    labeled_samples,
    prometheus_text,
)
from persist_core.location.consensus import VersionedData
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.drop import drop
from persist_core.time_text import parse_time
from tests import real_parts
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.virtual import ManualClock

DAY = 86_400_000
DAY_1 = parse_time("2026-01-01")
NOW = DAY_1 + 10 * DAY
LATE_STATS = {"inserts": 2, "updates": 0, "deletes": 0, "errors": 1, "stashed": 0, "late_times": 4, "late": 0}
Labels = tuple[tuple[str, str], ...]


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        yield PersistClient(opened, ManualClock(NOW))


def text_of(client: PersistClient, location: str = "here") -> str:
    return prometheus_text(Inspector(client).newest_commits(client.shards()), location=location)


def parsed(text: str) -> dict[str, dict[Labels, float]]:
    """Values by name and labels (but for the location's); every line was valid."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple((name, value) for name, value in sample.labels.items() if name != "location")
            values = found.setdefault(sample.name, {})
            assert labels not in values, f"{sample.name}{labels} twice"
            values[labels] = sample.value
    return found


def orders(client: PersistClient) -> None:
    commit(client, "orders", SCHEMA, DAY_1 + DAY, [((1, "a"), DAY_1, 1)], stats={"inserts": 1, "stashed": 0})
    updates = [((2, "b"), DAY_1 + DAY, 1), ((3, "c"), DAY_1 + DAY, 1)]
    errs = [("value", None, b"?", DAY_1 + DAY, 1)]
    commit(client, "orders", SCHEMA, DAY_1 + 2 * DAY, updates, errs, stats=LATE_STATS)


def test_the_facts_of_a_shard(client: PersistClient) -> None:
    orders(client)
    client.open_since("orders", "report", since=Frontier(DAY_1))
    found, labels = parsed(text_of(client)), (("shard", "orders"),)
    facts = {name: values[labels] for name, values in found.items() if labels in values}
    summary = Inspector(client).summary("orders")
    assert summary.newest_commit is not None
    assert facts == {
        "persist_upper_timestamp_seconds": (DAY_1 + 2 * DAY) / 1000,
        "persist_upper_lag_seconds": 8 * 86_400,
        "persist_last_commit_timestamp_seconds": summary.newest_commit.committed_ms / 1000,
        "persist_rows": len(client.open_reader("orders").snapshot()),
        "persist_errors_alive": len(client.open_reader("orders").errors()),
        "persist_stash_records": 0,
        "persist_size_bytes": summary.size_bytes,
        "persist_batches": 2,
        "persist_updates": 4,
        "persist_merge_due_batches": 2,
        "persist_merge_due_rows": 4,
        "persist_conflicts_7d": 0,
        "persist_holders": 1,
        "persist_held_timestamp_seconds": DAY_1 / 1000,
        "persist_last_commit_size_bytes": client.manifest(client.state("orders").commits[-1]).size_bytes,
        "persist_last_commit_parts": 2,
        "persist_commits_total": 2,
    }
    kinds = {labels[-1][1]: value for labels, value in found["persist_last_commit_changes"].items()}
    assert kinds == {"insert": 2, "update": 0, "delete": 0, "error": 1}
    reasons = {labels[-1][1]: value for labels, value in found["persist_last_commit_late_records"].items()}
    assert reasons == {"time": 4, "order": 0}, "what a run did not count has no sample"
    problems = {labels[-1][1]: value for labels, value in found["persist_attention"].items()}
    assert problems == {word: int(word == "errors") for word in ATTENTION}


def test_what_is_not_known_has_no_sample(client: PersistClient) -> None:
    commit(client, "closed", SCHEMA, None)
    commit(client, "counter", SCHEMA, 7)
    found = parsed(text_of(client))
    for name in ("upper_timestamp_seconds", "upper_lag_seconds", "held_timestamp_seconds"):
        assert f"persist_{name}" not in found
        assert f"# TYPE persist_{name} gauge" in text_of(client)
    assert set(found["persist_batches"]) == {(("shard", "closed"),), (("shard", "counter"),)}


def test_damage_is_told_and_hides_nothing_else(client: PersistClient) -> None:
    for shard in ("orders", "rotten", "torn"):
        commit(client, shard, SCHEMA, DAY_1, [((1, "a"), DAY_1 - 1, 1)])
    head = client.location.consensus.head("rotten")
    assert head is not None
    client.location.consensus.compare_and_set("rotten", head.seqno, VersionedData(head.seqno + 1, b"rotten"))
    client.blob.set(client.state("torn").commits[-1].manifest_key, b"torn")
    found = parsed(text_of(client))
    unreadable = {
        dict(labels)["shard"]: value
        for labels, value in found["persist_attention"].items()
        if ("problem", "unreadable") in labels
    }
    assert unreadable == {"orders": 0, "rotten": 1, "torn": 1}
    assert set(found["persist_rows"]) == {(("shard", "orders"),), (("shard", "torn"),)}
    assert set(found["persist_last_commit_parts"]) == {(("shard", "orders"),)}


def test_a_dropped_shard_is_left_out(client: PersistClient) -> None:
    orders(client)
    commit(client, "gone", SCHEMA, DAY_1)
    drop(client, "gone")
    assert 'shard="orders"' in text_of(client)
    assert "gone" not in text_of(client)


def test_labels_are_escaped(client: PersistClient) -> None:
    orders(client)
    hostile = 'a"b\\c\nd{e="f"} 1'
    text = text_of(client, location=hostile)
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    assert {each.labels["location"] for each in samples} == {hostile}
    assert all("\n" not in line and line for line in text.splitlines())


def test_the_format_and_the_names_keep_prometheus_rules(client: PersistClient) -> None:
    orders(client)
    text = text_of(client)
    assert text.endswith("\n")
    metrics = (*SHARD_METRICS, *RUN_METRICS)
    assert len({metric.series for metric in metrics}) == len({metric.stat for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch(r"persist_[a-z0-9_]*[a-z0-9]", metric.series)
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.series.endswith("_total")
        assert not metric.unit or metric.series.removesuffix("_total").endswith(f"_{metric.unit}")
        assert (metric.read is None) == (metric in RUN_METRICS and metric is not COMMITS)
    promtool = shutil.which("promtool")
    if promtool is None:
        real_parts.missing("promtool", "not on PATH: `apt-get install prometheus` has it")
        return
    real_parts.used("promtool", promtool)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "no finding of its linter either"


def test_samples_have_the_labels_of_their_metric(client: PersistClient) -> None:
    orders(client)
    seen: set[Metric] = set()
    for metric, labels, value in labeled_samples(Inspector(client).newest_commits(["orders"]), location="x"):
        assert tuple(labels) == metric.all_labels
        assert isinstance(value, int | float)
        seen.add(metric)
    assert {metric.name for metric in SHARD_METRICS if metric not in seen} == {"since_timestamp", "held_timestamp"}


def test_200_shards_take_less_than_a_second(client: PersistClient) -> None:
    for number in range(200):
        commit(client, f"shard{number}", SCHEMA, DAY_1, [((1, "a"), DAY_1 - 1, 1)], stats=LATE_STATS)
    started = time.process_time()
    text = text_of(client)
    assert time.process_time() - started < 1
    assert text.count("persist_rows{") == 200
