"""A second operator, defined here, with other intervals between its snapshots than the stash.

Nothing in the core knows operators by anything but their names, so both go through commit, publication, retention,
recovery, restore and fork alike.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from persist_core.checkpoint.manifest import CheckpointManifest, PartitionState, SavedOperator, walk
from persist_core.checkpoint.recovery import VERIFIED_BYTES, RecoveredState, recover, recover_newest
from persist_core.checkpoint.retention import plan_retention
from persist_core.contents.batch import BatchDescription
from persist_core.contents.operator_state import OrderFacts, StateArtifact, chain_digest
from persist_core.errors import CorruptArtifact, InvalidInput, StateNotRead
from persist_core.gc.needs import Needs
from persist_core.location.mem import MemBlob
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.sealed import from_plain
from persist_core.shard.state import Committed
from tests.core.checkpoint.checkpointed_shard import KEEP_ONE, Shard
from tests.core.world import KEYS
from tests.suites.checkpoint_conformance import checkpoint_ids

STASH_EVERY, INDEX_EVERY = 2, 5


def rhythms(count: int) -> tuple[Shard, list[str]]:
    """`count` commits: a full stash in every second, a full index in every fifth, an unchanged index in every third."""
    shard, ids = Shard(), []
    for n in range(count):
        index = None if n % 3 == 2 and n % INDEX_EVERY else b"index %d" % n
        ids.append(
            shard.commit_states(
                {"upsert": (n % STASH_EVERY != 0, b"stash %d" % n), "index": (n % INDEX_EVERY != 0, index)}
            )
        )
    return shard, ids


def expected(newest: int) -> dict[str, list[bytes]]:
    """The chains after commit `newest`."""
    stash = range(newest - newest % STASH_EVERY, newest + 1)
    index = range(newest - newest % INDEX_EVERY, newest + 1)
    return {
        "index": [b"index %d" % n for n in index if not (n % 3 == 2 and n % INDEX_EVERY)],
        "upsert": [b"stash %d" % n for n in stash],
    }


def found(shard: Shard, checkpoint_id: str) -> dict[str, list[bytes]]:
    return {name: shard.state_of(name, checkpoint_id) for name in shard.operators(checkpoint_id)}


def test_each_operator_has_its_own_chain() -> None:
    shard, ids = rhythms(12)
    for n, checkpoint_id in enumerate(ids):
        assert found(shard, checkpoint_id) == expected(n)
    state = shard.client.state("s")
    chains = recover_newest(shard.client, state).operators
    assert {name: chain_digest(chain) for name, chain in chains.items()} == state.operators
    shard.publish()
    assert fsck(shard.client, "s").is_clean


@pytest.mark.parametrize("count", range(1, 12))
def test_retention_keeps_the_ancestors_of_every_operator(count: int) -> None:
    shard, ids = rhythms(count)
    shard.publish(KEEP_ONE)
    oldest = min(count - 1 - (count - 1) % every for every in (STASH_EVERY, INDEX_EVERY))
    assert shard.checkpointer.list_checkpoints() == ids[oldest:]
    assert found(shard, ids[-1]) == expected(count - 1)
    assert fsck(shard.client, "s").is_clean


def test_copies_alone_give_the_same_chains() -> None:
    """With every staged artifact deleted, as with a commit that the state no longer lists."""
    shard, ids = rhythms(9)
    shard.publish(KEEP_ONE)
    for entry in list(shard.blob.list_keys_and_metadata("s/batches/")):
        if entry.key.endswith(".bin"):
            shard.blob.delete(entry.key)
    assert found(shard, ids[-1]) == expected(8)
    notices = recover_newest(shard.client, shard.client.state("s")).notices
    assert len(notices) == sum(map(len, expected(8).values()))


def test_a_restore_and_a_fork_bring_back_every_operator() -> None:
    shard, ids = rhythms(9)
    shard.publish()
    fork(shard.client, "s", ids[6], "twin", writer="test")
    twin = shard.client.state("twin")
    newest = twin.newest_commit
    assert newest is not None
    chains = recover(shard.client, twin, newest.checkpoint_id).operators
    assert {name: [shard.blob.get(each.key) for each in chain] for name, chain in chains.items()} == expected(6)
    plan = plan_restore(shard.client, "s", ids[3])
    assert isinstance(plan, RestorePlan)
    done = restore(shard.client, plan, writer="test")
    assert isinstance(done, Committed)
    assert found(shard, done.commit.checkpoint_id) == expected(3)
    for name in ("s", "twin"):
        assert fsck(shard.client, name).is_clean, fsck(shard.client, name).violations


def test_a_batch_that_ignored_an_operator_is_refused() -> None:
    shard, _ = rhythms(3)
    description = BatchDescription(
        "s", 3, 4, token="other", checkpoint_id=shard.client.ids.uuid7(), epoch=4, parent_id=shard.parent, writer="w",
        operators={"upsert": shard.chains["upsert"]},
    )  # fmt: skip
    key = shard.writer.stage(description, KEYS, shard.client.ids.uuid7())
    with pytest.raises(StateNotRead, match="index"):
        shard.writer.compare_and_append(shard.client.staged_manifest(key), key)


def manifest(number: int, **rhythm: bool) -> CheckpointManifest:
    """The `number`th of a chain; `rhythm` says for each operator whether it is a delta."""
    part = PartitionState(0, True, "x", 1, "00")
    return CheckpointManifest(
        IDS[number],
        number + 1,
        1000 * number,
        operators={name: SavedOperator((part,), 1, is_delta) for name, is_delta in rhythm.items()},
        parent_id=IDS[number - 1] if number else None,
    )


def test_a_chain_without_a_full_snapshot_is_corrupt() -> None:
    by_id = {m.checkpoint_id: m for m in (manifest(0, a=False), manifest(1, a=True, b=True), manifest(2, a=True))}
    assert [(link.checkpoint_id, set(names)) for link, names in walk(by_id[IDS[2]], by_id.__getitem__)] == [
        (IDS[2], {"a"}), (IDS[1], {"a"}), (IDS[0], {"a"}),
    ]  # fmt: skip
    with pytest.raises(CorruptArtifact, match=f"{IDS[0]} has no state of b"):
        list(walk(by_id[IDS[1]], by_id.__getitem__))
    endless = {IDS[0]: manifest(0, a=False), IDS[1]: manifest(1, a=True)}
    endless[IDS[0]] = CheckpointManifest(IDS[0], 1, 0, operators=endless[IDS[1]].operators, parent_id=IDS[1])
    with pytest.raises(CorruptArtifact, match="no full snapshot of a"):
        list(walk(endless[IDS[1]], endless.__getitem__))


def test_retention_keeps_all_that_a_broken_chain_may_need() -> None:
    """The manifest in the middle of the chain cannot be read: so the older ones that it needs are not known."""
    chain = [manifest(0, a=False), manifest(1, a=False), manifest(3, a=True), manifest(4, a=False)]
    assert plan_retention(chain, KEEP_ONE, latest_id=None, pinned=[IDS[3]]) == []
    whole = [chain[0], chain[1], manifest(2, a=False), *chain[2:]]
    doomed = plan_retention(whole, KEEP_ONE, latest_id=None, pinned=[IDS[3]])
    assert doomed == [IDS[1], IDS[0]]


def test_a_refused_deletion_names_all_dependents() -> None:
    shard, ids = rhythms(9)
    shard.publish()
    shard.checkpointer.pin(ids[2])
    for needed in ids[:8]:
        building = {each for each in ids if each != needed and needed in shard.checkpointer.needed_by(each)}
        if building & {ids[2], ids[8]}:
            with pytest.raises(InvalidInput, match="These build on it: ") as refused:
                shard.checkpointer.delete_checkpoint(needed)
            assert set(str(refused.value).partition("These build on it: ")[2].split(", ")) == building
            assert len(building) > 1 or needed == ids[7]


def test_the_root_of_a_pinned_chain_cannot_be_deleted() -> None:
    shard, ids = rhythms(9)
    shard.publish()
    shard.checkpointer.pin(ids[3])
    for needed in (0, 1, 2):
        with pytest.raises(InvalidInput, match=f"{ids[3]}, which is pinned, builds on it"):
            shard.checkpointer.delete_checkpoint(ids[needed])
    with pytest.raises(InvalidInput, match="is pinned"):
        shard.checkpointer.delete_checkpoint(ids[3])
    assert shard.checkpointer.delete_checkpoint(ids[4]), "no pinned one and not the latest builds on it"
    shard.publish(KEEP_ONE)
    assert shard.checkpointer.list_checkpoints() == [*ids[:4], *ids[5:]]
    shard.checkpointer.unpin(ids[3])
    shard.publish(KEEP_ONE)
    assert shard.checkpointer.list_checkpoints() == ids[5:]


IDS = checkpoint_ids(6)


class Counting(MemBlob):
    """Says which keys were fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.fetched.append(key)
        return super().get(key)


