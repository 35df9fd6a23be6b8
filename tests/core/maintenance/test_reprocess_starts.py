"""Where a correction begins if earlier ones lie at the boundary of its day: it reads no file of an earlier day again.

A file that keeps its bytes and stands for other records plays a mapping that was corrected since.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.config.collection import CollectionConfig
from persist_core.protocol.replay import restores, start_for
from persist_core.shard import invariants
from persist_core.shard import state as transitions
from persist_core.time_text import parse_time
from tests.core.maintenance.test_reprocess import corrected, replace_file
from tests.core.maintenance.test_reprocess_faults import names, ok
from tests.core.protocol.restored_shard import SHARD, Collection


def day(number: int) -> int:
    return parse_time(f"2023-01-{number:02}")


def file_of(number: int) -> str:
    return f"2023-01-{number:02}.txt"


@pytest.fixture
def shard(tmp_path: Path) -> Collection:
    """Days 1 to 3, and a correction of day 2 at the boundary of day 4."""
    shard = Collection(tmp_path)
    define(shard)
    for number in (1, 2, 3):
        take(shard, number)
    correct_day_two(shard, "right")
    return shard


def define(shard: Collection, path: str = "{date:%Y-%m-%d}.txt", **more: Any) -> None:
    changed = {"source": {"path": path, "format": "json"}, **more}
    shard.config = CollectionConfig.model_validate({**shard.config.model_dump(mode="json"), **changed})


def take(shard: Collection, number: int, time: int | None = None) -> str:
    shard.drop(file_of(number), [replace(ok(("eu", number), "old"), time=time)])
    return shard.run(day(number + 1))


def correct_day_two(shard: Collection, name: str) -> None:
    replace_file(shard, file_of(2), (ok(("eu", 2), name),))
    assert corrected(shard, day(2)).commit is not None


def map_anew(shard: Collection) -> None:
    for number, name in enumerate(sorted(shard.feed), 1):
        shard.feed[name] = (ok(("eu", number), "new"),)


def numbered(shard: Collection) -> list[str]:
    return [name for _, name in sorted(names(shard).items())]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_earlier_days_stay_after_corrections_before(shard: Collection, count: int) -> None:
    for number in range(1, count):
        correct_day_two(shard, f"right {number}")
    right = f"right {count - 1}" if count > 1 else "right"
    take(shard, 4)
    take(shard, 5)
    map_anew(shard)
    found = corrected(shard, day(4))
    assert (found.start.upper, found.found.total) == (day(4) + count, 2)
    assert numbered(shard) == ["old", right, "old", "new", "new"]
    assert not corrected(shard, day(4)).is_needed
    shard.check()


def forget_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a state keeps two commits."""
    for module, name in ((transitions, "MAX"), (transitions, "MIN"), (invariants, "MIN")):
        monkeypatch.setattr(module, f"{name}_COMMITS_KEPT", 2)


