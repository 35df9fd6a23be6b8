"""The transition of a merge: applied only if its inputs are still there; appends and merges never fail each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.contents.batch import BatchCounts, BatchManifest
from persist_core.errors import CorruptArtifact, InvalidInput, InvariantViolation
from persist_core.frontier import Frontier
from persist_core.keys import LOCATION
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.check_contents import check_contents
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.violations import Violations
from persist_core.shard.invariants import check_step
from persist_core.shard.replace import NotReplaced, Replaced, replace_batches
from persist_core.shard.state import Committed, Hold, ShardState, compare_and_append
from tests.core.compaction.histories import KEYED, MULTISET, History


def history(appends: int = 4) -> History:
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=3)
    while len(made.state.batches) < appends:
        made.append()
    return made


def staged(made: History, first: int, count: int) -> tuple[BatchManifest, str]:
    """A run that is staged and not yet put in place."""
    before = made.state
    merge = Merge.of(made.client, before, before.batches[first : first + count])
    attempt = made.client.ids.uuid7()
    consensus, location = MemConsensus(), made.client.location.consensus.head(LOCATION)
    assert location is not None
    consensus.compare_and_set(LOCATION, None, location)
    beside = History(OpenLocation(made.client.blob, consensus), KEYED, seed=0, shard="elsewhere")
    machine, made.client.machine = made.client.machine, beside.client.machine
    try:
        beside.client.machine.apply("s", lambda state: (replace(before, seqno=state.seqno), None), create=True)
        result = merge_here(made.client, merge, attempt=attempt)
    finally:
        made.client.machine = machine
    assert isinstance(result, Replaced)
    return made.client.staged_manifest(result.batch.manifest_key), result.batch.manifest_key


def test_an_append_between_staging_and_replacing_changes_nothing() -> None:
    made = history()
    run, key = staged(made, 0, 4)
    made.append()
    made.append()
    state, result = made.client.machine.apply("s", lambda state: replace_batches(state, run, key))
    assert isinstance(result, Replaced)
    assert len(state.batches) == 3
    made.check()


def test_a_batch_staged_before_a_merge_is_appended_after_it() -> None:
    made = history()
    before = made.state
    made.append()
    manifest, key = made.client.manifest(made.state.batches[-1]), made.state.batches[-1].manifest_key
    merge = Merge.of(made.client, before, before.batches)
    run = merge.manifest((), BatchCounts())
    merged, _ = replace_batches(before, run, "s/batches/m/manifest.json")
    after, result = compare_and_append(merged, manifest, key, expected_upper=manifest.lower, now_ms=0)
    assert isinstance(result, Committed)
    assert [batch.upper for batch in after.batches] == [before.upper.time, manifest.upper]


def test_a_second_merge_finds_the_run_or_lost_inputs() -> None:
    made = history()
    run, key = staged(made, 1, 2)
    other, other_key = staged(made, 2, 2)
    state, first = made.client.machine.apply("s", lambda state: replace_batches(state, run, key))
    again, second = made.client.machine.apply("s", lambda state: replace_batches(state, run, key))
    assert isinstance(first, Replaced)
    assert first.is_new
    assert isinstance(second, Replaced)
    assert not second.is_new
    assert again.seqno == state.seqno
    last, third = made.client.machine.apply("s", lambda state: replace_batches(state, other, other_key))
    assert isinstance(third, NotReplaced)
    assert last.batches == state.batches
    made.check()


def test_a_merge_slower_than_gc_is_not_applied() -> None:
    made = history()
    run, key = staged(made, 0, 4)
    later = replace(made.state, era=run.era + 2, oldest_era=run.era + 1)
    state, result = replace_batches(later, run, key)
    assert isinstance(result, NotReplaced)
    assert state == later
    _, result = replace_batches(replace(later, oldest_era=run.era), run, key)
    assert isinstance(result, Replaced)


def test_a_run_is_never_appended_and_a_batch_never_takes_a_place() -> None:
    made = history()
    run, key = staged(made, 0, 2)
    with pytest.raises(InvalidInput, match="is a run"):
        compare_and_append(ShardState("s"), run, key, expected_upper=run.lower, now_ms=0)
    raw = made.client.manifest(made.state.batches[0])
    with pytest.raises(InvalidInput, match="not a run"):
        replace_batches(made.state, raw, key)
    assert run.run is not None
    greedy = replace(run, run=replace(run.run, since=10**6))
    with pytest.raises(InvalidInput, match="can be read from since"):
        replace_batches(made.state, greedy, key)


def read_everything(made: History) -> None:
    for time in range(made.state.upper.time or 0):
        made.client.open_reader("s").snapshot(time)
        made.client.open_reader("s").errors(time)


def test_neighbors_only() -> None:
    made = history()
    batches = made.state.batches
    with pytest.raises(InvalidInput, match="not neighbors"):
        Merge.of(made.client, made.state, (batches[0], batches[2]))
    with pytest.raises(InvalidInput, match="not neighbors"):
        Merge.of(made.client, made.state, batches[:1])


@pytest.mark.parametrize(
    "broken",
    [
        lambda state: replace(
            state, batches=(replace(state.batches[0], upper=state.batches[0].upper + 1), *state.batches[1:])
        ),
        lambda state: replace(state, batches=state.batches[1:]),
        lambda state: replace(state, sources={"files": None}),
        lambda state: replace(state, holds={"h": Hold(Frontier(10**6), "o")}),
    ],
    ids=["a new boundary", "a batch is lost", "progress changes", "a hold appears"],
)
def test_a_merge_that_changes_anything_else_is_not_written(broken: Callable[[ShardState], ShardState]) -> None:
    made = history()
    run, key = staged(made, 1, 3)
    before = made.state
    after, _ = replace_batches(before, run, key)
    check_step(before, replace(after, seqno=before.seqno + 1))
    with pytest.raises(InvariantViolation):
        check_step(before, broken(replace(after, seqno=before.seqno + 1)))


def test_history_is_carried_over_and_dropped_with_since() -> None:
    made = history(12)
    made.merge_these(made.state.batches)
    (run,) = made.state.batches
    parts = {part.key: part for part in made.client.manifest(run).parts if part.kind == "history"}
    (kept,) = parts.values()
    assert kept.rows == run.counts.history
    made.append()
    made.merge_these(made.state.batches)
    assert kept.key in {part.key for part in made.client.manifest(made.state.batches[0]).parts}
    made.check()
    made.client.set_history("s", 0)
    made.client.advance_since("s")
    made.append()
    made.merge_these(made.state.batches)
    assert kept.key not in {part.key for part in made.client.manifest(made.state.batches[0]).parts}
    made.check()


def test_damage_in_a_run_is_found_like_damage_in_a_part() -> None:
    made = history(8)
    made.merge_these(made.state.batches)
    for part in made.client.manifest(made.state.batches[0]).parts:
        data = made.client.blob.get(part.key)
        assert data is not None
        made.client.blob.set(part.key, bytes([data[0] ^ 1]) + data[1:])
        assert [each.check for each in fsck(made.client, "s").violations] == ["part"]
        with pytest.raises(CorruptArtifact, match=part.key):
            read_everything(made)
        made.client.blob.set(part.key, data)
    made.check()


def test_keys_beyond_the_bounds_of_their_file_are_found() -> None:
    made = history(8)
    made.merge_these(made.state.batches)
    (run,) = made.state.batches
    manifest = made.client.manifest(run)
    place, part = next((i, each) for i, each in enumerate(manifest.parts) if each.first_key and each.kind != "errs")
    assert part.first_key is not None
    for wrong in (replace(part, last_key=part.first_key), replace(part, first_key=part.last_key)):
        parts = (*manifest.parts[:place], wrong, *manifest.parts[place + 1 :])
        changed = replace(manifest, parts=parts)
        examined = Examined(made.client, made.state, {run.manifest_key: changed})
        found = Violations("s")
        check_contents(examined, found)
        assert any("the manifest says KeyRange" in each.message for each in found.report())


@pytest.mark.parametrize("first", [0, 1], ids=["with the bottom", "above the bottom"])
def test_an_err_that_came_again_keeps_its_newest_wording(first: int) -> None:
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=1)
    err = (None, None, "key", "wording 0", b"k", b"raw", "a, line 1")
    again = (None, None, "key", "wording 3", b"k", b"raw", "b, line 1")
    made.commit(0, 2, [], [(err, 0, 1)])
    made.commit(2, 3, [], [(err, 2, -1)])
    made.commit(3, 5, [], [(again, 3, 1)])
    made.client.set_history("s", 0)
    made.client.advance_since("s")
    assert made.state.since == Frontier(4)
    made.merge_these(made.state.batches[first:])
    made.check()


def test_a_run_whose_updates_do_not_alternate_is_not_made() -> None:
    made = history(2)
    lower = made.state.upper.time or 0
    (row,) = list(made.expected.snapshot(lower - 1))[:1]
    made.commit(lower, lower + 1, [(row, lower, 1)], [])
    before: ShardState = made.state
    with pytest.raises(InvariantViolation, match="do not alternate"):
        made.merge_these(before.batches)
    assert made.state == before


def test_a_multiset_with_a_negative_count_is_merged_as_it_is() -> None:
    made = History(OpenLocation(MemBlob(), MemConsensus()), MULTISET, seed=1)
    made.commit(0, 2, [((1, "x"), 0, 1)], [])
    made.commit(2, 3, [((1, "x"), 2, -2)], [])
    made.commit(3, 4, [((1, "x"), 3, 2)], [])
    made.merge_these(made.state.batches[:2])
    assert made.client.open_reader("s").snapshot(3).num_rows == 1