def test_a_mint_fetches_a_bounded_part_of_operator_state() -> None:
    blob = Counting()
    shard = Shard(blob)
    shard.commit(state=b"a" * VERIFIED_BYTES)
    newest = shard.commit(is_delta=True, state=b"b")
    shard.publish()
    state, (large, small) = shard.client.state("s"), shard.chains["upsert"]
    blob.fetched.clear()
    assert recover_newest(shard.client, state) == RecoveredState({"upsert": (large, small)})
    assert [key for key in blob.fetched if key.endswith(".bin")] == [small.key]

    whole = blob.get(large.key)
    assert whole is not None
    blob.set(large.key, b"z" + whole[1:])
    assert recover_newest(shard.client, state).notices == ()
    assert [v.check for v in fsck(shard.client, "s").violations] == ["operator_state"]
    assert len(recover(shard.client, state, newest).notices) == 1, "a restore verifies every digest"

    blob.set(large.key, whole[1:])
    (used, _), notices = (found := recover_newest(shard.client, state)).operators["upsert"], found.notices
    assert "is used instead" in notices[0]
    assert blob.get(used.key) == whole


def test_facts_about_rows_survive_in_checkpoints() -> None:
    orders = OrderFacts(((1, "a", None), 5), None, (((2, "b", 3), 6),), has_bad_keys=False)
    known = StateArtifact(0, "s/batches/a/x.bin", 8, "e" * 64, 2, 5, 6, (1,), (7, "z"), orders)
    assert from_plain(StateArtifact, json.loads(json.dumps(asdict(known))), what="") == known
    for other in (replace(known, last_time=7), replace(known, rows=None), replace(known, orders=None)):
        assert chain_digest([other]) != chain_digest([known])
    assert chain_digest([replace(known, key="s/batches/b/y.bin", partition_id=3)]) == chain_digest([known])
    part = PartitionState(0, False, "operators/x/partition-0.snap", 8, "e" * 64, known.facts)
    manifest = CheckpointManifest(
        checkpoint_id=checkpoint_ids(1)[0], epoch=1, timestamp_ms=1, operators={"x": SavedOperator((part,), 8)}
    )
    (read,) = CheckpointManifest.decode(manifest.encode()).operators["x"].partitions
    assert read.artifact(known.key) == known
    assert not manifest.differences(CheckpointManifest.decode(manifest.encode()))


