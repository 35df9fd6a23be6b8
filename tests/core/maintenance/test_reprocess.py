"""Corrections: after files were replaced or taken away, the shard is as if it had read them as they are now."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from persist_core.contents.stats import BatchWarning
from persist_core.handles.write import manifest_for
from persist_core.keys import hidden_shard
from persist_core.maintenance.reprocess import Reprocessed, Request, reprocess
from persist_core.protocol.replay import PURPOSE
from persist_core.protocol.restore_point import FIRST_UPPER
from persist_core.sample.fields import NEW
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.restored_shard import SHARD, Collection, contents
from tests.oracle.strategies import STRAY, History, histories
from tests.oracle.upsert import Record

HIDDEN = hidden_shard(SHARD, PURPOSE)


def corrected(
    shard: Collection, from_ms: int, *, say: Callable[[str], None] = lambda _: None, **request: Any
) -> Reprocessed:
    hidden = shard.beside(HIDDEN)
    asked = Request(from_ms, **{"is_confirmed": True, **request})
    return reprocess(
        shard.client,
        shard.config,
        asked,
        write=lambda _, description: hidden.write(description),
        writer="test/reprocess",
        say=say,
    )


def replace_file(shard: Collection, name: str, records: tuple[Record, ...]) -> None:
    """Other bytes under the same name."""
    shard.feed[name] = records
    text = (shard.folder / name).read_text()
    (shard.folder / name).write_text(f"{text}, replaced")


@pytest.mark.family("histories in Python")
@settings(max_examples=settings().max_examples // 4)
@given(histories(may_close=False), histories(may_close=False), st.data())
def test_a_correction_gives_what_a_fresh_load_gives(history: History, other: History, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from((Collection, OrderedCollection)), label="kind")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as beside:
        shard, fresh = kind(Path(folder)), kind(Path(beside))
        uppers = [batch.upper or 0 for batch in history.batches]
        for number, batch in enumerate(history.batches):
            shard.drop(f"{number}.txt", batch.records)
            shard.run(uppers[number])
        first = data.draw(st.integers(0, len(uppers)), label="from")
        from_ms = uppers[first - 1] if first else 0
        # A fork from the beginning has this upper: a commit at it looks like the start.
        assume(from_ms < uppers[-1] and uppers[0] > FIRST_UPPER)
        read_again = [number for number in range(len(uppers)) if number >= first]
        changed = data.draw(st.lists(st.sampled_from(read_again), unique=True), label="changed")
        gone = data.draw(st.lists(st.sampled_from(changed), unique=True), label="gone") if changed else []
        for number in changed:
            if number in gone:
                shard.take_out(f"{number}.txt")
            else:
                replace_file(shard, f"{number}.txt", other.batches[number % len(other.batches)].records)
        for number, upper in enumerate(uppers):
            if number not in gone:
                fresh.drop(f"{number}.txt", shard.feed[f"{number}.txt"])
            fresh.run(upper)
        before, upper = shard.updates(), shard.upper()

        found = corrected(shard, from_ms, takes_back_gone=True)

        assert len(found.replaced) == len(set(changed) - set(gone))
        assert len(found.gone) == len(gone)
        after = shard.updates()
        assert [repr(update) for update in after if update.time < upper] == [repr(update) for update in before]
        now = shard.upper() - 1
        assert contents(after, now) == shard.read(now) == fresh.contents(fresh.upper() - 1)
        assert (found.commit is None) == (not found.is_needed)
        assert not shard.client.state(HIDDEN).commits
        shard.check()
        later = data.draw(st.sampled_from([each for each in (from_ms, *uppers) if from_ms <= each < uppers[-1]]))
        again = corrected(shard, later)  # what waited for the upper may be due now
        assert (again.replaced, again.gone, again.new) == ((), (), ())

        # None is late: it would be lifted to the first open time, and corrections have moved that past what waits.
        moved = shard.upper() + STRAY
        later_records = [replace(r, time=None if r.time is None else r.time + moved) for r in other.batches[0].records]
        for each in (shard, fresh):
            each.drop("later.txt", later_records)
            each.run(upper + 100 + STRAY)
        assert shard.contents(shard.upper() - 1) == fresh.contents(fresh.upper() - 1)
        shard.check()


def test_a_replay_says_what_its_jobs_warn_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that was renamed since is in no column: its values would be lost silently."""
    shard, said = Collection(tmp_path), list[str]()
    shard.drop("1.txt", (Record(("eu", 1), ("a", None, None), 9, (0, "f", 0, 0)),))
    shard.run(10)
    replace_file(shard, "1.txt", (Record(("eu", 1), ("b", None, None), 9, (0, "f", 0, 0)),))
    warning = BatchWarning(NEW, 0, ("name",))
    staged = manifest_for
    monkeypatch.setattr(
        "persist_core.handles.write.manifest_for",
        lambda *given, **named: replace(staged(*given, **named), warnings=(warning,)),
    )
    corrected(shard, 0, say=said.append)
    assert f"warning: {SHARD}: {warning}" in said
