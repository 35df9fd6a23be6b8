"""Which copies `persist copy` replaces, and moving a shard: what it refuses."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.record import Notice
from persist_core.errors import InvalidInput, ShardMoved
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_blob
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.copy_objects import lists_of_erasures
from persist_core.maintenance.drop import drop
from persist_core.maintenance.erase import erase
from persist_core.maintenance.erase_objects import verify
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.shard.receive import AHEAD, TOO_LATE, Received, receive, relation_of
from persist_core.shard.state import MAX_COMMITS_KEPT
from tests.core.gc.test_kills import SHARD as FRUIT
from tests.core.gc.test_kills import make_garbage
from tests.core.maintenance.copies import Client, check_equal, copy_all, keys_of, merge_all, reads_of
from tests.core.maintenance.damaged_location import Complete, InMemory
from tests.core.protocol.restored_shard import SHARD
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.servers.s3 import S3Server

MOVES = {"dev": 8, "ci": 8, "nightly": 200}


def test_another_shard_of_that_name_is_never_replaced() -> None:
    source, target = Client(), Client()
    make_garbage(source, 1)
    make_garbage(target, 1)
    before = target.state(FRUIT)
    with pytest.raises(InvalidInput, match="has commits or erasures that the shard to be copied does not have"):
        copy_all(source, target)
    assert target.state(FRUIT) == before


def test_a_copy_that_was_written_to_is_never_replaced() -> None:
    source, target = Client(), Client()
    make_garbage(source, 1)
    copy_all(source, target)
    make_garbage(target, 2)
    assert copy_all(source, target)[FRUIT].notes == ("the target has a later state already",)
    make_garbage(source, 2)
    with pytest.raises(InvalidInput, match="drop it there first"):
        copy_all(source, target)
    drop(target, FRUIT)
    copy_all(source, target)
    check_equal(source, target, FRUIT)


def test_a_later_copy_stays_and_gaps_do_not_matter() -> None:
    """More commits than a state lists lie between two copies."""
    source, first, second = Client(), Client(), Client()
    make_garbage(source, 1)
    copy_all(source, first)
    for upper in range(20, 20 + MAX_COMMITS_KEPT + 10):
        commit(source, FRUIT, SCHEMA, upper)
    copy_all(source, second)
    assert copy_all(first, second)[FRUIT].notes == ("the target has a later state already",)
    assert copy_all(source, first)[FRUIT].is_new
    check_equal(source, first, FRUIT)


def test_a_backup_continues_elsewhere_after_a_loss() -> None:
    lost, backup, new = Client(), Client(), Client()
    make_garbage(lost, 1)
    copy_all(lost, backup)
    make_garbage(lost, 2)  # not in the backup
    copy_all(backup, new)
    make_garbage(new, 2)
    assert copy_all(new, backup)[FRUIT].is_new
    check_equal(new, backup, FRUIT)
    with pytest.raises(InvalidInput):
        copy_all(lost, backup)  # what was lost has another day 2


def with_two_dead_keys() -> PersistClient:
    """A source that has inserted and retracted the keys 1 and 2."""
    source = Client()
    for upper, diff in ((10, 1), (20, -1)):
        commit(source, FRUIT, SCHEMA, upper, [((number, "Ann"), upper - 1, diff) for number in (1, 2)])
    return source


def test_an_older_copy_never_replaces_an_erasure() -> None:
    """An erasure of a key that is not living makes no commit: only the lists of erasures differ."""
    source, target, other = with_two_dead_keys(), Client(), Client()
    copy_all(source, target)
    copy_all(source, other)
    for number in (1, 2):
        erase(source, FRUIT, [(number,)], by="me", reason="asked")
        erased = source.state(FRUIT)
        assert copy_all(target, source)[FRUIT].notes == ("the target has a later state already",)
        assert source.state(FRUIT) == erased
        assert verify(source, FRUIT, [(number,)]) == ()
        assert copy_all(source, target)[FRUIT].is_new
        check_equal(source, target, FRUIT)
        assert sum("/erased/" in key for key in keys_of(target, FRUIT)) == 1
    erase(other, FRUIT, [(2,)], by="me", reason="asked")
    with pytest.raises(InvalidInput, match="keys were erased in both places"):
        copy_all(source, other)
    commit(source, FRUIT, SCHEMA, 30)
    assert copy_all(source, target)[FRUIT].is_new
    with pytest.raises(InvalidInput, match="keys were erased in both places"):
        copy_all(source, other)


def test_a_later_copy_never_undoes_an_erasure() -> None:
    source, target = with_two_dead_keys(), Client()
    copy_all(source, target)
    erase(source, FRUIT, [(1,)], by="me", reason="asked")
    copy_all(source, target)
    assert erase(target, FRUIT, [(1,)], by="me", reason="asked").deleted  # what the copy has left there
    commit(source, FRUIT, SCHEMA, 30)
    assert copy_all(source, target)[FRUIT].is_new  # which knows of the erasure
    erase(target, FRUIT, [(2,)], by="me", reason="asked")
    commit(source, FRUIT, SCHEMA, 40)
    with pytest.raises(InvalidInput, match="or in the copy alone"):
        copy_all(source, target)
    assert verify(target, FRUIT, [(1,), (2,)]) == ()
    drop(target, FRUIT)
    assert copy_all(source, target)[FRUIT].is_new
    check_equal(source, target, FRUIT)


def test_lists_of_erasures_are_compared_or_read_again() -> None:
    """The transition refuses a list that the copier has not read: it was replaced meanwhile."""
    source, target = with_two_dead_keys(), Client()
    copy_all(source, target)
    erase(source, FRUIT, [(1,)], by="me", reason="asked")
    copy_all(source, target)
    erase(source, FRUIT, [(2,)], by="me", reason="asked")
    state, before = source.state(FRUIT), target.state(FRUIT)
    assert receive(before, state, era=before.era) == (before, TOO_LATE)
    lists = lists_of_erasures([(source, state), (target, before)])
    assert receive(before, state, era=before.era, erased=lists)[1] == Received(is_new=True)
    assert relation_of(state, before, lists) == AHEAD


def test_a_move_refuses_appends_and_can_go_back() -> None:
    source, target = Client(OpenLocation(MemBlob("move-a"), MemConsensus("move-a"))), Client()
    make_garbage(source, 1)
    board = WatchBoard(source)
    board.record_check(FRUIT, 3, "a part is damaged")
    unsent = Notice("1", "key", "conflict", FRUIT, "conflict", "warn", False, 0, 0, "an append lost", "", "", "")
    board.post(unsent)
    copy_all(source, target, is_move=True)
    before = reads_of(source, FRUIT)
    with pytest.raises(ShardMoved, match="was moved to blob mem:, consensus mem:"):
        make_garbage(source, 2)
    assert reads_of(source, FRUIT) == before == reads_of(target, FRUIT)
    merge_all(source, FRUIT)
    collect(source, FRUIT)
    assert fsck(source, FRUIT).is_clean
    moved = WatchBoard(target).read()
    assert (moved.of(FRUIT).check is not None, moved.unsent) == (True, (unsent,))
    assert board.read().of(FRUIT).is_empty
    make_garbage(target, 2)
    third = Client(OpenLocation(MemBlob("move-c"), MemConsensus("move-c")))
    with pytest.raises(ShardMoved):
        copy_all(source, third, is_move=True)
    assert third.location.consensus.head(FRUIT) is None
    copy_all(target, source, is_move=True)
    make_garbage(source, 3)
    check_equal(source, source, FRUIT)
    with pytest.raises(ShardMoved, match="move-a"):
        make_garbage(target, 3)


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_move_that_has_ended_never_closes_the_target(is_merged: bool) -> None:
    """It may be given again, with nothing new or a new state of the source, and be stopped at any moment."""
    source, target = Client(), Client()
    for day in (1, 2):
        make_garbage(source, day)
    schema = source.state(FRUIT).schema
    assert schema is not None
    commit(source, FRUIT, schema, 100)
    copy_all(source, target, is_move=True)
    if is_merged:
        merge_all(source, FRUIT)
    looks: list[str | None] = []
    for each in (source, target):
        each.counted.at(range(1000), lambda: looks.append(target.state(FRUIT).origin.moved_to))
    copy_all(source, target, is_move=True)
    assert len(looks) > 10
    assert set(looks) == {None}
    make_garbage(target, 11)


def test_an_append_beside_a_move_is_in_the_copy_or_refused(persist_seed: int) -> None:
    """At any of the copier's calls to the source."""
    chance = random.Random(persist_seed)
    for _ in range(MOVES[settings.get_current_profile_name()]):
        source, target = Client(), Client()
        make_garbage(source, 1)
        refused: list[bool] = []

        def append(client: PersistClient = source, refused: list[bool] = refused) -> None:
            try:
                make_garbage(client, 2)
            except ShardMoved:
                refused.append(True)
            else:
                refused.append(False)

        source.counted.at({chance.randrange(30)}, append)
        copy_all(source, target, is_move=True)
        source.counted.at(set())
        names = {row["name"] for row in target.open_reader(FRUIT).snapshot().to_pylist()}
        assert ("apple 2" in names) == (refused == [False])
        check_equal(source, target, FRUIT)


