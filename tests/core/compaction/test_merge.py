"""Reads answer the same before, during and after any merges: random histories against brute force."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings

from persist_core.compaction import files, merge
from persist_core.contents import row_versions
from persist_core.contents.batch import PartKind
from persist_core.frontier import Frontier
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import delta
from persist_core.protocol.restore_orders import with_orders_of_oks
from persist_core.schema import ORDER, CollectionSchema
from tests.core.compaction.histories import KEYED, MULTISET, SEQUENCED, History
from tests.core.world import all_updates

STEPS = 40
SEEDS = {"dev": 4, "ci": 4, "nightly": 40}[settings.get_current_profile_name()]
SCHEMAS = pytest.mark.parametrize("schema", [SEQUENCED, MULTISET], ids=["sequence", "multiset"])


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize(
    ("schema", "seed"),
    [
        *(pytest.param(KEYED, seed, id=f"keyed-{seed}") for seed in range(SEEDS // 2)),
        *(pytest.param(SEQUENCED, seed, id=f"sequence-{seed}") for seed in range(SEEDS // 2, SEEDS)),
        *(pytest.param(MULTISET, seed, id=f"multiset-{seed}") for seed in range(SEEDS)),
    ],
)
def test_any_merges_change_no_answer(schema: CollectionSchema, seed: int) -> None:
    sizes = {"min_file_bytes": 2_000, "sampled": 1} if seed % 3 == 0 and schema.key else {}  # many files a run
    if seed % 2 == 0:
        sizes["max_history_files"] = 2  # small files of history are rewritten, others carried over
    check_history(OpenLocation(MemBlob(), MemConsensus()), schema, seed, STEPS, sizes)


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_merges_in_steps_change_no_answer(seed: int) -> None:
    schema = SEQUENCED if seed % 2 else KEYED
    sizes = {"min_file_bytes": 1, "sampled": 1, "budget_bytes": 1 if seed % 4 < 2 else 20_000}
    history = check_history(OpenLocation(MemBlob(), MemConsensus()), schema, seed, STEPS // 2, sizes, ids=16)
    assert seed > 4 or history.steps > 20


@SCHEMAS
def test_any_merges_change_no_answer_of_files(schema: CollectionSchema, tmp_path: Path) -> None:
    location = open_location(PersistLocation(f"file://{tmp_path}/data", f"sqlite:///{tmp_path}/consensus.db"))
    check_history(location, schema, seed=0, steps=STEPS // 2)
    location.close()


def _merges_drop_orders(patch: pytest.MonkeyPatch) -> None:
    inner = files.RunFiles.add

    def add(run: files.RunFiles, kind: PartKind, table: pa.Table) -> None:
        place = table.column_names.index(ORDER)
        inner(run, kind, table.set_column(place, ORDER, pa.nulls(len(table), table[ORDER].type)))

    patch.setattr(files.RunFiles, "add", add)


def _restores_bring_new_orders(patch: pytest.MonkeyPatch) -> None:
    inner = with_orders_of_oks

    def with_other_orders(oks: pa.Table, *more: Any) -> pa.Table:
        rows = [{**row, ORDER: {**row[ORDER], "by0": 1_000}} for row in inner(oks, *more).to_pylist()]
        return pa.Table.from_pylist(rows, schema=oks.schema)

    patch.setattr(delta, "with_orders_of_oks", with_other_orders)


@pytest.mark.parametrize("plant", [_merges_drop_orders, _restores_bring_new_orders])
def test_a_history_in_sequence_order_finds_a_planted_defect(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_history(OpenLocation(MemBlob(), MemConsensus()), SEQUENCED, seed=1, steps=STEPS)


def check_history(
    location: OpenLocation, schema: CollectionSchema, seed: int, steps: int, sizes: Any = None, ids: int = 4
) -> History:
    """Random steps, each now and then followed by every read; in the end the shard is closed and merged whole."""
    history, chance = History(location, schema, seed, sizes=sizes, ids=ids), random.Random(seed)
    for _ in range(steps):
        each = chance.choice([history, history, *history.forks])
        each.step()
        if chance.random() < 0.25:
            each.check()
    history.append(close=True)
    for each in (history, *history.forks):
        each.check()
        if len(each.state.batches) > 1:
            each.merge_these(each.state.batches)
        while each is history and (begun := [batch for batch in each.state.batches if batch.is_partial]):
            each.steps += 1
            each.merge_these((begun[0],))
        each.check()
    assert history.merges
    return history


def test_only_what_new_keys_touch_is_rewritten() -> None:
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=1, sizes={"min_file_bytes": 1_500})

    def rows(numbers: range, time: int, diff: int) -> list[tuple[tuple[int, str, float, str], int, int]]:
        return [((number, "", 0.5, "a"), time, diff) for number in numbers]

    for time in range(4):
        made.commit(time, time + 1, rows(range(40 * time, 40 * time + 40), time, 1), [])
    made.merge_these(made.state.batches)
    before = insertions(made)
    assert len(before) > 4
    assert all(one.last_key < other.first_key for one, other in pairwise(before))
    made.commit(4, 5, [*rows(range(158, 160), 4, -1), *rows(range(160, 170), 4, 1)], [])
    made.merge_these(made.state.batches)
    kept = {part.key for part in before} & {part.key for part in insertions(made)}
    assert kept == {part.key for part in before[:-1]}
    made.check()


def test_a_merge_of_large_rows_holds_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have as many rows as without the limit: files of fewer rows would be merged again and again."""
    resolved: list[int] = []

    def of(updates: pa.Table, keys: Any) -> Any:
        resolved.append(updates.nbytes)
        return row_versions.resolve(updates, keys)

    monkeypatch.setattr(merge, "resolve", of)
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=1)
    for time in range(4):
        made.commit(time, time + 1, [((number, "", 0.5, "x" * 10_000), time, 1) for number in range(time, 400, 4)], [])
    for module in (files, merge):
        monkeypatch.setattr(module, "BYTES_AT_ONCE", 1 << 20)
    whole = merge.Merge.of(made.client, made.state, made.state.batches)
    merge.merge_here(made.client, whole, attempt=made.client.ids.uuid7())
    assert sum(resolved) > 4_000_000
    assert max(resolved) < 1.2 * (1 << 20)
    assert len(insertions(made)) == 1
    made.check()


