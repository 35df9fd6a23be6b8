"""Maintenance: what is due is merged, with a bound; after checkpoints too; and what is owed shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from persist_core.cli.main import run_command
from persist_core.clock import ManualClock
from persist_core.compaction.maintain import INLINE_BATCHES, maintain, maintain_inline
from persist_core.compaction.plan import next_merge
from persist_core.handles.client import PersistClient
from persist_core.ids import SeededIds
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.oracle.upsert import Record
from tests.core.compaction.histories import KEYED, History
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.plain_commit import commit


def shard_with(batches: int) -> History:
    made = History(OpenLocation(MemBlob(), MemConsensus()), KEYED, seed=2)
    for _ in range(batches):
        made.append()
    return made


def test_everything_that_is_due_is_merged_and_nothing_else_changes() -> None:
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
    assert done.owed_rows > 1
    assert "is due" in str(done)
    assert maintain(made.client, "s", max_merges=0).merges == 0


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
        assert len(shard.client.state(SHARD).batches) <= INLINE_BATCHES
    assert any(shard.client.manifest(batch).run for batch in shard.client.state(SHARD).batches)
    assert fsck(shard.client, SHARD).is_clean


def test_a_merge_that_fails_does_not_fail_the_checkpoint() -> None:
    made = shard_with(INLINE_BATCHES + 8)
    manifest = made.client.manifest(made.state.batches[1])
    made.client.blob.delete(manifest.parts[0].key)
    said = maintain_inline(made.client, made.state)
    assert said is not None
    assert "was not merged: corrupt_artifact" in said


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
    assert (done["shard"], done["merges"], done["batches_after"], done["owed_rows"]) == ("s", 1, 1, 0)
    assert run_command(["describe", "s", *where]) == 0
    assert json.loads(capsys.readouterr().out)["due_merge"] is None
    assert run_command(["maintain", "s", "missing", *where[:-1]]) == 3
    shown = capsys.readouterr()
    assert "1 -> 1" in shown.out
    assert "missing" in shown.err
    assert run_command(["snapshot", "s", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