def test_a_dag_run_after_a_move_says_where_the_shard_is(tmp_path: Path) -> None:
    complete = Complete(InMemory(tmp_path), tmp_path)
    copy_all(complete.client, Client(), SHARD, is_move=True)
    with pytest.raises(ShardMoved, match=f"shard {SHARD} was moved to"):
        stages.mint(complete.client, complete.things.config, until=90, writer="dag/next")


@pytest.mark.parametrize(
    ("shared", "message"), [("blob", "are one blob store"), ("consensus", "is the consensus store of the source")]
)
def test_locations_that_share_a_store_are_refused(shared: str, message: str) -> None:
    source = Client()
    make_garbage(source, 1)
    blob = source.location.blob if shared == "blob" else MemBlob()
    target = Client(OpenLocation(blob, source.location.consensus if shared == "consensus" else MemConsensus()))
    before = keys_of(source, FRUIT)
    with pytest.raises(InvalidInput, match=message):
        copy_all(source, target)
    assert keys_of(source, FRUIT) == before
    assert list(target.blob.list_keys_and_metadata("_copy/")) == []


def test_a_dropped_shard_keeps_its_copy() -> None:
    source, target = Client(), Client()
    make_garbage(source, 1)
    copy_all(source, target)
    drop(source, FRUIT)
    assert Copier(source, target).groups() == []
    assert copy_all(source, target, FRUIT)[FRUIT].notes == ("dropped at the source: not copied",)
    assert target.open_reader(FRUIT).snapshot().num_rows
    copy_all(target, source)  # from the backup
    make_garbage(source, 2)
    assert fsck(source, FRUIT).is_clean


