"""The facts of a watcher: from states, listings and the last fsck, of many shards with few reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.conditions import Health, checked
from persist_core.alerts.health import healths, open_alerts
from persist_core.config.thresholds import DEFAULTS
from persist_core.contents.stats import BatchWarning
from persist_core.handles.client import PersistClient
from persist_core.inspection.inspector import Inspector
from persist_core.keys import conflict_key
from persist_core.location.consensus import VersionedData
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.drop import drop
from persist_core.maintenance.fsck import fsck, remember
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.codec import StateVersion, encode_state
from persist_core.time_text import DAY_MS
from tests.plain_commit import commit
from tests.virtual import ManualClock

NOW = 40 * DAY_MS
KEYED = CollectionSchema(key=(Column("id", "bigint", nullable=False),), values=(Column("name", "string"),))
MULTISET = CollectionSchema(key=(), values=(Column("name", "string"),))


@pytest.fixture
def client() -> Iterator[PersistClient]:
    clock = ManualClock(NOW)
    with OpenLocation(MemBlob(clock=clock), MemConsensus()) as opened:
        yield PersistClient(opened, clock)


def test_the_facts_of_shards(client: PersistClient) -> None:
    commit(client, "fruit", KEYED, 39 * DAY_MS, [((1, "a"), 1, 1)], [("value", None, b"x", 2, 1)], writer="dag/run")
    commit(client, "view", MULTISET, 39 * DAY_MS, [(("a",), 1, 1)], stats={"rows": 1, "errs": 4})
    client.ensure_shard("empty")
    commit(client, "dropped", KEYED, DAY_MS)
    drop(client, "dropped")
    commit(client, "closed", KEYED, None)
    client.blob.set(conflict_key("fruit", "old"), b"")
    client.clock.sleep_ms(DAY_MS + 1)
    client.blob.set(conflict_key("fruit", "new"), b"")
    found = healths(Inspector(client), ["fruit", "view", "empty", "dropped", "closed", "missing"])
    assert found == {
        "closed": Health("closed", upper=None, has_commit=True, committed_ms=NOW, writer="rogue"),
        "empty": Health("empty"),
        "fruit": Health(
            "fruit", upper=39 * DAY_MS, has_commit=True, errors=1, conflicts=1, committed_ms=NOW, writer="dag/run"
        ),
        "missing": Health("missing"),
        "view": Health(
            "view", upper=39 * DAY_MS, has_commit=True, errors=4, warnings=0, committed_ms=NOW, writer="rogue"
        ),
    }


def test_findings_are_those_of_the_last_fsck(client: PersistClient) -> None:
    commit(client, "fruit", KEYED, DAY_MS, [((1, "a"), 1, 1)])
    rules = {"fruit": DEFAULTS}
    part = client.manifest(client.state("fruit").batches[0]).parts[0].key
    data = client.blob.get(part)
    assert data is not None
    client.blob.delete(part)
    assert healths(Inspector(client), ["fruit"])["fruit"].findings == 0
    remember(client, fsck(client, "fruit"))
    found = checked(healths(Inspector(client), ["fruit"])["fruit"], WatchBoard(client).read().of("fruit").check)
    assert found.findings == len(fsck(client, "fruit").violations)
    assert part in (found.notes or {})["fsck"]
    WatchBoard(client).turn(rules, lambda: healths(Inspector(client), rules))
    assert [(each.alert, each.level) for each in open_alerts(Inspector(client))] == [("fsck", "fail")]
    client.blob.set(part, data)
    remember(client, fsck(client, "fruit"))
    WatchBoard(client).turn(rules, lambda: healths(Inspector(client), rules))
    assert open_alerts(Inspector(client)) == []


def test_a_damaged_shard_hides_no_other(client: PersistClient) -> None:
    commit(client, "fruit", KEYED, DAY_MS)
    commit(client, "other", KEYED, DAY_MS)
    head = client.location.consensus.head("fruit")
    assert head is not None
    damaged = VersionedData(head.seqno + 1, head.data[:-9] + b"!" + head.data[-8:])
    client.location.consensus.compare_and_set("fruit", head.seqno, damaged)
    found = healths(Inspector(client), ["fruit", "other"])
    assert (found["fruit"].is_readable, found["fruit"].findings) == (False, 1)
    assert "SHA-256" in (found["fruit"].notes or {})["fsck"]
    assert found["other"].is_readable


@pytest.mark.parametrize("target", ["state", "manifest"])
def test_damage_that_was_repaired_needs_no_fsck(client: PersistClient, target: str) -> None:
    commit(client, "fruit", KEYED, DAY_MS, [((1, "a"), 1, 1)])
    rules = {"fruit": DEFAULTS}
    consensus, state = client.location.consensus, client.state("fruit")
    key, damaged = state.commits[-1].manifest_key, state.seqno + 1
    manifest = client.blob.get(key)
    assert manifest is not None
    if target == "state":
        consensus.compare_and_set("fruit", state.seqno, VersionedData(damaged, b"damaged"))
    else:
        client.blob.set(key, b"damaged")
    WatchBoard(client).turn(rules, lambda: healths(Inspector(client), rules))
    assert [(each.alert, each.level) for each in open_alerts(Inspector(client))] == [("fsck", "fail")]
    if target == "state":
        whole = encode_state(StateVersion("repair", NOW, replace(state, seqno=damaged + 1)))
        consensus.compare_and_set("fruit", damaged, VersionedData(damaged + 1, whole))
    else:
        client.blob.set(key, manifest)
    (notice,) = WatchBoard(client).turn(rules, lambda: healths(Inspector(client), rules))
    assert (notice.what, notice.is_resolved) == ("fsck", True)
    assert open_alerts(Inspector(client)) == []


@given(st.lists(st.tuples(st.integers(0, 3 * DAY_MS), st.booleans()), max_size=5))
def test_conflicts_count_by_when_they_were_found(found: list[tuple[int, bool]]) -> None:
    """A move or a backup stores them again. One that cannot be read counts by the store's clock."""
    clock = ManualClock(NOW)
    with OpenLocation(MemBlob(clock=clock), MemConsensus()) as opened:
        client = PersistClient(opened, clock)
        client.ensure_shard("fruit")
        for number, (age_ms, is_whole) in enumerate(found):
            record = ConflictRecord(f"{number:032x}", "fruit", 1, 2, 2, "a/b", None, None, "t", NOW - age_ms)
            client.blob.set(conflict_key("fruit", record.conflict_id), record.encode() if is_whole else b"damaged")
        recent = sum(age_ms <= DAY_MS or not is_whole for age_ms, is_whole in found)
        assert healths(Inspector(client), ["fruit"])["fruit"].conflicts == recent
        clock.sleep_ms(DAY_MS + 1)
        assert healths(Inspector(client), ["fruit"])["fruit"].conflicts == 0


