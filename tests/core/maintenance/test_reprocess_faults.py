"""Corrections that are killed at any call of a store, that race each other or other writers, and that are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.contents.batch import BatchDescription
from persist_core.errors import ConfigError, CorruptArtifact, InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.inspection.holders import list_holders
from persist_core.location.open import OpenLocation
from persist_core.maintenance import actions
from persist_core.maintenance import reprocess as reprocessing
from persist_core.maintenance.hidden import end
from persist_core.maintenance.maintain import maintain
from persist_core.maintenance.reprocess import Reprocessed, Request, reprocess
from persist_core.protocol.difference import KIND
from persist_core.protocol.fork import fork
from persist_core.protocol.stages import Minted, mint
from persist_core.time_text import DAY_MS
from tests.core.maintenance.test_reprocess import HIDDEN, replace_file
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.dying_store import Crash, DyingStore
from tests.oracle.upsert import Err, Record
from tests.sampling import sample
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import ManualClock, SeededIds

A, B, C = ("eu", 1), ("eu", 2), ("", 0)
MAX_CALLS = 400
KILLS = 6
Wrap = Callable[[BatchDescription], None]


class Dated(Collection):
    """The names of its files say the times of their records."""

    def __init__(self, folder: Path, location: OpenLocation | None = None, shard: str = SHARD) -> None:
        super().__init__(folder, location, shard)
        dated = {"source": {"path": "{date:%Y-%m-%d}*.txt", "format": "json"}, "time": "path"}
        self.config = CollectionConfig.model_validate({**self.config.model_dump(mode="json"), **dated})

    def beside(self, shard: str) -> Dated:
        other = Dated(self.folder, self.location, shard)
        other.feed, other.stashed, other.client.ids = self.feed, self.stashed, self.client.ids
        return other


def ok(slot: tuple[str, int], name: str, row: int = 0) -> Record:
    return Record(slot, (name, None, None), None, (0, "f", 0, row))


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    return made(tmp_path)


def made(folder: Path) -> Collection:
    """Three commits; the file of the second was wrong, and is replaced."""
    shard = Collection(folder)
    for number, records in enumerate(([ok(A, "one"), ok(B, "b")], [ok(A, "wrong"), ok(C, "wrong")], [ok(B, "three")])):
        shard.drop(f"{number}.txt", records)
        shard.run(10 * (number + 1))
    replace_file(shard, "1.txt", (ok(A, "right"),))
    return shard


def correct(
    shard: Collection,
    client: PersistClient | None = None,
    *,
    first: Wrap = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    **request: Any,
) -> Reprocessed:
    hidden = shard.beside(HIDDEN)

    def write(_: CollectionConfig, description: BatchDescription) -> str:
        first(description)
        return hidden.write(description)

    asked = Request(**{"from_ms": 10, "is_confirmed": True, **request})
    client = client or shard.client
    return reprocess(client, shard.config, asked, write=write, writer="test", say=say)


def names(shard: Collection) -> dict[Any, str]:
    rows = shard.client.open_reader(SHARD).snapshot().to_pylist()
    return {(row["region"], row["id"]): row["name"] for row in rows}


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_killed_correction_is_ended_by_the_next_call(tmp_path: Path, is_late: bool) -> None:
    calls = [0]
    (tmp_path / "whole").mkdir()
    assert not dies(made(tmp_path / "whole"), calls, MAX_CALLS, is_late=is_late)
    assert 50 < calls[0] < MAX_CALLS
    for at in sample(range(1, calls[0] + 1), KILLS, f"reprocess/{is_late}"):
        (folder := tmp_path / str(at)).mkdir()
        shard = made(folder)
        assert dies(shard, [0], at, is_late=is_late)
        assert shard.upper() in (30, 31)
        correct(shard)
        assert names(shard) == {A: "right", B: "three"}
        assert [commit.upper for commit in shard.client.state(SHARD).commits] == [10, 20, 30, 31]
        assert not shard.client.state(HIDDEN).commits
        shard.check()
        shard.drop("3.txt", [ok(C, "later")])
        shard.run(60)
        assert names(shard) == {A: "right", B: "three", C: "later"}


def dies(shard: Collection, calls: list[int], at: int, *, is_late: bool) -> bool:
    blob, consensus = (
        DyingStore(store, calls, at, is_late=is_late) for store in (shard.location.blob, shard.location.consensus)
    )
    ids = SeededIds(99, shard.clock)
    client = PersistClient(OpenLocation(blob, consensus), shard.clock, ids, fetch_threads=1, part_format=ArrowParts())
    try:
        correct(shard, client)
    except Crash:
        return True
    return False


def test_appends_meanwhile_are_replayed_too(shard: Collection) -> None:
    turns = iter((40, 50))

    def append(_: BatchDescription) -> None:
        if (upper := next(turns, None)) is not None:
            shard.drop(f"{upper}.txt", [ok(C, f"at {upper}"), ok(A, f"at {upper}")][: 1 + (upper == 50)])
            shard.run(upper)

    found = correct(shard, first=append)
    assert found.commit is not None
    assert (found.commit.lower, found.commit.upper) == (50, 51)
    assert names(shard) == {A: "at 50", B: "three", C: "at 50"}
    shard.check()


def test_an_append_before_the_commit_is_replayed_too(shard: Collection) -> None:
    lines: list[str] = []

    def report(_: Reprocessed) -> None:
        if shard.upper() == 30:
            shard.drop("late.txt", [ok(A, "newest")])
            shard.run(40)

    hidden = shard.beside(HIDDEN)
    found = reprocess(
        shard.client,
        shard.config,
        Request(10, is_confirmed=True),
        write=lambda _, description: hidden.write(description),
        writer="test",
        say=lines.append,
        report=report,
    )
    assert found.commit is not None
    assert found.commit.lower == 40
    assert any("replaying what came meanwhile" in line for line in lines)
    assert names(shard) == {A: "newest", B: "three"}
    shard.check()


def test_two_concurrent_corrections_make_one(shard: Collection) -> None:
    ran: list[str] = []

    def another(_: BatchDescription) -> None:
        if not ran:
            ran.append("begun")
            correct(shard)

    with pytest.raises(RunFailed, match="another reprocess"):
        correct(shard, first=another)
    assert names(shard) == {A: "right", B: "three"}
    correct(shard)
    assert names(shard) == {A: "right", B: "three"}
    assert not shard.client.state(HIDDEN).commits
    shard.check()


def test_a_correction_that_another_one_has_ended_says_so(shard: Collection) -> None:
    """The other one begins elsewhere, so it gives up this one's fork, whose next step fails."""

    def another(description: BatchDescription) -> None:
        end(shard.client, HIDDEN)
        raise CorruptArtifact(f"job spec of {description.shard}: not found")

    with pytest.raises(RunFailed, match="another reprocess of things has ended this one"):
        correct(shard, first=another)

    def damaged(_: BatchDescription) -> None:
        raise CorruptArtifact("part 1: damaged")

    with pytest.raises(CorruptArtifact, match="part 1: damaged"):
        correct(shard, first=damaged)


