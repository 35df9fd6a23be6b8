"""Maintenance: what is due is merged, with a bound; after checkpoints too; and what is owed shows."""

from __future__ import annotations

import errno
import json
import tempfile
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.compaction import files, merge
from persist_core.compaction.due import TASK_BATCHES, TASK_ROWS, TASK_SINCE_MS, Debt, DueMerge, debt_of, next_merge
from persist_core.compaction.files import RunFiles
from persist_core.compaction.merge import Merge, merge_here
from persist_core.compaction.spill import Spill
from persist_core.config.project import MaintenanceConfig
from persist_core.errors import StorageError
from persist_core.gc.collect import GRACE_MS, INTENT_MS
from persist_core.handles.client import PersistClient
from persist_core.keys import part_key
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.maintain import INLINE_BATCHES, maintain, maintain_inline, whole_debt_of
from persist_core.shard.replace import NotReplaced, Replaced
from tests.core.compaction.histories import KEYED, History
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.oracle.upsert import Record
from tests.plain_commit import commit
from tests.virtual import ManualClock, SeededIds


def shard_with(batches: int) -> History:
    blob = MemBlob()
    made = History(OpenLocation(blob, MemConsensus()), KEYED, seed=2)
    blob._clock = made.client.clock  # the store's time passes with the client's
    for _ in range(batches):
        made.append()
    return made


def test_due_batches_are_merged_and_nothing_else_changes() -> None:
    made = shard_with(40)
    before = len(made.state.batches)
    done = maintain(made.client, "s")
    assert done.merges
    assert (done.batches_before, done.batches_after) == (before, len(made.state.batches))
    assert done.batches_after < 10
    assert next_merge(made.state.batches) is None
    assert maintain(made.client, "s").merges == 0
    made.check()


def test_what_is_too_large_is_owed_and_not_done() -> None:
    made = shard_with(12)
    done = maintain(made.client, "s", max_rows=1)
    assert done.merges == 0
    assert done.owed.merge is not None
    assert done.owed.merge.rows > 1
    assert str(done).endswith(f". Still due: a merge of 11 batches, {done.owed.merge.rows} rows")
    assert maintain(made.client, "s", max_merges=0).merges == 0


def test_a_large_merge_is_done_in_steps() -> None:
    made = shard_with(12)
    merges = [maintain(made.client, "s", max_merges=1, budget_bytes=1)]
    assert made.state.batches[0].is_partial
    assert str(merges[0]).endswith(". Still due: the rest of a merge")
    while made.state.batches[0].is_partial:
        made.append()
        merges.append(maintain(made.client, "s", max_merges=1, budget_bytes=1))
        made.check()
    assert len(merges) > 2


def test_a_fork_does_not_go_on_with_a_merge_of_files_it_shares() -> None:
    made = shard_with(12)
    maintain(made.client, "s", max_merges=1, budget_bytes=1)
    assert made.state.batches[0].is_partial
    while not made.forks:
        made.fork()
    (fork,) = made.forks
    assert fork.state.batches[0].is_partial
    assert maintain(fork.client, fork.shard, budget_bytes=1).merges == 0
    while not maintain(fork.client, fork.shard, budget_bytes=1).merges:
        fork.append()
    fork.check()
    made.check()


def test_expired_leases_end() -> None:
    made = shard_with(3)
    made.client.open_leased_reader("s", lease_ms=10)
    kept = made.client.open_leased_reader("s", lease_ms=10_000)
    clock = made.client.clock
    assert isinstance(clock, ManualClock)
    clock.sleep_ms(11)
    assert len(maintain(made.client, "s").expired_leases) == 1
    assert len(made.state.leases) == 1
    kept.heartbeat()


