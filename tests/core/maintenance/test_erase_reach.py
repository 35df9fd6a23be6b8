"""The reach of an erasure: forks, views, replays, garbage, staged attempts, copies and the next life of a shard."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.publish import publish_and_retain, publish_missing
from persist_core.config.shard import RetentionConfig
from persist_core.contents.erased import ErasedKey, ErasedList, Erasure
from persist_core.contents.key_range import KeyRange
from persist_core.contents.parts import PARQUET
from persist_core.errors import InvalidInput
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_for, erased_list
from persist_core.keys import failure_key, input_copy, job_key, part_key
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.drop import create_again, drop
from persist_core.maintenance.erase import erase
from persist_core.maintenance.erase_objects import finish, store, verify
from persist_core.maintenance.fsck import fsck
from persist_core.maintenance.hidden import end
from persist_core.protocol.delta import BEGINNING
from persist_core.protocol.fork import fork
from persist_core.protocol.replay import Start, turns_of
from persist_core.schema import Column
from tests.core.compaction.histories import KEYED, SEQUENCED, History
from tests.core.maintenance.test_erase import KEYS, Erasing, in_memory, keys_of, rows_in, upper
from tests.core.protocol.restored_shard import Collection
from tests.dying_store import Crash


def test_a_fork_of_a_copy_keeps_its_files() -> None:
    """The erasure at the source did not know of it, and has left files for a reader."""
    source, target = Erasing(in_memory(), KEYED, 1), PersistClient(in_memory())
    for _ in range(4):
        source.append()
    copier = Copier(source.client, target)
    copier.copy(["s"])
    fork(target, "s", source.checkpoints[-1][0], "twin", writer="test")
    rows = target.open_reader("twin").snapshot()
    reader = source.client.open_leased_reader("s", lease_ms=60_000)
    reader.state()
    assert erase(source.client, "s", KEYS[:4], by="me", reason="asked").status == "waiting"
    copier.copy(["s"])
    finish(target, "s")
    assert target.open_reader("twin").snapshot() == rows
    assert fsck(target, "twin").is_clean


def test_forks_and_views_and_errors_without_a_key_are_named() -> None:
    history = Erasing(in_memory(), KEYED, 1)
    for _ in range(4):
        history.append()
    bad = (None, None, "key", "unreadable", b"?", b"raw", "feed, line 1")
    history.commit(upper(history), upper(history) + 1, [], [(bad, upper(history), 1)])
    history.client.open_since("s", "view/totals")
    made = fork(history.client, "s", history.checkpoints[-1][0], "twin", writer="test")
    with pytest.raises(InvalidInput, match="fork twin shares files of s that hold a key"):
        erase(history.client, "s", KEYS[:4], by="me", reason="asked")
    assert made.is_new
    in_fork = erase(history.client, "twin", KEYS[:4], by="me", reason="asked")
    assert "s, which shares a past with twin: erase there too" in in_fork.beyond
    done = erase(history.client, "s", KEYS[:4], by="me", reason="asked")
    assert done.beyond[:3] == (
        "view totals: its history holds what came from the keys. Build it again: `persist drop totals --yes --force`,"
        " then `persist run totals --recreate`",
        "twin, which shares a past with s: erase there too",
        "1 errors whose keys could not be decoded: `persist errors s`",
    )
    for shard in ("s", "twin"):
        assert verify(history.client, shard, KEYS[:4]) == ()
        assert fsck(history.client, shard).is_clean
    drop(history.client, "s", is_forced=True)
    again = erase(history.client, "twin", KEYS[:4], by="me", reason="asked")
    assert "s, which shares a past with twin: it has no data, and GC deletes its files" in "\n".join(again.beyond)


def test_a_replay_that_has_not_ended_is_ended_first() -> None:
    history = Erasing(in_memory(), KEYED, 1)
    history.append()
    fork(history.client, "s", None, "s~reprocess", writer="test")
    with pytest.raises(InvalidInput, match="s~reprocess holds contents of s: a reprocess that has not ended"):
        erase(history.client, "s", KEYS[:1], by="me", reason="asked")
    end(history.client, "s~reprocess")
    assert erase(history.client, "s", KEYS[:1], by="me", reason="asked").status == "erased"


def test_a_replay_leaves_no_list_of_erasures() -> None:
    """It would keep what a later erasure takes out of the reasons."""
    history = Erasing(in_memory(), SEQUENCED, 1)
    history.append()
    erase(history.client, "s", KEYS[:1], by="me", reason=f"as {KEYS[1]} asked")
    fork(history.client, "s", None, "s~reprocess", writer="test")
    end(history.client, "s~reprocess")
    fork(history.client, "s", history.checkpoints[-1][0], "s~g1", writer="test")
    fork(history.client, "s~g1", None, "twin", writer="test")
    assert erased_list(history.client, history.client.state("twin")) == erased_list(history.client, history.state)
    for name in ("twin", "s~g1"):
        drop(history.client, name, is_forced=True)
    erase(history.client, "s", KEYS[1:2], by="me", reason="asked")
    assert verify(history.client, "s", KEYS[1:2]) == ()
    assert not [entry.key for entry in history.client.blob.list_keys_and_metadata("s~") if "/erased/" in entry.key]


def test_a_replay_from_before_is_refused_without_times(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    shard.drop("1.txt", [])
    shard.run(10)
    state = shard.client.state("things")
    erasure = Erasure("me", "asked", 1, (ErasedKey("ab", 10, ()),), upper=10)
    assert store(shard.client, state, ErasedList("cd" * 32, (erasure,)))
    state = shard.client.state("things")
    with pytest.raises(InvalidInput, match="keys were erased from collection things at 10"):
        turns_of(shard.client, shard.config, state, Start(None, BEGINNING, None))
    shard.run(20)
    shard.run(30)
    state = shard.client.state("things")
    assert turns_of(shard.client, shard.config, state, Start(state.commits[1].checkpoint_id, 19, None, 2))


def test_a_write_of_another_generation_knows_the_list_or_stops() -> None:
    history = Erasing(in_memory(), SEQUENCED, 2)
    history.append()
    client = history.client
    erase(client, "s", KEYS[:2], by="me", reason="asked")
    hidden = client.ensure_shard("s~rebuild")
    listed = erased_for(client, hidden, SEQUENCED, has_times=False)
    assert listed == erased_list(client, history.state) == erased_for(client, history.state, SEQUENCED, has_times=True)
    for schema in (KEYED, replace(SEQUENCED, order=(Column("seq", "string"),))):
        with pytest.raises(InvalidInput, match="nothing says which of their records came before"):
            erased_for(client, hidden, schema, has_times=True)
    assert erased_for(client, client.ensure_shard("other"), KEYED, has_times=False) is None


def test_views_of_the_shard_see_that_it_has_changed() -> None:
    history = Erasing(in_memory(), KEYED, 1)
    for _ in range(4):
        history.append()
    before = upper(history)
    assert history.client.open_reader("s").snapshot().num_rows
    erase(history.client, "s", KEYS, by="me", reason="asked")
    newest = history.state.batches[-1]
    assert (newest.lower, newest.changed_at, newest.counts.rows, newest.is_empty) == (before, before, 0, False)
    assert history.client.open_reader("s").snapshot().num_rows == 0


def test_the_list_outlives_forks_copies_and_the_shard() -> None:
    history = Erasing(in_memory(), SEQUENCED, 2)
    for _ in range(4):
        history.append()
    client = history.client
    erase(client, "s", KEYS[:2], by="me", reason="asked")
    known = erased_list(client, history.state).known()
    assert len(known) == 2
    fork(client, "s", history.checkpoints[-1][0], "twin", writer="test")
    assert erased_list(client, client.state("twin")).known() == known
    there = PersistClient(in_memory(), client.clock, client.ids)
    Copier(client, there, threads=1).copy(["s"])
    assert erased_list(there, there.state("s")).known() == known
    drop(client, "s", is_forced=True)
    create_again(client, "s")
    assert erased_list(client, history.state).known() == known
    client.blob.delete(history.state.erased or "")
    history.append()
    assert [each.check for each in fsck(client, "s").violations] == ["erased"]


def test_garbage_and_staged_attempts_are_searched_too() -> None:
    history = Erasing(in_memory(), KEYED, 4)
    for _ in range(4):
        history.append()
    history.merge_these(history.state.batches)  # its inputs are garbage now
    client, blob = history.client, history.client.blob
    batch = next(each for each in rows_in(client, "s") if KEYS[0] in keys_of(each[1]))
    data = blob.get(batch[0]) or b""
    attempt = client.ids.uuid7()
    staged = part_key("s", attempt, "insertions", 0)
    blob.set(staged, data)
    blob.set(failure_key("s", attempt), b"{}")
    blob.set(job_key("s", 1, attempt, input_copy(0, ".gz")), b"whatever")
    erase(client, "s", KEYS[:1], by="me", reason="asked")
    for key in (staged, failure_key("s", attempt), job_key("s", 1, attempt, input_copy(0, ".gz"))):
        assert blob.get(key) is None
    history.gone(KEYS[:1])
    history.check_gone(KEYS[:1])
    history.check()


def test_no_manifest_outlives_the_files_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark bounds each key column by itself: a bound is then the first key's number and the second one's region."""
    monkeypatch.setattr("persist_core.handles.write.range_of", lambda *_: KeyRange((0, ""), (9, "smith")))
    for at in range(1, 12):
        history = History(in_memory(), KEYED, 4)
        history.client.part_format = PARQUET
        history.commit(0, 1, [((0, "smith", 1.0, "x"), 0, 1), ((9, "", 1.0, "x"), 0, 1)], [])
        deletes = [0]

        def delete(
            key: str, *, whole: Any = history.client.blob.delete, deletes: list[int] = deletes, at: int = at
        ) -> Any:
            deletes[0] += 1
            if deletes[0] == at:
                raise Crash
            return whole(key)

        monkeypatch.setattr(history.client.blob, "delete", delete)
        with suppress(Crash):
            erase(history.client, "s", [(0, "smith")], by="me", reason="asked")
        if deletes[0] >= at:
            erase(history.client, "s", [(0, "smith")], by="me", reason="asked")
        assert verify(history.client, "s", [(0, "smith")]) == ()
        stored = [each.key for each in history.client.blob.list_keys_and_metadata("s/batches/")]
        named = [key for key in stored if key.endswith("manifest.json")]
        assert [key for key in named if b"smith" in (history.client.blob.get(key) or b"")] == []
        if deletes[0] < at:
            return
    raise AssertionError("there are more objects to delete than expected")


