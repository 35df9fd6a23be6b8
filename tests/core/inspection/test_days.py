"""The calendar of a shard, from mint and append on real files, and rule by rule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchManifest
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.errors import CorruptArtifact
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_head
from persist_core.inspection import inspector as inspector_module
from persist_core.inspection.days import MAX_FILES, Loaded, days_of
from persist_core.inspection.facts import CommitFacts, DayFacts
from persist_core.inspection.inspector import Inspector
from persist_core.location.blob import Blob
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.protocol.stages import Minted, mint
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from persist_core.sources.ledger import segments_of
from persist_core.sources.source import ConsumedInput
from persist_core.time_text import DAY_MS, parse_time
from tests.core.sources.drop_folder import collection, drop
from tests.plain_commit import ErrUpdate, Update, commit
from tests.virtual import ManualClock

KEYED = CollectionSchema(key=(Column("id", "bigint", nullable=False),), values=(Column("name", "string"),))
FIRST = parse_time("2026-01-01")
HOUR_MS = 3_600_000
NOW = FIRST + 6 * DAY_MS + HOUR_MS  # in the seventh day


def day(number: int) -> int:
    """The start of a day, counted from 1."""
    return FIRST + (number - 1) * DAY_MS


def load(number: int, *inputs: ConsumedInput, restored_from: str | None = None, **counts: Any) -> Loaded:
    """The commit that covers one day."""
    facts: dict[str, Any] = {"committed_ms": day(number + 1) + 1, "lag_ms": 1, "writer": "w", "checkpoint_id": "c"}
    bounds: dict[str, Any] = {"seqno": number, "epoch": number, "lower": day(number), "upper": day(number + 1)}
    return Loaded(CommitFacts(**bounds, **facts, restored_from=restored_from, **counts), inputs)


def dated(number: int, name: str = "") -> ConsumedInput:
    """A file with the date of a day in its path."""
    return ConsumedInput(f"date={number}/{name or 'a'}.jsonl", 10, day(number))


def states(loads: list[Loaded], **given: Any) -> list[str]:
    """The state of each day."""
    return [each.state for each in shown(loads, **given)]


def shown(loads: list[Loaded], **given: Any) -> tuple[DayFacts, ...]:
    """The days, as of the seventh one."""
    arguments = {"upper": loads[-1].commit.upper, "due": day(7), "now_ms": NOW, "limit": 30}
    return days_of(loads, **{**arguments, **given})


def test_days_that_no_commit_covers_are_missing_failed_or_open() -> None:
    loads = [load(1, dated(1)), load(2, dated(2))]
    assert states(loads) == ["loaded", "loaded", "missing", "missing", "missing", "missing", "open"]
    failed = states(loads, failed={day(4)}, due=day(6))
    assert failed == ["loaded", "loaded", "missing", "failed", "missing", "open", "open"]


def test_a_file_that_comes_after_its_day_makes_the_day_late() -> None:
    loads = [load(1, dated(1)), load(2, dated(2)), load(3, dated(3), dated(1, "b"))]
    late, other, own, *_ = shown(loads)
    assert (late.state, late.files_late, [file.is_late for file in late.files]) == ("late", 1, [False, True])
    assert (other.state, own.state, own.files_total) == ("loaded", "loaded", 1)


def test_a_day_without_a_file_is_missing_if_files_have_dates() -> None:
    assert states([load(1, dated(1)), load(2), load(3, dated(3))])[:3] == ["loaded", "missing", "loaded"]
    plain = [load(1, ConsumedInput("a")), load(2), load(3, ConsumedInput("b"))]
    assert states(plain)[:3] == ["loaded", "loaded", "loaded"]


@pytest.mark.parametrize("seed", range(20))
def test_no_day_is_missing_whose_inputs_are_not_known(seed: int) -> None:
    """A day since whose start all inputs are known is as if all commits were known. No day before is missing."""
    draw = random.Random(seed)
    hours = [*sorted(draw.sample(range(1, 6 * 24), 30)), 6 * 24]
    has_file = [draw.random() < 0.7 for _ in range(6)]
    loads, lower = [], 0
    for hour in hours:
        upper = FIRST + hour * HOUR_MS
        new = {(each - FIRST) // DAY_MS for each in range(max(lower, FIRST), upper, HOUR_MS)} - {
            (lower - 1 - FIRST) // DAY_MS
        }
        files = [dated(number + 1) for number in sorted(new) if has_file[number]]
        loads.append(Loaded(replace(load(1).commit, lower=lower, upper=upper), tuple(files)))
        lower = upper
    late = replace(loads[-1], inputs=(*(loads[-1].inputs or ()), dated(-40, "late")))
    whole = {each.day_ms: each.state for each in shown(loads)}
    assert [whole.get(day(number + 1), "missing") != "missing" for number in range(6)] == has_file
    cut = draw.randrange(1, len(loads) - 1)
    unread, unknown = loads[cut:], [replace(each, inputs=None) if n < cut else each for n, each in enumerate(loads)]
    for given in (unread, unknown, [*unread[:-1], late], [*unknown[:-1], late]):
        found = {each.day_ms: each.state for each in shown(given, limit=100)}
        known_from = loads[cut].commit.lower
        assert all(found[at] == whole[at] for at in whole if at >= known_from)
        earlier = {state for at, state in found.items() if at < known_from}
        is_late = given[-1] is late
        assert "missing" not in earlier
        assert ("late" in earlier) == is_late
        assert ("unknown" in earlier) == (is_late and given[0] is unread[0])


def test_a_restore_corrects_its_day() -> None:
    assert states([load(1, dated(1)), load(2, restored_from="c1")])[:2] == ["loaded", "corrected"]


def test_a_closed_shard_has_no_missing_day() -> None:
    assert states([load(1, ConsumedInput("a"))], upper=None) == ["loaded"] * 6 + ["open"]


def test_days_are_those_of_the_collections_zone() -> None:
    """The second day has 23 hours: Berlin's clocks go forward. A commit up to local midnight is of the day before."""
    starts = [parse_time(f"2026-03-{number}", zone="Europe/Berlin") for number in range(28, 32)]
    bounds = list(pairwise(starts))
    facts = load(1).commit
    loads = [
        Loaded(replace(facts, lower=lower, upper=upper), (ConsumedInput("a", 1, lower),)) for lower, upper in bounds
    ]
    found = shown(loads, now_ms=starts[-1] + 1, due=starts[-1], zone="Europe/Berlin")
    assert [(each.date, each.day_ms, each.end_ms) for each in found[:3]] == [
        (f"2026-03-{28 + number}", *bound) for number, bound in enumerate(bounds)
    ]
    assert [each.state for each in found] == ["loaded", "loaded", "loaded", "open"]
    assert [(each.end_ms - each.day_ms) // 3_600_000 for each in found] == [24, 23, 24, 24]
    assert len(shown(loads, now_ms=starts[-1] + 1, zone="Europe/Berlin", limit=2)) == 2


def test_counters_have_no_days() -> None:
    counter = Loaded(CommitFacts(NOW, "w", "c", 1, 0, 5, None, 1, None), ())
    assert days_of([counter], upper=5, due=NOW, now_ms=NOW, limit=9) == ()


@pytest.mark.parametrize("upper", [1_767_398_400_000_000, 2**62, 253_402_300_800_000])
def test_times_after_the_year_9999_have_no_days(upper: int) -> None:
    """A counter of microseconds, and a run that was forced to a far --until."""
    far = replace(load(2).commit, upper=upper)
    for zone in ("UTC", "Pacific/Kiritimati", "America/New_York"):
        assert shown([Loaded(far)], zone=zone) == ()
        found = shown([load(1), Loaded(far, (dated(2),))], zone=zone)
        assert {each.state for each in found} <= {"loaded", "open", "missing"}
        assert sum(each.commits for each in found) == 1


def test_the_newest_days_show_sums_and_first_files() -> None:
    many = [ConsumedInput(f"{number}.jsonl") for number in range(MAX_FILES + 5)]
    found = shown([load(5, inserts=2), load(5, *many, inserts=3, deletes=1)], limit=3)
    assert [each.day_ms for each in found] == [day(5), day(6), day(7)]
    assert (found[0].commits, found[0].inserts, found[0].deletes) == (2, 5, 1)
    assert (len(found[0].files), found[0].files_total) == (MAX_FILES, MAX_FILES + 5)


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        yield PersistClient(opened, ManualClock(NOW))


def consume(client: PersistClient, config: CollectionConfig, until: int) -> None:
    """Mint of real files, and append; the batch has no rows, because what a record holds does not matter here."""
    minted, schema = mint(client, config, until=until, writer="w", is_forced=True), config.collection_schema()
    assert isinstance(minted, Minted)
    handle = client.open_writer("orders")
    empty = updates_schema(schema).empty_table(), errs_schema(schema).empty_table()
    key = handle.stage(minted.description, schema, client.ids.uuid7(), *empty)
    assert isinstance(handle.compare_and_append(client.staged_manifest(key), key), Committed)


def test_files_are_those_that_each_commit_has_consumed(
    client: PersistClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = collection(tmp_path, "date={date:%Y-%m-%d}/*.jsonl", time="path")
    names = {1: ["date=2026-01-01/a.jsonl"], 2: ["date=2026-01-01/late.jsonl", "date=2026-01-02/a.jsonl"], 3: []}
    for number, files in names.items():
        for name in files:
            drop(tmp_path, name)
        consume(client, config, day(number + 1))
    inspector = Inspector(client)
    state = inspector.state("orders")
    loads = inspector.loads(state)
    assert [[each.name for each in load.inputs or ()] for load in loads] == list(names.values())
    assert states(loads, due=day(4))[:4] == ["late", "loaded", "missing", "open"]
    with monkeypatch.context() as few:
        few.setattr(inspector_module, "MAX_COMMITS", 2)
        assert [load.inputs for load in inspector.loads(state)] == [()]  # the older one's input is not known
    damaged = state.commits[1].manifest_key

    def load(blob: Blob, key: str, *, sha256: str | None = None) -> BatchManifest:
        if key == damaged:
            raise CorruptArtifact(damaged)
        return load_head(blob, key, sha256=sha256)

    monkeypatch.setattr(inspector_module, "load_head", load)
    loads = Inspector(client).loads(state)
    assert [load.inputs and len(load.inputs) for load in loads] == [1, None, None]
    assert states(loads, due=day(4))[:4] == ["loaded", "loaded", "loaded", "open"]
    page = inspector.storage("orders")
    counted = {folder.folder: folder.objects for folder in page.folders}
    assert counted["batches"] >= 3
    assert not page.is_partial
    assert page.size_bytes == sum(each.size_bytes for each in client.blob.list_keys_and_metadata("orders/"))


def test_inputs_of_commits_that_the_state_has_not_are_known(client: PersistClient, tmp_path: Path) -> None:
    """Two commits an hour, one dated file a day: older versions of the state name the older commits."""
    config = collection(tmp_path, "date={date:%Y-%m-%d}/*.jsonl", time="path")
    for number in range(5 * 48):
        if number % 48 == 0:
            drop(tmp_path, f"date=2026-01-0{1 + number // 48}/a.jsonl")
        consume(client, config, FIRST + (number + 1) * HOUR_MS // 2)
    inspector = Inspector(client)
    state = inspector.state("orders")
    assert len(state.commits) < 190
    loads = inspector.loads(state)
    assert sum(len(load.inputs or ()) for load in loads) == 4
    assert states(loads) == [*["loaded"] * 5, "missing", "open"]
    for segment in segments_of(state.sources["files"]):
        client.blob.delete(segment.key)
    assert states(inspector.loads(state)) == [*["loaded"] * 5, "missing", "open"]


def test_loads_and_storage_stop_when_they_are_told_to(client: PersistClient) -> None:
    for number in range(1, 6):
        commit(client, "orders", KEYED, day(number + 1), [((number, "new"), day(number), 1)])
    inspector, calls = Inspector(client), list[int]()
    state = inspector.state("orders")

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        inspector.loads(state, check=check)
    calls.clear()
    with pytest.raises(InterruptedError):
        inspector.storage("orders", check=check)
    assert len(calls) == 3


def test_rows_after_each_commit_are_those_of_a_read_as_of_it(client: PersistClient) -> None:
    for number in range(1, 9):
        time = day(number)
        updates: list[Update] = [((number, "new"), time, 1)]
        if number % 3 == 0:
            updates.append(((number - 1, "new"), time, -1))
        errs: list[ErrUpdate] = [("value", None, b"x%d" % number, time, 1)] if number % 2 else []
        commit(client, "keyed", KEYED, day(number + 1), updates, errs)
    inspector, reader = Inspector(client), client.open_reader("keyed")
    sizes = [batch.size_bytes for batch in client.state("keyed").batches]
    found = [each.state_bytes for each in inspector.commits("keyed").commits]
    assert found == [sum(sizes[: number + 1]) for number in range(8)]

    def check(before: int | None) -> int | None:
        page = inspector.commits("keyed", before=before, limit=3)
        for each in page.commits:
            assert each.upper is not None
            expected = len(reader.snapshot(each.upper - 1)), len(reader.errors(each.upper - 1))
            assert (each.rows, each.living_errors) == expected
        return page.older

    older = check(None)
    assert older is not None
    assert check(older) is not None
    state = client.state("keyed")
    merge_here(client, Merge.of(client, state, state.batches[:5]), attempt=client.ids.uuid7())
    check(None)
