"""Restores, kills and give-ups between two calls of a rebuild, or while a generation is swapped back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from persist_core.contents.batch import BatchDescription
from persist_core.errors import InvalidInput, ShardMoved
from persist_core.location.consensus import VersionedData
from persist_core.maintenance.differences import report_of
from persist_core.maintenance.drop import drop
from persist_core.maintenance.hidden import REBUILD, alive, end, hidden_of, kept_generations
from tests.core.maintenance.copies import Client, copy_all
from tests.core.maintenance.rebuilt_shard import A, B, C, made, names, ok, rebuilt
from tests.core.maintenance.test_reprocess import corrected, replace_file
from tests.core.protocol.restored_shard import SHARD
from tests.dying_store import Crash, crash


def test_a_restore_after_a_dry_run_is_not_undone(tmp_path: Path) -> None:
    shard = made(tmp_path)
    rebuilt(shard, is_dry_run=True)
    shard.define(0)
    shard.go_back(shard.client.state(SHARD).commits[0].checkpoint_id)
    shard.define(1)
    rebuilt(shard)
    assert names(shard) == {A: "one", B: "b"}


def test_a_file_that_came_back_since_a_dry_run_is_read(tmp_path: Path) -> None:
    shard = made(tmp_path)
    (tmp_path / "0.txt").rename(tmp_path / "aside")
    assert rebuilt(shard, is_dry_run=True, takes_back_gone=True).gone == ("0.txt",)
    (tmp_path / "aside").rename(tmp_path / "0.txt")
    assert rebuilt(shard).gone == ()
    assert names(shard) == {A: "one", B: "b", C: "three"}
    shard.check()


def test_a_swap_back_says_which_files_were_corrected_since(tmp_path: Path) -> None:
    shard, said = made(tmp_path, is_swapped=True), list[str]()
    (tmp_path / "1.txt").write_text("other bytes")
    shard.define(0)
    rebuilt(shard, back_to=-1, say=said.append)
    assert any("1 files have changed since generation 0 consumed them: 1.txt" in each for each in said)


def test_a_restore_after_a_dry_swap_back_is_not_undone(tmp_path: Path) -> None:
    shard = made(tmp_path, is_swapped=True)
    shard.define(1)
    before = shard.run(50)
    shard.drop("3.txt", [ok(C, "later", 3)])
    shard.run(60)
    shard.define(0)
    rebuilt(shard, back_to=-1, is_dry_run=True)
    shard.define(1)
    shard.go_back(before)
    shard.define(0)
    rebuilt(shard, back_to=-1)
    assert names(shard)[C] == "three"
    shard.run(shard.upper() + 10)
    assert names(shard)[C] == "later"
    shard.check()


def test_a_generation_given_up_meanwhile_is_swapped_in(tmp_path: Path) -> None:
    shard = made(tmp_path, is_swapped=True)
    shard.define(1)
    shard.drop("3.txt", [ok(C, "later", 3)])
    shard.run(60)
    shard.define(0)

    def give_up(_: BatchDescription) -> None:
        end(shard.client, f"{SHARD}~g3")

    assert rebuilt(shard, back_to=-1, first=give_up).generation == 2
    assert names(shard)[C] == "later"
    assert [each.number for each in kept_generations(shard.client, shard.client.state(SHARD))] == [1]
    shard.check()


def test_a_killed_swap_back_answers_only_for_its_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = made(tmp_path, is_swapped=True)
    rebuilt(shard)
    with monkeypatch.context() as patched:
        patched.setattr("persist_core.maintenance.rebuild.cleaned_up", lambda *_: crash())
        with pytest.raises(Crash):
            rebuilt(shard, back_to=0)
    assert shard.client.state(SHARD).origin.generation == 3
    assert rebuilt(shard, back_to=2).generation == 4


def test_a_rebuild_that_is_repeated_says_that_it_is_done(tmp_path: Path) -> None:
    shard = made(tmp_path)
    first = rebuilt(shard)
    again = rebuilt(shard)
    assert (again.commit, again.generation, again.kept) == (first.commit, 1, first.kept)
    assert report_of(again).done.startswith("nothing to do: generation 1 of things was swapped in before")
    shard.drop("3.txt", [ok(C, "later", 3)])
    assert rebuilt(shard).generation == 1, "files that no run has read are no reason to build it again"
    shard.feed["2.txt"] = (ok(C, "four", 2),)
    (shard.folder / "2.txt").write_text("replaced")
    assert rebuilt(shard).generation == 2
    shard.check()


def test_a_swap_back_that_is_repeated_says_that_it_is_done(tmp_path: Path) -> None:
    shard = made(tmp_path, is_swapped=True)
    first = rebuilt(shard, back_to=-1)
    shard.drop("3.txt", [ok(C, "later", 3)])
    shard.run(60)
    for back_to in (-1, 0):
        again = rebuilt(shard, back_to=back_to)
        assert (again.commit, again.generation, again.kept) == (first.commit, 2, first.kept)
    with pytest.raises(InvalidInput, match="does not fit generation 1"):
        rebuilt(shard, back_to=1)
    shard.define(1)
    assert rebuilt(shard, back_to=-1).generation == 3, "another file: it is not the same wish"
    assert names(shard)[C] == "later"
    shard.check()


def test_generations_of_one_definition_are_swapped_back_once(tmp_path: Path) -> None:
    shard = made(tmp_path)
    shard.define(0)
    rebuilt(shard)
    assert rebuilt(shard, back_to=-1).generation == 2
    assert rebuilt(shard, back_to=-1).generation == 2
    assert rebuilt(shard, back_to=1).generation == 3
    shard.check()


def test_a_generation_kept_by_a_killed_call_is_swapped_back(tmp_path: Path) -> None:
    shard = made(tmp_path)
    killed = patch("persist_core.protocol.fork.publish_missing", side_effect=Crash)
    with killed, pytest.raises(Crash):
        rebuilt(shard)
    assert shard.client.state(f"{SHARD}~g3").commits, "forked, and not published"
    rebuilt(shard)
    shard.define(0)
    assert rebuilt(shard, back_to=0).generation == 2
    shard.check()


def test_a_rebuild_half_given_up_is_built_if_files_changed(tmp_path: Path) -> None:
    shard = made(tmp_path)
    rebuilt(shard)
    shard.feed["2.txt"] = (ok(C, "four", 2),)
    (shard.folder / "2.txt").write_text("replaced")
    rebuilt(shard, is_dry_run=True)
    drop(shard.client, f"{SHARD}~rebuild", is_forced=True)
    assert rebuilt(shard).generation == 2
    assert names(shard) == {A: "one", B: "b", C: "four"}
    shard.check()


def test_a_copy_says_which_generations_it_lacks(tmp_path: Path) -> None:
    shard, target = made(tmp_path, is_swapped=True), Client()
    kept, consensus = f"{SHARD}~g3", shard.location.consensus
    head = consensus.head(kept)
    assert head is not None
    consensus.compare_and_set(kept, head.seqno, VersionedData(head.seqno + 1, b"damaged"))  # which no copy reads
    (note,) = copy_all(shard.client, target, SHARD)[SHARD].notes
    assert note.startswith("earlier generations are not copied")
    assert note.endswith(f": {kept}")
    assert not kept_generations(target, target.state(SHARD))


def test_a_moved_shard_is_refused_before_the_work(tmp_path: Path) -> None:
    shard = made(tmp_path, is_swapped=True)
    copy_all(shard.client, Client(), SHARD, is_move=True)
    replace_file(shard, "1.txt", (ok(C, "right", 1),))
    again, back = partial(rebuilt, is_dry_run=True), partial(rebuilt, back_to=0)
    for key, act in ((0, rebuilt), (0, again), (0, back), (1, partial(corrected, from_ms=0))):
        shard.define(key)
        with pytest.raises(ShardMoved):
            act(shard)
    assert not alive(shard.client, hidden_of(SHARD))
    assert not alive(shard.client, hidden_of(SHARD, REBUILD))