def test_carried_files_have_no_copy_and_survive_gc_and_forks() -> None:
    """A full state that names older files again: published, under GC, and when its commit is forgotten."""
    shard = Shard()
    shard.commit()
    shard.commit(is_delta=True)
    carried = tuple(replace(each, is_carried=True) for each in shard.chains["upsert"])
    newest = shard.commit_states({"upsert": (False, b"stash-3")}, carried={"upsert": carried})
    shard.publish(KEEP_ONE)
    assert shard.checkpointer.list_checkpoints() == [newest]
    copies = [e.key for e in shard.blob.list_keys_and_metadata(f"s/checkpoints/{newest}/operators/")]
    assert len(copies) == 1, "one copy, of what is new"
    whole = [b"stash-1", b"stash-2", b"stash-3"]
    assert shard.stash(newest) == whole
    state = shard.client.state("s")
    for known in (state, replace(state, commits=())):  # as after many more commits
        assert {each.key for each in carried} <= Needs(shard.client, "s").of(known)
    for known in (state, replace(state, commits=())):  # as after many more commits
        found = recover(shard.client, known, newest).operators["upsert"]
        assert [shard.blob.get(each.key) for each in found] == whole
    assert recover_newest(shard.client, state).notices == ()
    fork(shard.client, "s", newest, "twin", writer="test")
    twin = shard.client.manifest(shard.client.state("twin").commits[-1]).operators["upsert"].artifacts
    assert [(shard.blob.get(each.key), each.is_carried) for each in twin] == [(data, False) for data in whole]
    assert fsck(shard.client, "s").is_clean
    shard.blob.delete(carried[0].key)
    with pytest.raises(CorruptArtifact, match="is missing"):
        recover_newest(shard.client, state)
    assert {v.check for v in fsck(shard.client, "s").violations} >= {"operator_state", "checkpoint"}
