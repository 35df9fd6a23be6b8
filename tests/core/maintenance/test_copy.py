"""`persist copy` between all kinds of stores, beside appends, merges and GC at both ends."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.pins import pin, unpin
from persist_core.checkpoint.publish import publish_missing
from persist_core.errors import CorruptArtifact, RunFailed
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.drop import drop
from persist_core.maintenance.fsck import fsck
from persist_core.protocol.fork import fork
from persist_core.shard.state import ShardState
from persist_core.sources.shards import Refreshed
from tests.core.compaction.histories import KEYED, MULTISET, SEQUENCED, History
from tests.core.gc.test_kills import SHARD as FRUIT
from tests.core.gc.test_kills import make_garbage
from tests.core.maintenance.copies import PAIRS, Client, check_equal, copy_all, keys_of, merge_all, opened
from tests.core.maintenance.damaged_location import FORK, SHARDS, Complete, InMemory
from tests.core.protocol.restored_shard import SHARD
from tests.plain_commit import commit
from tests.sampling import sample
from tests.sim.simulator.reachable import reachable

STEPS = {"dev": 20, "ci": 20, "nightly": 400}


class _Stored(InMemory):
    """A location of any kind, as `Complete` takes it."""

    def __init__(self, location: OpenLocation) -> None:
        self.location = location

    def names(self) -> list[str]:
        return []


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize("pair", sample(PAIRS, 1, "pairs of locations"))
def test_a_copy_answers_as_its_source(pair: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A collection with stash, checkpoints, a ledger and a lost append, a fork of it and a view of it."""
    kind, _, other = pair.partition(" to ")
    (tmp_path / "work").mkdir()
    with (
        opened(kind, tmp_path / "a", request) as here,
        opened(other, tmp_path / "b", request) as there,
        opened(kind, tmp_path / "c", request) as back,
    ):
        complete = Complete(_Stored(here), tmp_path / "work")
        source = complete.client
        pin(source, SHARD, complete.commits[-3].checkpoint_id)
        target, again = PersistClient(there, fetch_threads=2), PersistClient(back, fetch_threads=2)
        copied = copy_all(source, target)
        assert {name: each.is_new for name, each in copied.items()} == dict.fromkeys(SHARDS, True)
        copy_all(target, again)
        expected = _answers(complete)
        for copy in (target, again):
            complete.client = complete.things.client = copy
            copy.clock = source.clock
            for shard in SHARDS:
                check_equal(source, copy, shard)
                listed = Checkpointer(copy.blob, shard).listing()
                theirs = Checkpointer(source.blob, shard).listing()
                assert (listed.manifests, listed.pinned) == (theirs.manifests, theirs.pinned)
                assert set(keys_of(copy, shard)) == reachable(copy.blob, copy.location.consensus, shard)
            answers = _answers(complete)
            eras = {name: (answers.pop(name), expected[name]) for name in [*expected] if name.startswith("mint")}
            assert answers == {name: each for name, each in expected.items() if name not in eras}
            for found, wanted in eras.values():  # a copy begins an era of its own
                different = {name for name in wanted if found[name] != wanted[name]}
                assert different <= {"era", "input_key", "sources", "token"}


def _answers(complete: Complete) -> dict[str, Any]:
    """All but the frozen input of a description that is not committed: it stays where it was minted."""
    answers = {name: question() for name, question in complete.answers() if name != "frozen files"}
    answers["forks"] = [replace(record, era=0) for record in answers["forks"]]  # of the owner's, in each place
    return answers


def test_a_second_copy_moves_only_what_is_new() -> None:
    source, target = Client(), Client()
    for day in range(1, 4):
        make_garbage(source, day)
    copy_all(source, target)
    written, seqno = target.counted.of("set"), target.state(FRUIT).seqno
    assert len(written) > 5
    before = keys_of(source, FRUIT)
    done = copy_all(source, target)[FRUIT]
    assert (done.objects, done.size_bytes, done.is_new) == (0, 0, False)
    assert done.known == len(reachable(source.blob, source.location.consensus, FRUIT))
    assert target.state(FRUIT).seqno <= seqno + 1, "GC may begin an era"
    assert [key for key in target.counted.of("set") if "/gc/" not in key and "_copy/" not in key] == []
    source.counted.of("get")
    make_garbage(source, 4)
    done = copy_all(source, target)[FRUIT]
    new = {key: size for key, size in keys_of(source, FRUIT).items() if key not in before}
    moved = [key for key in target.counted.of("set") if "/gc/" not in key and "_copy/" not in key]
    needed = reachable(source.blob, source.location.consensus, FRUIT)
    assert sorted(moved) == sorted(key for key in new if key in needed)
    assert (done.objects, done.size_bytes) == (len(moved), sum(new[key] for key in moved))
    check_equal(source, target, FRUIT)


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize("schema", [KEYED, SEQUENCED, MULTISET], ids=["keyed", "in order", "view"])
def test_random_histories_with_maintenance_at_both_ends(schema: Any, persist_seed: int) -> None:
    """Copies at any moment, of the shard and of its forks, and copies of copies; the targets merge and collect too."""
    chance = random.Random(persist_seed)
    history = History(OpenLocation(MemBlob(), MemConsensus()), schema, persist_seed)
    source = history.client
    targets = [Client() for _ in range(2)]
    for target in targets:
        target.part_format, target.clock = source.part_format, source.clock
    for _ in range(STEPS[settings.get_current_profile_name()]):
        chance.choice([history, *history.forks]).step()
        target = chance.choice(targets)
        match chance.randrange(8):
            case 0 | 1:
                name = chance.choice([history, *history.forks]).shard
                assert not any(each.notes for each in copy_all(source, target, name).values())
                check_equal(source, target, name)
            case 2:
                name = history.shard
                if targets[0].machine.fetch(name) is not None and targets[0].state(name).commits:
                    copy_all(targets[0], targets[1], name)
            case 3:
                for name in target.shards():
                    merge_all(target, name)
            case 4:
                _collect_all(source)
                _collect_all(target)
    for target in targets:
        copy_all(source, target)
        _collect_all(source)
        _collect_all(target)
        for each in (history, *history.forks):
            check_equal(source, target, each.shard)


