"""The benchmark measures what it says: its events, the contents that it expects of all engines, and its ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.benchmarks import tables
from tests.benchmarks.engines import Duck, Setting
from tests.benchmarks.turns import ICEBERG, OURS, REWRITE
from tests.benchmarks.workload import Hits, KeyType, Workload, fingerprint, newest_events, write_feed


@pytest.mark.parametrize(("key_type", "hits"), [("bigint", "uniform"), ("string", "uniform"), ("rising", "recent")])
def test_an_engine_has_the_newest_event_of_each_key(tmp_path: Path, key_type: KeyType, hits: Hits) -> None:
    workload = Workload(400, 100, 3, key_type, hits)
    feed = write_feed(workload, tmp_path)
    newest: dict[Any, dict[str, Any]] = {}
    engine = Duck(Setting(tmp_path / "engine", workload, cores=1, memory="1g"))
    for number, path in enumerate(feed):
        events = pq.read_table(path).to_pylist()
        newest.update((event["id"], event) for event in events)
        engine.commit(number, path)
    living = sorted(key for key, event in newest.items() if event["op"] == "u")
    assert fingerprint(newest_events(feed))[0] == len(living)
    engine.export(tmp_path / "exported")
    exported = f"FROM read_parquet('{tmp_path}/exported/*.parquet')"
    assert fingerprint(exported) == fingerprint(newest_events(feed))
    assert sorted(pq.read_table(tmp_path / "exported" / "rows.parquet")["id"].to_pylist()) == living
    assert fingerprint(f"{exported} WHERE id <> '{living[0]}'") != fingerprint(newest_events(feed))


def test_recent_events_hit_the_newest_keys(tmp_path: Path) -> None:
    workload = Workload(10_000, 2_000, 1, "rising", "recent")
    events = pq.read_table(write_feed(workload, tmp_path)[1])["id"].to_pylist()
    old = [key for key in events if key < workload.keys]
    assert 0.93 < sum(key >= 9_500 for key in old) / len(old) < 0.97
    assert 0.25 < 1 - len(old) / len(events) < 0.4, "inserts, some of them repeated"


def figures(commit_s: list[float], read_s: float, written: int, stored: int) -> dict[str, Any]:
    """One engine's, with one read after the last round, twice as long before maintenance."""
    last = str(len(commit_s) - 1)
    return {
        "commit_s": commit_s,
        "commit_bytes": [1_000] + [written] * (len(commit_s) - 1),
        "maintain_s": [0.0] * (len(commit_s) - 1) + [2.0],
        "maintain_bytes": [0] * (len(commit_s) - 1) + [50],
        "read_before_s": {last: 2 * read_s},
        "read_s": {last: read_s},
        "stored_bytes": {last: stored},
        "middle_read_s": 3 * read_s,
        "peak_memory_bytes": 1,
    }


def test_ratios_are_medians_of_warm_rounds() -> None:
    ours = figures([9.0, 8.0, 8.0, 8.0, 1.0, 2.0, 9.0], 0.5, 30, 120)
    peer = figures([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0], 0.25, 10, 100)
    for each, read_s in ((ours, 1.0), (peer, 0.25)):
        each["read_s"] = {"2": read_s, **each["read_s"]}
    measured = {
        "workload": {"keys": 10, "events": 5, "rounds": 6, "key_type": "bigint", "hits": "uniform"},
        "maintain_every": 3,
        "input_bytes": [1_000, *[20] * 6],
        "engines": {OURS: ours, ICEBERG: peer, REWRITE: peer},
        "machine": {"cores": 2, "others": 0.0, "spark": "4.1.4"},
        "commit": "abc",
    }
    assert tables.commit_ratio(measured, ICEBERG) == 1.0, "of 0.5, 1 and 3"
    assert tables.maintained_ratio(measured, REWRITE) == (8 * 3 + 1 + 2 + 9 + 2) / 10
    assert tables.read_ratio(measured, REWRITE) == 2.0
    assert tables.mean_read_ratio(measured, REWRITE) == 3.0, "of both rounds"
    assert tables.worst_read_ratio(measured, REWRITE) == 4.0, "in a round without maintenance"
    assert tables.middle_ratio(measured) == 3.0
    assert tables.write_amplification(measured) == (6 * 30 + 50) / 120
    assert tables.stored_ratio(measured) == 1.2
    assert tables.flatness(measured) is None, "too few rounds"
    text = tables.scenario_table(measured)
    assert "loaded machine" not in text
    assert "| commit / Iceberg merge-on-read | 1.00 |" in text
    measured["machine"] = {"cores": 2, "others": 1.5, "spark": "4.1.4"}
    assert "**loaded machine** (1.5 cores used by others)" in tables.scenario_table(measured)