def test_a_copy_whose_objects_gc_may_have_deleted_is_refused() -> None:
    """By the target's compare-and-set: the era in which the copier looked for them is given up."""
    source, target = Client(), Client()
    make_garbage(source, 1)
    copy_all(source, target)
    make_garbage(source, 2)
    before = target.state(FRUIT)
    state = replace(before, era=before.era + 2, oldest_era=before.era + 1)
    assert receive(state, source.state(FRUIT), era=before.era) == (state, TOO_LATE)
    assert receive(state, source.state(FRUIT), era=state.era)[1] == Received(is_new=True)
    assert receive(before, source.state(FRUIT), era=0) == (before, TOO_LATE), "it did not exist when the copier looked"


def test_the_lease_keeps_a_state_through_merges_and_gc(persist_seed: int) -> None:
    """The copy is of the state that the copier began with, whatever happens at the source before the first part."""
    source, target = Client(), Client()
    make_garbage(source, 1)
    make_garbage(source, 2)
    before = source.state(FRUIT).commits

    def overtake() -> None:
        make_garbage(source, 3)
        for _ in range(5):
            collect(source, FRUIT, grace_ms=0, intent_ms=0)

    source.counted.at({2 + random.Random(persist_seed).randrange(8)}, overtake)
    copy_all(source, target)
    source.counted.at(set())
    assert len(source.state(FRUIT).commits) == 3
    assert target.state(FRUIT).commits == before
    assert fsck(target, FRUIT).is_clean
    assert source.state(FRUIT).leases == {}