def test_a_fork_brings_the_files_of_its_owner_and_gc_keeps_them(tmp_path: Path) -> None:
    complete = Complete(InMemory(tmp_path), tmp_path)
    target = Client()
    copy_all(complete.client, target, FORK)
    assert target.shards() == sorted([FORK, SHARD]), "GC deletes the owner's files, once no fork needs them"
    assert target.state(SHARD).batches == ()
    check_equal(complete.client, target, FORK)
    fork(target, FORK, target.state(FORK).commits[-1].checkpoint_id, "again", writer="test")
    copy_all(complete.client, target, SHARD)  # its state needs less of these files
    _collect_all(target)
    assert not fsck(target, "again").violations
    for name in (SHARD, FORK):
        check_equal(complete.client, target, name)
    assert copy_all(complete.client, target, FORK)[FORK].objects == 0


@pytest.mark.parametrize("is_dropped", [False, True], ids=["owner", "dropped owner"])
@pytest.mark.parametrize("ends", ["drop", "merge"])
def test_files_of_an_owner_that_was_not_copied_end(ends: str, is_dropped: bool) -> None:
    """GC at the target deletes them once the fork that came with them does not need them."""
    source, target = Client(), Client()
    make_garbage(source, 1)
    schema = source.state(FRUIT).schema
    assert schema is not None
    commit(source, FRUIT, schema, 100)
    publish_missing(source, source.state(FRUIT))
    fork(source, FRUIT, source.state(FRUIT).commits[-1].checkpoint_id, FORK, writer="test")
    if is_dropped:
        drop(source, FRUIT, is_forced=True)
    copy_all(source, target, FORK)
    assert {key.split("/")[1] for key in keys_of(target, FRUIT)} == {"batches", "forks"}
    if ends == "drop":
        drop(target, FORK)
    else:
        commit(target, FORK, schema, 200)
        merge_all(target, FORK)
    _collect_all(target)
    assert {key.split("/")[1] for key in keys_of(target, FRUIT)} == {"gc"}