def insertions(made: History) -> list[Any]:
    return sorted(of_kind(made, "insertions"), key=lambda part: part.first_key or ())


def of_kind(made: History, kind: str) -> list[Any]:
    return [part for part in made.client.manifest(made.state.batches[0]).parts if part.kind == kind]


@pytest.mark.family("histories in Python")
def test_history_that_is_kept_is_rewritten_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "rows_per_file", lambda *_: 16)
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=1, sizes={"max_history_files": 4})
    made.commit(0, 1, [((number, "", 0.5, "0"), 0, 1) for number in range(4)], [])
    written: dict[str, int] = {}
    for time in range(1, 151):
        old = [((number, "", 0.5, str(time - 1)), time, -1) for number in range(4)]
        made.commit(time, time + 1, [*old, *[((*row[:3], str(time)), at, 1) for row, at, _ in old]], [])
        made.merge_these(made.state.batches)
        there = {part.key: part.rows or 0 for part in of_kind(made, "history")}
        written |= there
    assert sum(there.values()) == 4 * 150
    assert sum(written.values()) <= 3 * sum(there.values())
    made.check()


def test_files_of_a_clipped_run_are_never_carried() -> None:
    """In a fork they are its own once keys were erased from them, and hold rows that are later than it."""
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=1, sizes={"min_file_bytes": 1, "sampled": 1})
    for lower, upper, key in ((0, 5, 1), (5, 10, 2), (10, 12, 9)):
        made.commit(lower, upper, [((key, "", 0.5, "a"), lower, 1)], [])
        made.merge_these(made.state.batches) if upper == 10 else None
    run, newest = made.state.batches
    planned = replace(merge.Merge.of(made.client, made.state, (run, newest)), min_file_bytes=1, sampled=1)
    clipped = replace(planned, inputs=(replace(run, upper=6), newest))
    assert planned.carried
    assert not clipped.carried


def test_files_of_history_may_be_dropped_before_older_ones() -> None:
    """A file that is carried over keeps updates from before `since`, and the updates that cancel them may be gone."""
    made = History(OpenLocation(MemBlob(), MemConsensus()), MULTISET, seed=1, sizes={"max_history_files": 2})
    row = (1, "x")
    made.commit(0, 2, [], [])
    made.commit(2, 4, [(row, 3, 1)], [])
    made.merge_these(made.state.batches)
    made.commit(4, 5, [(row, 4, -1)], [])
    made.commit(5, 8, [((number, "y"), 5, 1) for number in range(9)], [])
    made.merge_these(made.state.batches[1:])
    made.commit(8, 10, [((2, "z"), 9, 1)], [])
    made.merge_these(made.state.batches)
    made.commit(10, 12, [], [])
    made.client.open_since(made.shard, "history").downgrade(Frontier(8))
    made.client.set_history(made.shard, 0)
    assert made.client.advance_since(made.shard).since == Frontier(8)
    made.merge_these(made.state.batches)
    reader = made.client.open_reader(made.shard)
    kept, _ = all_updates(reader, made.state)
    assert {(row["a"], row["b"], row["_persist_diff"]) for row in kept.to_pylist() if row["b"] == "x"} == {
        (1, "x", -1),
        (1, "x", 1),
    }
    made.check()