def test_many_commits_are_merged_after_their_checkpoints(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    for number in range(INLINE_BATCHES + 20):
        record = Record(("eu", number % 7), (f"v{number}", None, None), None, (0, f"{number}", 0, 0))
        shard.drop(f"{number}.txt", [record])
        shard.run(10 * number + 10)
        maintain_inline(shard.client, SHARD)
        assert len(shard.client.state(SHARD).batches) <= INLINE_BATCHES
    assert any(shard.client.manifest(batch).run for batch in shard.client.state(SHARD).batches)
    assert fsck(shard.client, SHARD).is_clean


def test_a_merge_that_fails_does_not_fail_the_checkpoint() -> None:
    made = shard_with(INLINE_BATCHES + 8)
    manifest = made.client.manifest(made.state.batches[1])
    made.client.blob.delete(manifest.parts[0].key)
    said = maintain_inline(made.client, "s")
    assert said is not None
    assert "s: maintenance failed: corrupt_artifact" in said


@pytest.mark.parametrize("fault", ["sorting", "waiting", "no folder"])
def test_a_local_disk_that_fails_does_not_fail_the_checkpoint(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shard_with(INLINE_BATCHES + 8)
    for module in (merge, files):
        monkeypatch.setattr(module, "BYTES_AT_ONCE", 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    match fault:
        case "sorting":
            monkeypatch.setattr(Spill, "_write", full)
        case "waiting":
            monkeypatch.setattr(RunFiles, "_on_disk", full)
        case _:
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    said = maintain_inline(made.client, "s")
    assert said is not None
    assert "s: maintenance failed: storage: rows are sorted on the local disk, in " in said
    with pytest.raises(StorageError, match="rows are sorted on the local disk"):
        maintain(made.client, "s")
    monkeypatch.undo()
    made.check()


def test_the_command_merges_and_describe_says_what_is_due(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uris = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    with open_location(uris) as location:
        clock = ManualClock(1_700_000_000_000)
        client = PersistClient(location, clock, SeededIds(1, clock))
        for number in range(12):
            commit(client, "s", KEYED, number + 1, [((number, "eu", None, "x"), number, 1)])
    where = ["--blob-uri", uris.blob_uri, "--consensus-uri", uris.consensus_uri, "--json"]
    assert run_command(["describe", "s", *where]) == 0
    assert json.loads(capsys.readouterr().out)["due_merge"] == {"batches": 12, "rows": 12}
    assert run_command(["maintain", *where]) == 0
    (done,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (done["shard"], done["merges"], done["batches_after"], done["owed"]["merge"]) == ("s", 1, 1, None)
    assert run_command(["describe", "s", *where]) == 0
    assert json.loads(capsys.readouterr().out)["due_merge"] is None
    assert run_command(["maintain", "s", "missing", *where[:-1]]) == 3
    shown = capsys.readouterr()
    assert "nothing to do" in shown.out
    assert "missing" in shown.err
    assert run_command(["snapshot", "s", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_large_merges_go_elsewhere_and_lost_ones_are_named() -> None:
    made = shard_with(12)
    elsewhere: list[int] = []

    def merge(due: Merge) -> Replaced | NotReplaced:
        elsewhere.append(len(due.inputs))
        merge_here(made.client, due, attempt=made.client.ids.uuid7())
        return merge_here(made.client, due, attempt=made.client.ids.uuid7())

    done = maintain(made.client, "s", max_rows=1, merge_elsewhere=merge)
    assert (elsewhere, done.merges, done.lost_merges) == ([11], 0, 1)
    assert str(done).startswith("s: merges that another process did first: 1; found ")
    made.check()


def test_since_follows_the_upper_and_what_holds_it_back_is_said() -> None:
    made = shard_with(10)
    upper = made.state.upper.time
    assert upper is not None
    made.client.set_history("s", 2)
    assert debt_of(made.state, now_ms=0).since_behind_ms == upper - 2
    made.client.open_since("s", "view")
    done = maintain(made.client, "s")
    assert (done.since, done.held_by) == (0, "hold view")
    assert "since is held back by hold view" in str(done)
    made.client.open_since("s", "view").release()
    done = maintain(made.client, "s")
    assert (done.since, done.since_advanced_ms, done.held_by) == (upper - 2, upper - 2, None)
    assert f"since is now {upper - 2}" in str(done)
    assert not maintain(made.client, "s").did
    made.check()


def test_what_merges_left_is_collected_when_it_is_due() -> None:
    made = shard_with(12)
    clock = made.client.clock
    assert isinstance(clock, ManualClock)
    first = maintain(made.client, "s")
    assert first.merges
    assert first.collected.marked
    assert not first.collected.deleted
    assert not whole_debt_of(made.client, made.state, grace_ms=GRACE_MS).collects
    deleted = 0
    for _ in range(INTENT_MS // GRACE_MS + 2):
        clock.sleep_ms(GRACE_MS)
        assert whole_debt_of(made.client, made.state, grace_ms=GRACE_MS).is_worth_a_task
        deleted += maintain(made.client, "s").collected.deleted
    assert deleted >= first.collected.marked
    made.check()


def test_the_checkpoint_task_collects_after_two_graces() -> None:
    made = shard_with(3)
    clock = made.client.clock
    assert isinstance(clock, ManualClock)
    made.client.blob.set(part_key("s", made.client.ids.uuid7(), "insertions", 0), b"an attempt that died")
    clock.sleep_ms(GRACE_MS)
    assert maintain_inline(made.client, "s") is None
    clock.sleep_ms(GRACE_MS)
    said = maintain_inline(made.client, "s")
    assert said is not None
    assert "unneeded files" in said
    assert maintain_inline(made.client, "s") is None


def test_the_checkpoint_task_waits_as_long_as_the_project_says() -> None:
    made = shard_with(3)
    clock = made.client.clock
    assert isinstance(clock, ManualClock)
    made.client.blob.set(part_key("s", made.client.ids.uuid7(), "insertions", 0), b"an attempt that died")
    project = MaintenanceConfig(grace_hours=240, intent_hours=720)
    for wait_ms in (2 * GRACE_MS, 18 * GRACE_MS - 1):
        clock.sleep_ms(wait_ms)
        assert maintain_inline(made.client, "s", project) is None
    clock.sleep_ms(1)
    assert "unneeded files" in str(maintain_inline(made.client, "s", project))


@pytest.mark.parametrize(
    ("debt", "is_worth"),
    [
        (Debt(), False),
        (Debt(DueMerge(TASK_BATCHES - 1, TASK_ROWS - 1)), False),
        (Debt(DueMerge(TASK_BATCHES, 1)), True),
        (Debt(DueMerge(2, TASK_ROWS)), True),
        (Debt(expired_leases=("reader",)), True),
        (Debt(gc_due_ms=-1), False),
        (Debt(gc_due_ms=0), True),
        (Debt(since_behind_ms=TASK_SINCE_MS - 1, history_ms=0), False),
        (Debt(since_behind_ms=TASK_SINCE_MS, history_ms=0), True),
        (Debt(since_behind_ms=TASK_SINCE_MS, history_ms=30 * TASK_SINCE_MS), False),
        (Debt(since_behind_ms=3 * TASK_SINCE_MS, history_ms=30 * TASK_SINCE_MS), True),
    ],
)
def test_small_debt_is_not_worth_a_task(debt: Debt, is_worth: bool) -> None:
    assert debt.is_worth_a_task == is_worth
