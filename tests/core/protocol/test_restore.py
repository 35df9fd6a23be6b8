"""Restores to a checkpoint and the runs after them: over random histories, and with damaged state."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist_core.contents.batch import STASH_OPERATOR
from persist_core.errors import CheckpointNotFound, CorruptArtifact, InvalidInput, InvariantViolation, OutsideFrontiers
from persist_core.frontier import Frontier
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import NothingToRestore, plan_restore
from tests.core.protocol import log_source
from tests.core.protocol.restored_shard import SHARD, Collection, as_tables, contents
from tests.oracle.strategies import MAX_WIDTH, SCHEMA, STRAY, History, histories
from tests.oracle.upsert import TOMBSTONE, Record, UpsertDiff

A, B = ("eu", 1), ("eu", 2)


def ok(slot: tuple[str, int], name: str, time: int | None = None, row: int = 0) -> Record:
    return Record(slot, (name, None, None), time, (0, "f", 0, row))


def replayed(folder: str, history: History, *, is_log: bool) -> tuple[Collection, list[str]]:
    """The history as dag runs; returns their checkpoints."""
    shard = Collection(Path(folder), is_log=is_log)
    ids = []
    for number, batch in enumerate(history.batches):
        shard.drop(f"{number}.txt", batch.records)
        ids.append(shard.run(batch.upper))
    return shard, ids


@settings(max_examples=settings().max_examples // 2)
@given(histories(may_close=False), st.data())
def test_a_restore_brings_contents_back_and_keeps_history(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, log_source.known():
        shard, ids = replayed(folder, history, is_log=data.draw(st.booleans(), label="log"))
        uppers = [batch.upper or 0 for batch in history.batches]
        consumed = [set(list(shard.feed)[: number + 1]) for number in range(len(ids))]
        for step in range(data.draw(st.integers(1, 3), label="restores")):
            target = data.draw(st.integers(0, len(ids) - 1), label="to")
            if isinstance(plan_restore(shard.client, SHARD, ids[target]), NothingToRestore):
                continue
            before, upper = shard.updates(), shard.upper()
            assert set(shard.plan(ids[target]).inputs_again or ()) == consumed[-1] - consumed[target]
            done = shard.go_back(ids[target])
            assert (done.commit.lower, done.commit.upper, done.is_new) == (upper, upper + 1, True)
            after = shard.updates()
            assert [repr(update) for update in after if update.time < upper] == [repr(update) for update in before]
            assert contents(after, upper) == shard.read(upper) == contents(before, uppers[target] - 1)
            shard.drop(f"more-{step}.txt", [])
            assert set(shard.files_of(shard.mint(upper + MAX_WIDTH))) == shard.feed.keys() - consumed[target]
            ids.append(done.commit.checkpoint_id)
            uppers.append(upper + 1)
            consumed.append(consumed[target])
            if data.draw(st.booleans(), label="go on"):
                ids.append(shard.run(upper + MAX_WIDTH))
                uppers.append(upper + MAX_WIDTH)
                consumed.append(set(shard.feed))
            shard.check()


def in_time(history: History) -> list[tuple[int, list[Record]]]:
    """Without records of times that are final already: what any order of runs ends with alike."""
    return [
        (batch.upper or 0, [r for r in batch.records if r.time is not None and r.time >= batch.lower])
        for batch in history.batches
    ]


@pytest.mark.family("histories in Python")
@given(histories(may_close=False), st.data())
def test_redelivered_and_stashed_records_count_once(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, log_source.known():
        shard, ids = Collection(Path(folder), is_log=data.draw(st.booleans(), label="log")), []
        for number, (upper, records) in enumerate(in_time(history)):
            shard.drop(f"{number}.txt", records)
            ids.append(shard.run(upper))
        target = data.draw(st.integers(0, len(ids) - 1), label="to")
        plain = fork(shard.client, SHARD, ids[-1], "plain", writer="test")
        if target < len(ids) - 1:
            shard.go_back(ids[target])
        for each in (shard, shard.beside("plain")):
            each.run((plain.commit.upper or 0) + 2 * STRAY + MAX_WIDTH)
            each.check()
        end = shard.upper() - 1
        assert shard.contents(end) == shard.beside("plain").contents(end)


@pytest.mark.family("histories in Python")
@given(histories(may_close=False), st.data())
def test_a_fork_goes_on_as_the_shard_did(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder, log_source.known():
        shard, ids = replayed(folder, history, is_log=data.draw(st.booleans(), label="log"))
        target = data.draw(st.integers(0, len(ids) - 1), label="at")
        before = shard.client.state(SHARD)
        done = fork(shard.client, SHARD, ids[target], "twin", writer="test")
        twin = shard.beside("twin")
        assert done.commit.upper == history.batches[target].upper
        for number in range(target + 1, len(history.batches)):
            shard.take_out(f"{number}.txt")
        for number, batch in enumerate(history.batches[target + 1 :], target + 1):
            # Put back as it was: its time of change is none of the records' business.
            twin.drop(f"{number}.txt", batch.records)
            twin.run(batch.upper)
        ours, theirs = shard.updates(), twin.updates()
        for time in range(shard.upper()):
            assert contents(theirs, time) == contents(ours, time)
        time = data.draw(st.integers(0, shard.upper() - 1), label="as of")
        assert twin.read(time) == contents(ours, time)
        assert shard.client.state(SHARD) == before
        shard.check()
        twin.check()


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    """A file whose second record waits in the stash until a run goes beyond 15, and an empty one."""
    made = Collection(tmp_path)
    made.drop("1.txt", [ok(A, "one", 1), ok(B, "two", 15)])
    made.drop("2.txt", [])
    return made


def test_the_stash_comes_back_and_is_lifted(shard: Collection) -> None:
    first = shard.run(10)
    shard.run(20)
    assert shard.contents(15)[B]
    shard.go_back(first)
    assert B not in shard.contents(20)
    description = shard.mint(30)
    assert (description.stash_frontier, len(description.operators[STASH_OPERATOR]), description.lower) == (10, 1, 21)
    shard.run(30)
    (lifted,) = [update for update in shard.updates() if update.slot == B and update.time > 20]
    assert (lifted.time, lifted.diff) == (21, 1)
    assert shard.mint(40).stash_frontier is None
    assert shard.client.manifest(shard.client.state(SHARD).commits[-1]).stats["late_times"] == 1


def test_a_restore_of_a_restore_still_lifts_the_stash(shard: Collection) -> None:
    first = shard.run(10)
    shard.run(20)
    back = shard.go_back(first).commit.checkpoint_id
    shard.run(30)
    assert B in shard.contents(29)
    shard.go_back(back)
    assert B not in shard.contents(30)
    assert shard.mint(40).stash_frontier == 10
    shard.run(40)
    assert B in shard.contents(39)
    manifest = shard.checkpointer.load_manifest(back)
    assert (manifest.restored_from, manifest.watermark, manifest.shard and manifest.shard.upper) == (first, 10, 21)


def test_a_chain_of_deltas_comes_back_whole(shard: Collection) -> None:
    shard.run(10)
    shard.drop("3.txt", [ok(A, "three", 25, row=7)])
    second = shard.run(12)
    assert shard.checkpointer.load_manifest(second).is_delta
    shard.run(30)
    shard.go_back(second)
    newest = shard.checkpointer.list_checkpoints()[-1]
    restored = shard.checkpointer.load_manifest(newest)
    assert ([part.partition_id for part in restored.artifacts], restored.is_delta) == ([0, 1], False)
    shard.run(40)
    assert set(shard.contents(39)) == {A, B}
    assert [u.time for u in shard.updates() if u.slot == A and u.diff > 0] == [1, 25, 30, 31]


def test_going_forward_again_undoes_a_restore(shard: Collection) -> None:
    first, second = shard.run(10), shard.run(20)
    wanted = shard.contents(19)
    shard.go_back(first)
    assert shard.plan(second).inputs_again == ()
    shard.go_back(second)
    assert shard.contents(21) == wanted
    assert shard.mint(30).input_key is None


def test_the_same_restore_again_is_nothing_to_do(shard: Collection) -> None:
    first, second = shard.run(10), shard.run(20)
    assert isinstance(plan_restore(shard.client, SHARD, second), NothingToRestore)
    shard.go_back(first)
    state = shard.client.state(SHARD)
    assert isinstance(plan_restore(shard.client, SHARD, first), NothingToRestore)
    assert shard.client.state(SHARD) == state


def damaged(shard: Collection, checkpoint_id: str) -> list[str]:
    """The objects of a checkpoint: its own files, and what its commit staged for them."""
    commit = next(c for c in shard.client.state(SHARD).commits if c.checkpoint_id == checkpoint_id)
    staged = [artifact.key for artifact in shard.client.manifest(commit).operators[STASH_OPERATOR].artifacts]
    folder = shard.checkpointer.layout.folder(checkpoint_id)
    return [*staged, *(entry.key for entry in shard.client.blob.list_keys_and_metadata(folder))]


def holds_state(key: str) -> bool:
    """True if this is operator state, as a commit staged it or as its checkpoint has a copy."""
    return "/operators/" in key or "part=upsert-stash" in key


@pytest.mark.parametrize("of", ["/operators/", "part=upsert-stash"], ids=["copy", "staged"])
def test_one_damaged_copy_of_operator_state_stops_no_run(shard: Collection, of: str) -> None:
    shard.run(10)
    shard.drop("3.txt", [ok(A, "three", 25), ok(B, "four", 12)])
    second = shard.run(20)
    for key in damaged(shard, second):
        if of in key:
            shard.client.blob.set(key, b"rotten")
    shard.run(30)
    assert shard.contents(29) == shard.read(29)
    assert set(shard.contents(29)) == {A, B}


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "altered"])
@pytest.mark.parametrize("how_much", ["operators", "everything"])
def test_mint_names_the_way_back_from_a_damaged_stash(shard: Collection, how_much: str, is_missing: bool) -> None:
    first = shard.run(10)
    shard.drop("3.txt", [ok(A, "three", 25), ok(B, "four", 12)])
    second = shard.run(20)
    for key in damaged(shard, second):
        if how_much == "everything" or holds_state(key):
            shard.client.blob.delete(key) if is_missing else shard.client.blob.set(key, b"rotten")
    with pytest.raises(CorruptArtifact, match=f"persist restore {SHARD} --to {first}.*upper 10"):
        shard.mint(30)
    assert shard.plan(first).inputs_again == ("3.txt",)
    shard.go_back(first)
    shard.run(30)
    assert shard.contents(29) == shard.read(29)
    assert set(shard.contents(29)) == {A, B}
    shard.check()
    shard.run(40)


def test_where_no_checkpoint_is_whole_mint_says_so(shard: Collection) -> None:
    first = shard.run(10)
    for key in damaged(shard, first):
        if holds_state(key):
            shard.client.blob.delete(key)
    with pytest.raises(CorruptArtifact, match="no other checkpoint of this shard is intact"):
        shard.mint(20)
    shard.drop("3.txt", [])
    with pytest.raises(CorruptArtifact, match=r"part-0\.parquet is missing.*partition-0\.snap is missing or damaged"):
        plan_restore(shard.client, SHARD, first)


def test_a_commit_that_was_never_published_may_be_left_behind(shard: Collection) -> None:
    first = shard.run(10)
    shard.drop("3.txt", [ok(A, "three", 25)])
    description = shard.mint(20)
    stages.append(shard.client, description, shard.write(description))
    (staged,) = shard.client.manifest(shard.client.state(SHARD).commits[-1]).operators[STASH_OPERATOR].artifacts
    shard.client.blob.set(staged.key, b"rotten")
    with pytest.raises(CorruptArtifact, match=f"{staged.key}.*--to {first}"):
        shard.mint(30)
    shard.go_back(first)
    last = shard.run(30)
    assert shard.checkpointer.read_latest() == last
    assert description.checkpoint_id not in shard.checkpointer.list_checkpoints()
    shard.check()


def test_a_damaged_ledger_of_now_stops_nobody_from_going_back(shard: Collection) -> None:
    first = shard.run(10)
    shard.drop("3.txt", [])
    shard.run(20)
    *_, segment = shard.client.state(SHARD).sources["files"].offsets["segments"]
    shard.client.blob.delete(segment["key"])
    fresh = shard.beside(SHARD)
    assert fresh.plan(first).inputs_again is None
    fresh.go_back(first)
    assert fresh.files_of(fresh.mint(30)) == ["3.txt"]


def test_a_checkpoint_with_other_progress_is_refused(shard: Collection) -> None:
    first = shard.run(10)
    shard.run(20)
    manifest = shard.checkpointer.load_manifest(first)
    files = manifest.source_offsets["files"]
    altered = replace(files, offsets={**files.offsets, "files": 1})
    data = replace(manifest, source_offsets={"files": altered}).encode()
    shard.client.blob.set(shard.checkpointer.layout.manifest(first), data)
    with pytest.raises(CorruptArtifact, match="differs from its commit"):
        plan_restore(shard.client, SHARD, first)


def test_what_can_not_be_restored_says_why_and_changes_nothing(shard: Collection) -> None:
    first = shard.run(10)
    shard.drop("3.txt", [ok(A, "x", 12), ok(B, "y", 13)])
    shard.run(20)
    state = shard.client.state(SHARD)
    with pytest.raises(CheckpointNotFound, match=f"persist checkpoints {SHARD}"):
        plan_restore(shard.client, SHARD, shard.client.ids.uuid7())
    with pytest.raises(InvalidInput, match=f"changed by 5 updates.*limit is 3.*--max-updates.*--to {first} --as"):
        plan_restore(shard.client, SHARD, first, max_updates=3)
    assert shard.client.state(SHARD) == state
    shard.client.set_history(SHARD, 10)
    shard.client.advance_since(SHARD)
    with pytest.raises(OutsideFrontiers, match="since 10, upper 20"):
        plan_restore(shard.client, SHARD, first)


def test_a_closed_shard_can_only_be_forked(shard: Collection) -> None:
    first = shard.run(10)
    shard.run(None)
    with pytest.raises(InvalidInput, match=r"is closed.*--as NEW_SHARD"):
        plan_restore(shard.client, SHARD, first)
    fork(shard.client, SHARD, first, "open", writer="test")
    assert shard.beside("open").upper() == 10
    last = shard.checkpointer.list_checkpoints()[-1]
    fork(shard.client, SHARD, last, "closed", writer="test")
    assert shard.client.state("closed").upper.is_closed


def test_broken_contents_are_not_picked_from(shard: Collection) -> None:
    first = shard.run(10)
    for upper in (20, 30):  # a rogue that inserts the same row twice
        shard.drop(f"{upper}.txt", [])
        description = shard.mint(upper)
        oks, _ = as_tables([UpsertDiff(("eu", 9), ("z", None, None), description.lower, 1)])
        writer = shard.client.open_writer(SHARD)
        stages.append(shard.client, description, writer.stage(description, SCHEMA, shard.client.ids.uuid7(), oks))
    with pytest.raises(InvariantViolation, match=r"more than once.*--as NEW_SHARD"):
        plan_restore(shard.client, SHARD, first)


def test_a_checkpoint_of_a_plain_writer_keeps_files(shard: Collection) -> None:
    shard.run(10)
    description = replace(shard.mint(20), sources={}, input_key=None)
    key = shard.client.open_writer(SHARD).stage(description, SCHEMA, shard.client.ids.uuid7())
    stages.append(shard.client, description, key)
    stages.checkpoint(shard.client, shard.config)
    assert shard.checkpointer.load_manifest(description.checkpoint_id).source_offsets == {}
    shard.drop("3.txt", [])
    shard.run(30)
    shard.go_back(description.checkpoint_id)
    assert shard.files_of(shard.mint(40)) == ["3.txt"]


def test_where_newer_parts_are_lost_a_fork_goes_back(shard: Collection) -> None:
    first = shard.run(10)
    shard.drop("3.txt", [ok(A, "three", 12, row=7)])
    shard.run(20)
    for part in shard.client.manifest(shard.client.state(SHARD).batches[-1]).parts:
        shard.client.blob.delete(part.key)
    with pytest.raises(CorruptArtifact, match=r"part .* is missing"):
        plan_restore(shard.client, SHARD, first)
    fork(shard.client, SHARD, first, "twin", writer="test")
    twin = shard.beside("twin")
    twin.run(20)
    assert set(twin.contents(19)) == {A, B}
    twin.check()


def test_deletes_are_undone_too(shard: Collection) -> None:
    first = shard.run(10)
    shard.drop("3.txt", [Record(A, TOMBSTONE, 12, (9, "f", 0, 0))])
    shard.run(20)
    assert A not in shard.contents(19)
    plan = shard.plan(first)
    assert (plan.updates.counts.insertions, plan.updates.counts.retractions) == (1, 1)
    shard.go_back(first)
    assert A in shard.read(20)


def test_a_checkpoint_in_a_merged_empty_batch_is_restored(shard: Collection) -> None:
    shard.run(10)
    shard.run(20)
    inside = shard.run(30)
    last = shard.run(40)
    shard.drop("3.txt", [ok(A, "newer", 45, row=9)])
    shard.run(50)
    bounds = [(batch.lower, batch.upper) for batch in shard.client.state(SHARD).batches]
    assert bounds == [(0, 10), (10, 20), (20, 40), (40, 50)]
    wanted = shard.contents(29)
    for checkpoint, upper in ((inside, 30), (last, 40)):
        name = f"twin-{upper}"
        fork(shard.client, SHARD, checkpoint, name, writer="test")
        twin = shard.client.state(name)
        assert (twin.upper, twin.batches[-1].upper) == (Frontier(upper), upper)
        assert shard.beside(name).contents(upper - 1) == wanted
        found = fsck(shard.client, name)
        assert found.is_clean, found.violations
    shard.go_back(inside)
    assert shard.contents(50) == wanted
    assert fsck(shard.client, SHARD).is_clean
    assert shard.files_of(shard.mint(60)) == ["3.txt"]