def test_two_corrections_that_begin_together(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = fork, list[str]()

    def slow(*arguments: Any, **options: Any) -> Any:
        if not begun:
            begun.append("here")
            correct(shard, from_ms=20, is_dry_run=True)
        return real(*arguments, **options)

    monkeypatch.setattr(reprocessing, "fork", slow)
    with pytest.raises(RunFailed, match="another reprocess of things has just begun; try again"):
        correct(shard)
    assert correct(shard).commit is not None
    assert names(shard) == {A: "right", B: "three"}


def test_a_dry_run_changes_nothing_and_is_gone_on_with(shard: Collection) -> None:
    before = shard.client.state(SHARD).commits
    found = correct(shard, is_dry_run=True)
    assert (found.found.added, found.found.removed, found.found.changed) == (0, 1, 1)
    assert dict(found.found.columns) == {"name": 1}
    assert [row[KIND] for row in found.found.rows.to_pylist()] == ["removed", "before", "after"]
    assert shard.client.state(SHARD).commits == before
    asked: list[BatchDescription] = []
    assert correct(shard, first=asked.append).commit is not None
    assert asked == []


def test_what_changed_since_a_dry_run_is_replayed_again(shard: Collection) -> None:
    correct(shard, is_dry_run=True)
    replace_file(shard, "2.txt", (ok(B, "other"),))
    correct(shard)
    assert names(shard) == {A: "right", B: "other"}


def test_files_that_came_since_a_dry_run_are_replayed_too(tmp_path: Path) -> None:
    """One that came back, which the dry run was to do without; and a new one, of a day that the replay has passed."""
    shard = Dated(tmp_path)
    for day, record in ((1, ok(A, "one")), (2, ok(B, "two")), (3, ok(C, "three"))):
        shard.drop(f"1970-01-{day:02}.txt", [record])
        shard.run(day * DAY_MS)
    text = (tmp_path / "1970-01-02.txt").read_bytes(), (tmp_path / "1970-01-02.txt").stat().st_mtime_ns
    shard.take_out("1970-01-02.txt")
    assert correct(shard, is_dry_run=True, takes_back_gone=True).gone == ("1970-01-02.txt",)

    (tmp_path / "1970-01-02.txt").write_bytes(text[0])
    os.utime(tmp_path / "1970-01-02.txt", ns=(text[1], text[1]))
    assert not correct(shard).is_needed

    correct(shard, is_dry_run=True)
    shard.drop("1970-01-02-more.txt", [ok(A, "more", 1)])
    assert correct(shard).new == ("1970-01-02-more.txt",)
    assert names(shard) == {A: "more", B: "two", C: "three"}
    shard.check()


def test_a_restore_after_a_dry_replay_is_not_undone(shard: Collection) -> None:
    """The replay had consumed a file that the restore has left to the next run."""
    correct(shard, is_dry_run=True)
    shard.go_back(shard.client.state(SHARD).commits[1].checkpoint_id)
    correct(shard)
    assert names(shard) == {A: "right", B: "b"}
    shard.run(50)
    assert names(shard) == {A: "right", B: "three"}
    shard.check()


def test_a_restore_during_a_replay_is_not_undone(shard: Collection) -> None:
    restores = iter([shard.client.state(SHARD).commits[1].checkpoint_id])

    def go_back(_: BatchDescription) -> None:
        for checkpoint_id in restores:
            shard.go_back(checkpoint_id)

    with pytest.raises(RunFailed, match="restored or dropped in the meantime"):
        correct(shard, first=go_back)
    assert names(shard) == {A: "wrong", B: "b", C: "wrong"}
    correct(shard)
    assert names(shard) == {A: "right", B: "b"}
    shard.check()


def test_files_that_are_gone_are_refused_with_a_list(shard: Collection) -> None:
    shard.take_out("1.txt")
    with pytest.raises(InvalidInput, match=r"1 files .* are gone: 1\.txt\. .*from 20 on no file is gone"):
        correct(shard)
    assert shard.client.machine.fetch(HIDDEN) is None
    assert correct(shard, takes_back_gone=True).gone == ("1.txt",)
    assert names(shard) == {A: "one", B: "three"}


def test_more_than_the_limit_needs_a_confirmation(shard: Collection) -> None:
    with pytest.raises(InvalidInput, match=r"2 of 3 rows .* more than 50 %"):
        correct(shard, max_changed=("50 %",), is_confirmed=False)
    assert correct(shard, max_changed=(2,), is_confirmed=False).commit is not None
    bad = Record(A, Err("value", b"key", b"bad"), None, (0, "1", 0, 0))
    replace_file(shard, "1.txt", (bad,))
    with pytest.raises(InvalidInput, match=r"changes 1 of \d rows and 1 errors of"):
        correct(shard, max_changed=(0,), is_confirmed=False)


def test_no_file_after_the_last_day_may_differ(shard: Collection) -> None:
    with pytest.raises(InvalidInput, match=r"not dated before .*1\.txt"):
        correct(shard, end_ms=20)


def test_a_time_that_is_not_final_yet_is_refused(shard: Collection) -> None:
    with pytest.raises(InvalidInput, match="expected a time before the upper"):
        correct(shard, from_ms=30)


def test_without_an_old_checkpoint_all_is_read_again(shard: Collection) -> None:
    found = correct(shard, from_ms=5)
    assert found.start.checkpoint_id is None
    assert names(shard) == {A: "right", B: "three"}
    shard.check()


def test_a_replay_is_not_listed_and_no_file_has_its_name(shard: Collection, tmp_path: Path) -> None:
    correct(shard, is_dry_run=True)
    assert shard.client.state(HIDDEN).commits
    assert shard.client.shards() == [SHARD]
    held = [each for each in list_holders(shard.client, shard.client.state(SHARD)).held if each.kind == "fork"]
    assert [each.remedy for each in held] == [f"persist reprocess {SHARD} --give-up"]
    with pytest.raises(InvalidInput, match="shard name"):
        actions.fork(shard.client, SHARD, shard.client.state(SHARD).commits[0].checkpoint_id, HIDDEN, writer="test")
    file = tmp_path / f"{HIDDEN}.yaml"
    file.write_text("source: {path: 'x/*.json', format: json}\nkey: id\ncolumns: {id: bigint}\ndelete: none\n")
    with pytest.raises(ConfigError, match="without '~'"):
        load_collection(file)


def test_maintenance_deletes_a_replay_that_was_given_up(shard: Collection) -> None:
    correct(shard, is_dry_run=True)
    maintain(shard.client, SHARD)
    assert shard.client.state(HIDDEN).commits
    assert isinstance(shard.clock, ManualClock)
    shard.clock.sleep_ms(4 * 86_400_000)
    maintain(shard.client, SHARD)
    assert not shard.client.state(HIDDEN).commits
    assert not list(shard.client.blob.list_keys_and_metadata(f"{HIDDEN}/"))


def test_a_run_names_the_remedy_for_a_replaced_file(shard: Collection) -> None:
    minted = mint(shard.client, shard.config, until=40, writer="test")
    assert isinstance(minted, Minted)
    assert "`persist reprocess` corrects the collection by it" in minted.notices[0]


def test_what_did_not_change_is_not_copied(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    large = [ok(("eu", number), f"row {number}" * 20) for number in range(2_000)]
    for number, records in enumerate((large, [ok(A, "wrong")], [ok(B, "three")])):
        shard.drop(f"{number}.txt", records)
        shard.run(10 * (number + 1))
    replace_file(shard, "1.txt", (ok(A, "right"),))
    before = stored(shard)
    correct(shard, is_dry_run=True)
    replayed = stored(shard) - before
    correct(shard)
    assert before > 100_000
    assert replayed < before / 4
    assert stored(shard) - before < before / 4


def stored(shard: Collection) -> int:
    return sum(entry.size_bytes for entry in shard.client.blob.list_keys_and_metadata(""))