@pytest.mark.parametrize("is_restored", [True, False], ids=["restore", "correction"])
def test_what_was_undone_is_no_start_when_it_is_forgotten(
    shard: Collection, monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    good = shard.client.state(SHARD).commits[-1].checkpoint_id
    shard.drop(file_of(4), [ok(("eu", 4), "wrong")])
    shard.run(day(5))
    replace_file(shard, file_of(4), (ok(("eu", 4), "right"),))
    if is_restored:
        shard.go_back(good)
    else:
        assert corrected(shard, day(4)).commit is not None
    state = shard.client.state(SHARD)
    forget_commits(monkeypatch)
    shard.run(day(6))
    for number in (6, 7, 8):
        take(shard, number)
    checkpointer = Checkpointer(shard.client.blob, SHARD, state.origin.life)
    assert checkpointer.delete_checkpoint(state.commits[-1].checkpoint_id)  # as retention does
    assert not restores(shard.client, shard.client.state(SHARD))
    found = corrected(shard, day(5))
    assert (found.is_needed, found.start.upper) == (False, day(4) + 1)
    assert numbered(shard) == ["old", "right", "old", "right", "old", "old", "old"]


def test_a_forgotten_restore_after_a_dry_run_counts(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay that was kept has read what the restore has undone."""
    good, said = shard.client.state(SHARD).commits[-1].checkpoint_id, list[str]()
    take(shard, 4)
    corrected(shard, day(1), is_dry_run=True)
    shard.go_back(good)
    forget_commits(monkeypatch)
    shard.run(day(6))
    for number in (6, 7):
        take(shard, number)
    corrected(shard, day(1), say=said.append)
    assert any("it is given up" in each for each in said)


def test_with_forgotten_commits_a_checkpoint_tells(shard: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_commits(monkeypatch)
    for number in (4, 5, 6):
        take(shard, number)
    assert not restores(shard.client, shard.client.state(SHARD))
    map_anew(shard)
    assert corrected(shard, day(4)).start.upper == day(4) + 1
    assert numbered(shard) == ["old", "right", "old", "new", "new", "new"]


def test_a_restore_of_a_correction_is_a_start_too(shard: Collection) -> None:
    newest = shard.client.state(SHARD).commits[-1].checkpoint_id
    take(shard, 4)
    shard.go_back(newest)
    shard.run(day(6))
    map_anew(shard)
    assert corrected(shard, day(4)).start.upper == day(5) + 1
    assert numbered(shard) == ["old", "right", "old", "new"]


def test_a_restore_that_goes_forward_is_no_start(shard: Collection) -> None:
    """It brings back input of the day, though the commit before it had none."""
    early, late = shard.client.state(SHARD).commits[-1].checkpoint_id, take(shard, 4)
    shard.go_back(early)
    shard.go_back(late)
    take(shard, 5)
    map_anew(shard)
    assert corrected(shard, day(4)).start.upper == day(4) + 1
    assert numbered(shard) == ["old", "right", "old", "new", "new"]


def test_a_correction_that_has_read_the_day_is_no_start(shard: Collection) -> None:
    take(shard, 4)
    correct_day_two(shard, "better")
    take(shard, 5)
    state = shard.client.state(SHARD)
    assert start_for(shard.client, shard.config, state, day(4)).upper == day(2)  # it went back behind day 4
    assert start_for(shard.client, shard.config, state, day(5)).upper == day(5) + 1
    for inside in (day(5) - 1, day(4) + 1):
        assert start_for(shard.client, shard.config, state, inside).upper == day(2)


def test_a_day_that_was_not_read_needs_no_correction(shard: Collection) -> None:
    map_anew(shard)
    found = corrected(shard, day(4))
    assert (found.is_needed, found.start.upper) == (False, day(4) + 1)
    assert numbered(shard) == ["old", "right", "old"]


def test_days_that_a_restore_took_back_are_read(shard: Collection) -> None:
    """The restore's own checkpoint is at the upper: a replay from there reads nothing."""
    good = shard.client.state(SHARD).commits[-1].checkpoint_id
    take(shard, 4)
    take(shard, 5)
    shard.go_back(good)
    found = corrected(shard, day(4))
    assert (found.new, found.start.upper) == ((file_of(4), file_of(5)), day(4) + 1)
    assert numbered(shard) == ["old", "right", "old", "old", "old"]
    assert not corrected(shard, day(4)).is_needed
    shard.check()


TIMES = {"path": ("{date:%Y-%m-%d}.txt", {"source": "path"}), "records": ("*.txt", {"field": "at"})}


@pytest.mark.parametrize("begin", [3, 4, 5])
@pytest.mark.parametrize("times", TIMES)
def test_what_a_restore_made_late_comes_back(tmp_path: Path, times: str, begin: int) -> None:
    """The restore's own checkpoint was made before days 3 and 4 were read, but its upper makes them late again."""
    shard, (path, time) = Collection(tmp_path), TIMES[times]
    define(shard, path, time={**time, "late": "error"})
    points = [take(shard, number, day(number)) for number in (1, 2, 3, 4)]
    shard.go_back(points[1])
    take(shard, 5, day(5))
    assert shard.client.open_reader(SHARD).errors().num_rows == 2
    found = corrected(shard, day(begin))
    assert found.start.upper == (day(3) if begin < 5 else day(5) + 1)
    assert shard.client.open_reader(SHARD).errors().num_rows == (0 if begin < 5 else 2)
    assert numbered(shard) == ["old"] * (5 if begin < 5 else 3)
    assert not corrected(shard, day(begin)).is_needed
    take(shard, 6, day(6))
    assert corrected(shard, day(6)).start.upper == day(6) + found.is_needed, "nothing is late after a correction"
    shard.check()