def test_together_all_shards_are_as_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two looks at the states a commit happens, some times."""
    complete = Complete(InMemory(tmp_path), tmp_path)
    source, target = complete.client, Client()
    copier = Copier(source, target, threads=1)
    fetch, looks = source.state, [0]

    def state(shard: str) -> ShardState:
        looks[0] += 1
        if looks[0] in (8, 14):
            complete.things.run(complete.things.upper() + 10)
        return fetch(shard)

    monkeypatch.setattr(source, "state", state)
    (group,) = copier.groups(is_together=True)
    done = copier.copy(group)
    assert looks[0] > 14
    assert all(each.is_new for each in done), done
    for shard in SHARDS:
        check_equal(source, target, shard)


def test_together_gives_up_if_there_is_always_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Client(), Client()
    make_garbage(source, 1)
    schema = source.state(FRUIT).schema
    assert schema is not None
    commit(source, "other", schema, 10)
    fetch = source.state

    def state(shard: str) -> ShardState:
        if shard == "other":
            commit(source, FRUIT, schema, (fetch(FRUIT).upper.time or 0) + 1)
        return fetch(shard)

    copier = Copier(source, target, threads=1)
    (group,) = copier.groups(is_together=True)
    monkeypatch.setattr(source, "state", state)
    with pytest.raises(RunFailed, match="no moment without a commit"):
        copier.copy(group)
    assert target.shards() == []


@pytest.mark.parametrize("reads", [{}, {"x": ["y", "z"], "y": ["x"], "z": ["z"]}], ids=["layers", "cycles"])
def test_views_come_before_their_inputs(reads: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """40 layers of two views that read both views below; and views whose files were turned round between refreshes."""
    layers = {f"{view}{n}": [f"{each}{n - 1}" for each in "st" if n] for n in range(40) for view in "st"}
    source, reads = Client(), layers | reads
    for name in reads:
        source.ensure_shard(name)
    fetch = source.state

    def state(name: str) -> ShardState:
        return replace(fetch(name), sources={"shards": Refreshed(0, "", dict.fromkeys(reads[name], 1), {}).to_source()})

    monkeypatch.setattr(source, "state", state)
    (names,) = Copier(source, Client(), threads=1).groups(is_together=True)
    assert sorted(names) == sorted(reads)
    assert [name for name in names if name in layers] == [f"{view}{n}" for n in reversed(range(40)) for view in "st"]
    assert not {"x", "z"} < {*names} or names.index("x") < names.index("z")


@pytest.mark.family("histories in Python")
@pytest.mark.parametrize("end", ["source", "target"])
def test_gc_and_merges_at_any_moment(end: str, persist_seed: int) -> None:
    """Without any grace, at any of the copier's calls to the blobs of one end."""
    chance = random.Random(persist_seed)
    for number in range(STEPS[settings.get_current_profile_name()] // 2):
        source, target = Client(), Client()
        for day in range(1, 4):
            make_garbage(source, day)
            if day == 1 and number % 2:
                copy_all(source, target)
        client = source if end == "source" else target
        client.counted.at({chance.randrange(40) for _ in range(3)}, partial(_meddle, client, end))
        copy_all(source, target)
        client.counted.at(set())
        report = fsck(target, FRUIT)
        assert report.is_clean, report.violations
        assert "pear" in {row["name"] for row in target.open_reader(FRUIT).snapshot().to_pylist()}
        copy_all(source, target)
        _collect_all(target)
        check_equal(source, target, FRUIT)


def _meddle(client: PersistClient, end: str) -> None:
    if FRUIT not in client.shards() or not client.state(FRUIT).commits:
        return
    if end == "source":
        make_garbage(client, 1 + len(client.state(FRUIT).commits))
    else:
        merge_all(client, FRUIT)
    _collect_all(client)


def _collect_all(client: PersistClient) -> None:
    for name in client.shards():
        for _ in range(5):
            collect(client, name, grace_ms=0, intent_ms=0)


def test_damaged_objects_stay_and_lost_ones_are_copied_again() -> None:
    source, target = Client(), Client()
    make_garbage(source, 1)
    copy_all(source, target)
    before = target.state(FRUIT)
    make_garbage(source, 2)
    needed = reachable(source.blob, source.location.consensus, FRUIT) - keys_of(target, FRUIT).keys()
    part = next(key for key in sorted(needed) if key.endswith(".parquet"))
    whole = source.blob.get(part)
    assert whole is not None
    source.blob.set(part, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptArtifact, match=part):
        copy_all(source, target)
    assert target.state(FRUIT).commits == before.commits
    assert fsck(target, FRUIT).is_clean
    source.blob.set(part, whole)
    copy_all(source, target)
    target.blob.delete(part)
    assert not fsck(target, FRUIT).is_clean
    assert copy_all(source, target)[FRUIT].objects == 1
    check_equal(source, target, FRUIT)
    target.blob.set(part, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert copy_all(source, target)[FRUIT].objects == 0, "its size is the named one"
    verifying = Copier(source, target, threads=2, verifies=True)
    assert [verifying.copy([FRUIT])[0].objects for _ in range(2)] == [1, 0]
    check_equal(source, target, FRUIT)


def test_checkpoints_and_pins_follow_the_source(tmp_path: Path) -> None:
    complete = Complete(InMemory(tmp_path), tmp_path)
    source, target = complete.client, Client()
    kept = complete.commits[1].checkpoint_id
    pin(source, SHARD, kept)
    copy_all(source, target, SHARD)
    assert Checkpointer(target.blob, SHARD).pinned() == {kept}
    unpin(source, SHARD, kept)
    Checkpointer(source.blob, SHARD).delete_checkpoint(complete.commits[0].checkpoint_id)
    damaged = Checkpointer(source.blob, SHARD).layout.manifest(complete.commits[2].checkpoint_id)
    source.blob.set(damaged, b"not a manifest")
    copy_all(source, target, SHARD)
    ours, theirs = Checkpointer(target.blob, SHARD), Checkpointer(source.blob, SHARD)
    assert ours.pinned() == frozenset()
    assert set(ours.list_checkpoints()) == {*theirs.list_checkpoints(), complete.commits[2].checkpoint_id}
    assert ours.read_latest() == theirs.read_latest()


def test_a_reader_of_the_target_sees_one_of_two_states() -> None:
    """At each call of the copier to the target, and with a lease there that the copy outlives."""
    source, target = Client(), Client()
    make_garbage(source, 1)
    copy_all(source, target)
    lease = target.open_leased_reader(FRUIT, lease_ms=60_000)

    def shown(client: PersistClient) -> list[str]:
        return sorted(map(repr, client.open_reader(FRUIT).snapshot().to_pylist()))

    old = shown(target)
    make_garbage(source, 2)
    seen: list[list[str]] = []
    target.counted.at(range(10_000), lambda: seen.append(shown(target)))
    copy_all(source, target)
    target.counted.at(set())
    new = shown(source)
    assert old != new
    assert [each for each in seen if each == old] + [each for each in seen if each == new] == seen
    assert old in seen
    assert new in seen
    assert sorted(map(repr, lease.snapshot().to_pylist())) == new