@pytest.mark.parametrize("dies_at", [None, "write_derived", "is_complete"])
def test_gc_deletes_what_a_slow_publisher_brings_back(monkeypatch: pytest.MonkeyPatch, dies_at: str | None) -> None:
    """It has read operator state before the erasure, and stores its copy, then its manifest, after it."""
    history = Erasing(in_memory(), SEQUENCED, 5)
    with monkeypatch.context() as patch:
        patch.setattr(history, "_publish", lambda: None)
        history.append()
    client, write, is_whole = history.client, Checkpointer.write_derived, Checkpointer.is_complete
    erasures: list[str] = []

    def written(self: Checkpointer, checkpoint_id: str, path: str, data: bytes) -> bool:
        if not erasures:
            erasures.append("begun")
            erasures.append(erase(client, "s", KEYS, by="me", reason="asked").status)
            write(self, checkpoint_id, path, data)
            if dies_at == "write_derived":
                raise Crash
        return write(self, checkpoint_id, path, data)

    def looked_at(*arguments: Any) -> bool:
        if dies_at == "is_complete" and len(erasures) == 2:
            raise Crash
        return is_whole(*arguments)

    with monkeypatch.context() as patch, suppress(Crash):
        patch.setattr(Checkpointer, "write_derived", written)
        patch.setattr(Checkpointer, "is_complete", looked_at)
        publish_missing(client, history.state)
    assert erasures == ["begun", "erased"]
    assert verify(client, "s", KEYS) != ()
    for _ in range(3):
        collect(client, "s", grace_ms=0, intent_ms=0)
        publish_and_retain(client, "s", RetentionConfig())
    assert verify(client, "s", KEYS) == ()
    assert fsck(client, "s").is_clean