def test_frontiers_of_a_copy_never_regress() -> None:
    """A lease holds `since` at the source; the target has no such reader, and its maintenance gives up more."""
    source, target = Client(), Client()
    make_garbage(source, 1)
    make_garbage(source, 2)
    source.set_history(FRUIT, 1)
    source.open_leased_reader(FRUIT, lease_ms=60_000)
    copy_all(source, target)
    given_up = target.advance_since(FRUIT).since
    assert source.state(FRUIT).since < given_up
    make_garbage(source, 3)
    copy_all(source, target)
    assert target.state(FRUIT).since == given_up
    check_equal(source, target, FRUIT)


def test_no_append_comes_between_a_move_and_its_difference(persist_seed: int) -> None:
    """Both ends are written to; the target has an older copy. The move ends, or fails before it has begun."""
    chance = random.Random(persist_seed)
    for _ in range(MOVES[settings.get_current_profile_name()]):
        source, target = Client(), Client()
        make_garbage(source, 1)
        copy_all(source, target)
        make_garbage(source, 2)
        appended: list[bool] = []

        def append(ends: tuple[Client, Client] = (source, target), appended: list[bool] = appended) -> None:
            for end in ends:
                with suppress(ShardMoved):
                    make_garbage(end, 3)
                    appended.append(True)

        target.counted.at({chance.randrange(60)}, append)
        with suppress(InvalidInput):
            copy_all(source, target, is_move=True)
        target.counted.at(set())
        last, there = source.state(FRUIT).newest_commit, target.state(FRUIT).commits
        if source.state(FRUIT).origin.moved_to is None:
            assert appended
            make_garbage(source, 4)
        else:
            assert last is not None
            assert last.manifest_key in {commit.manifest_key for commit in there}
            make_garbage(target, 4)


def test_the_next_move_ends_one_that_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = Client(), Client()
    make_garbage(source, 1)
    with monkeypatch.context() as patch:
        patch.setattr("persist_core.maintenance.copy.move_away", None)
        with pytest.raises(TypeError):
            copy_all(source, target, is_move=True)
    with pytest.raises(ShardMoved, match="has not ended: wait for that command, or run it again"):
        make_garbage(target, 2)
    make_garbage(source, 2)
    copy_all(source, target, is_move=True)
    with pytest.raises(ShardMoved, match="accepts no commits: use that location"):
        make_garbage(source, 3)
    make_garbage(target, 3)


@pytest.mark.parametrize("folders", [("a", "a/b"), ("a/b", "a"), ("a", "a link/b")])
def test_a_folder_within_the_other_one_is_refused(tmp_path: Path, folders: tuple[str, str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a link").symlink_to(tmp_path / "a")
    source, target = (Client(OpenLocation(FileBlob(tmp_path / name), MemConsensus())) for name in folders)
    make_garbage(source, 1)
    with pytest.raises(InvalidInput, match="lie in one another; expected another folder"):
        copy_all(source, target)
    assert target.location.consensus.head(FRUIT) is None
    copy_all(source, Client(OpenLocation(FileBlob(tmp_path / "ab"), MemConsensus())))


@pytest.mark.parametrize("prefixes", [("", "a"), ("a b", "a b/c/d"), ("a/b", "a")])
@pytest.mark.parametrize("regions", [("", ""), ("&region=eu-west-1", ""), ("", "&region=eu-west-1")])
def test_a_prefix_within_the_other_one_is_refused(
    versitygw: S3Server, prefixes: tuple[str, str], regions: tuple[str, str]
) -> None:
    """However the two say how to connect."""
    bucket = versitygw.make_bucket()
    uris = [
        versitygw.uri(f"{bucket}/{each}".rstrip("/")) + region for each, region in zip(prefixes, regions, strict=True)
    ]
    source, target = (Client(OpenLocation(open_blob(uri), MemConsensus())) for uri in uris)
    make_garbage(source, 1)
    before = list(source.blob.list_keys_and_metadata(""))
    with pytest.raises(InvalidInput, match="lie in one another; expected another folder, bucket or prefix"):
        copy_all(source, target)
    assert target.location.consensus.head(FRUIT) is None
    assert list(source.blob.list_keys_and_metadata("")) == before
    elsewhere = Client(OpenLocation(open_blob(versitygw.new_uri(prefixes[1])), MemConsensus()))
    copy_all(source, elsewhere)
    for each in (source, target, elsewhere):
        each.location.close()