def test_warnings_are_those_of_the_newest_run_that_counted(client: PersistClient) -> None:
    """A run may make several commits; one that counts nothing changes nothing; a later run without any ends it."""
    rules, counts = {"fruit": DEFAULTS}, {"records_read": 1}

    def run(writer: str, *found: BatchWarning, stats: Mapping[str, int] = counts) -> list[tuple[str, str, int]]:
        day = client.machine.fetch("fruit")
        upper = (day.upper.time or 0) if day else 0
        commit(client, "fruit", KEYED, upper + DAY_MS, writer=writer, stats=stats, warnings=found)
        WatchBoard(client).turn(rules, lambda: healths(Inspector(client), rules))
        return [(each.alert, each.level, each.value) for each in open_alerts(Inspector(client))]

    assert run("dag/1") == []
    assert run("dag/2", BatchWarning("check size", 2, ('{"id":7}',))) == [("warnings", "warn", 2)]
    assert run("dag/2", BatchWarning("check size", 3, ('{"id":8}',))) == [("warnings", "warn", 5)]
    assert run("dag/seal", stats={}) == [("warnings", "warn", 5)]
    (notice,) = WatchBoard(client).read().unsent
    assert "first: check size: 2" in notice.text
    assert '"id"' not in notice.text, "a sample is a part of a row"
    summary = Inspector(client).description("fruit")
    assert (summary.warnings, summary.attention) == (5, ("warnings",))
    assert summary.warned == (BatchWarning("check size", 5, ('{"id":8}', '{"id":7}')),)
    assert run("dag/3") == []


def test_a_damaged_manifest_is_an_alert_and_hides_no_other_fact(client: PersistClient) -> None:
    for day in range(1, 4):
        commit(client, "fruit", KEYED, day * DAY_MS, [((day, "a"), day * DAY_MS - 1, 1)])
    client.blob.set(client.state("fruit").commits[-1].manifest_key, b"damaged")
    found = healths(Inspector(client), ["fruit"])["fruit"]
    assert (found.findings, found.warnings, found.errors) == (1, None, 0)
    assert "manifest" in (found.notes or {})["fsck"]


def test_a_look_at_many_shards_reads_states_and_listings_alone(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"shard{number}" for number in range(200)]
    for name in names:
        client.ensure_shard(name)
    for name in names[:9]:
        commit(client, name, KEYED, DAY_MS, [((1, "a"), 1, 1)], [("value", None, b"x", 2, 1)])
    for day in range(6):
        row = ((day, "a"), day * DAY_MS, 1)
        commit(client, names[9], KEYED, (day + 1) * DAY_MS, [row], stats={"inserts": 1}, writer=f"dag/{day}")
    calls: Counter[str] = Counter()
    stores: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (client.location.consensus, ("head", "scan", "list_keys")),
        (client.blob, ("get", "list_keys_and_metadata")),
    )
    for store, methods in stores:
        for method in methods:
            inner = getattr(store, method)

            def counted(*arguments: Any, inner: Any = inner, method: str = method) -> Any:
                calls[method] += 1
                return inner(*arguments)

            monkeypatch.setattr(store, method, counted)
    rules = dict.fromkeys(names, DEFAULTS)
    WatchBoard(client).turn(rules, lambda: healths(Inspector(client), rules))
    manifests = 2 * 9 + 1  # of the newest run, and of the newest errors
    assert calls == {"head": 200 + 9 + 1, "list_keys_and_metadata": 200, "get": manifests}
    assert len(open_alerts(Inspector(client))) == 9
