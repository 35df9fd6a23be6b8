"""Listings on S3 that leave out old dates, after changes: no file is passed over, or read after newer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_core.errors import RunFailed
from persist_core.protocol.fork import fork
from tests.core.maintenance.rebuilt_shard import rebuilt
from tests.core.maintenance.test_reprocess import corrected
from tests.core.protocol.restored_shard import SHARD
from tests.core.protocol.shard_on_s3 import CollectionOnS3, day, file_of, ok, reads_objects
from tests.core.protocol.test_in_time import change

HOUR_MS = 3_600_000


def on_s3(folder: Path, monkeypatch: pytest.MonkeyPatch, max_files: int = 1000) -> CollectionOnS3:
    return reads_objects(monkeypatch, CollectionOnS3(folder, max_files=max_files))


def run_daily(shard: CollectionOnS3, days: int) -> list[str]:
    """A file and a run each day, and a run an hour later; the checkpoints of the days. Key 1 is in each file."""
    ids = []
    for number in range(1, days + 1):
        shard.drop(file_of(number), [ok(1, f"v{number}", number), ok(100 + number, "", number)])
        ids.append(shard.run(day(number + 1)))
    shard.run(day(days + 1) + HOUR_MS)
    return ids


@pytest.mark.parametrize("then", ["run", "change", "fork"])
def test_the_run_after_a_restore_lists_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """The files of the last week alone would be read first, and older ones after them."""
    shard = on_s3(tmp_path, monkeypatch)
    ids = run_daily(shard, 14)
    again = shard.go_back(ids[1]).commit.checkpoint_id
    if then == "change":
        change(shard)
    elif then == "fork":
        fork(shard.client, SHARD, again, "twin", writer="test")
        shard = shard.beside("twin")
    assert shard.files_of(shard.mint(day(15) + 2 * HOUR_MS)) == [file_of(number) for number in range(3, 15)]
    for until in (day(15) + 2 * HOUR_MS, day(16), day(17)):
        shard.run(until)
    assert (shard.names()[1], len(shard.names())) == ("v14", 15)
    shard.check()


def test_a_correction_each_day_lets_a_late_file_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change moves the upper past midnight. Still the run after it is the first one of that day."""
    shard = on_s3(tmp_path, monkeypatch)
    for number in range(1, 15):
        shard.drop(file_of(number), [ok(100 + number, "", number)])
        shard.run(day(number + 1))
        if number == 12:
            shard.drop("2023-01-02b.txt", [ok(1, "late", 2)])
        if number >= 11:
            shard.drop(file_of(number), [ok(100 + number, "right", number)])
            assert corrected(shard, day(number)).commit is not None
            change(shard)
    assert shard.names()[1] == "late"
    shard.check()


def load_backlog(shard: CollectionOnS3) -> None:
    """Hourly runs take a backlog of 12 days in three turns of one day, 4 files each."""
    for number in range(1, 13):
        shard.drop(file_of(number), [ok(1, f"v{number}", number), ok(100 + number, "", number)])
    for hour in (1, 2, 3, 4):
        shard.run(day(25) + hour * HOUR_MS)
    assert len(shard.names()) == 13


@pytest.mark.parametrize("how", ["reprocess", "rebuild"])
def test_a_replay_lists_all_in_each_of_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    shard = on_s3(tmp_path, monkeypatch, max_files=4)
    load_backlog(shard)
    shard.drop(file_of(2), [ok(1, "v2", 2), ok(102, "corrected", 2)])
    if how == "reprocess":
        found = corrected(shard, 0)
        assert (found.replaced, found.gone) == ((file_of(2),), ())
    else:
        assert rebuilt(shard).gone == ()
    names = shard.names()
    assert (names[1], names[102], len(names)) == ("v12", "corrected", 13)
    assert shard.files_of(shard.mint(day(25) + 5 * HOUR_MS)) == []


def test_a_replay_that_lacks_files_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are deleted while it is at work are not taken back unasked."""
    shard = on_s3(tmp_path, monkeypatch)
    run_daily(shard, 3)
    shard.drop(file_of(2), [ok(102, "corrected", 2)])

    def take_out(line: str) -> None:
        if line.startswith("replayed") and f"feed/{file_of(3)}" in shard.objects.facts:
            shard.take_out(file_of(3))

    with pytest.raises(RunFailed, match=r"has not found 1 files that were there when it began: 2023-01-03\.txt"):
        corrected(shard, day(2), say=take_out)
    assert (shard.names()[1], len(shard.names())) == ("v3", 4)
