"""Where a correction ends, what it leaves alone, and what it survives: days of a zone, errs that a user has resolved,
commits that are forgotten, a long replay, and an error of cleaning up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist_core.cli.main import run_command
from persist_core.config.collection import FILES, CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.errors import InvalidInput, InvalidTime, InvariantViolation, StorageError
from persist_core.keys import hidden_shard
from persist_core.maintenance import reprocess
from persist_core.maintenance.differences import report_of
from persist_core.maintenance.maintain import maintain
from persist_core.protocol import stages
from persist_core.protocol.delta import BEGINNING, delta_since, net_of
from persist_core.protocol.difference import Differences
from persist_core.protocol.fork import fork
from persist_core.protocol.replay import PURPOSE, Start, replay_config, restores
from persist_core.protocol.resolve import plan_resolve, resolve
from persist_core.shard.state import Committed
from persist_core.sources.collection import CollectionSource
from persist_core.sources.frozen import load_frozen
from persist_core.sources.input_file import FrozenInput
from persist_core.time_text import parse_time
from tests.core.maintenance.copies import merge_all
from tests.core.maintenance.test_reprocess import HIDDEN, corrected, replace_file
from tests.core.maintenance.test_reprocess_faults import A, B, correct, made, names, ok
from tests.core.maintenance.test_reprocess_starts import forget_commits
from tests.core.protocol.ordered_shard import OrderedCollection
from tests.core.protocol.restored_shard import SHARD, Collection
from tests.core.protocol.test_ordered import put
from tests.core.protocol.test_resolve import in_files, places, unordered, with_unordered
from tests.virtual import ManualClock

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        ("2026-03-29", "2026-03-29T22:00Z"),
        ("2026-03-29T18:00", "2026-03-29T22:00Z"),
        ("2026-03-29T21:59:59Z", "2026-03-29T22:00Z"),
        ("2026-03-28T22:30Z", "2026-03-28T23:00Z"),
    ],
)
def test_the_last_day_ends_at_midnight_of_the_zone(tmp_path: Path, through: str, expected: str) -> None:
    """The day on which the clocks go forward has 23 hours."""
    config = Collection(tmp_path).config.model_copy(update={"timezone": "Europe/Berlin"})
    request = reprocess.request_of(config, begin="2026-03-01", through=through, now_ms=0)
    assert request.end_ms == parse_time(expected)


def test_a_last_day_before_the_first_is_refused(tmp_path: Path) -> None:
    config = Collection(tmp_path).config
    with pytest.raises(InvalidInput, match="--through 2026-03-01 ends before --from 2026-03-02"):
        reprocess.request_of(config, begin="2026-03-02", through="2026-03-01", now_ms=0)
    with pytest.raises(InvalidTime, match="from is 20260302, which may be a date"):
        reprocess.request_of(config, begin="20260302", through=None, now_ms=0)
    assert reprocess.request_of(config, begin="2026-03-02", through="2026-03-02", now_ms=0).end_ms


def test_an_empty_last_day_is_refused(tmp_path: Path) -> None:
    """A variable of a shell that is not set does not mean all days."""
    with pytest.raises(InvalidInput, match="through is ''; expected an ISO date"):
        reprocess.request_of(Collection(tmp_path).config, begin="2026-03-02", through="", now_ms=0)


def test_the_first_input_is_replayed_too(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    shard.drop("0.txt", [ok(A, "wrong")])
    shard.run(1)
    shard.run(20)
    replace_file(shard, "0.txt", (ok(A, "right"),))
    assert correct(shard, from_ms=0).start.checkpoint_id is None
    assert names(shard) == {A: "right"}


def test_a_last_day_beyond_all_dates_is_a_bound_too(tmp_path: Path) -> None:
    request = reprocess.request_of(Collection(tmp_path).config, begin="0", through=str(2**63 - 1), now_ms=0)
    assert request.end_ms is not None


def test_errs_that_were_resolved_do_not_come_back(tmp_path: Path) -> None:
    shard = with_unordered(OrderedCollection(tmp_path))
    resolve(shard.client, plan_resolve(shard.client, SHARD), writer="test")
    again = unordered("day=2/2.txt", 10)
    replace_file(shard, "2.txt", (put(5, "right"), again, unordered("day=2/2.txt", 12)))
    corrected(shard, 10)
    assert places(shard) == ["day=2/2.txt, line 12"]
    assert not corrected(shard, 10).is_needed
    replace_file(shard, "2.txt", (put(5, "right"),))
    corrected(shard, 10)
    assert places(shard) == []
    replace_file(shard, "2.txt", (put(5, "right"), unordered("day=2/2.txt", 12)))
    corrected(shard, 10)
    assert places(shard) == ["day=2/2.txt, line 12"]  # a correction had retracted it, not a user
    shard.check()


def test_errs_of_a_forgotten_correction_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = with_unordered(OrderedCollection(tmp_path))
    known = places(shard)
    replace_file(shard, "2.txt", (put(5, None),))
    corrected(shard, 10)
    assert places(shard) == known[:1]
    forget_commits(monkeypatch)
    for number in (3, 4, 5):
        shard.drop(f"{number}.txt", [put(number + 5, "new")])
        shard.run(10 * number)
    assert not restores(shard.client, shard.client.state(SHARD))
    replace_file(shard, "2.txt", (put(5, None), unordered("day=2/2.txt", 10), unordered("day=2/2.txt", 11)))
    corrected(shard, 10)
    assert places(shard) == known
    shard.check()


def backwards(folder: Path, count: int) -> Collection:
    """Commits whose files are in the opposite of their natural order. The newest value of `A` is the last one's."""
    shard = Collection(folder)
    shard.config = shard.config.model_copy(
        update={"retention": shard.config.retention.model_copy(update={"keep_last": 2})}
    )
    for number in range(count):
        shard.drop(f"{count - number}.txt", [ok(A, f"commit {number}"), ok(("eu", 10 + number), "own")])
        shard.run(10 * (number + 1))
    return shard


def test_no_other_order_takes_the_place_of_forgotten_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_commits(monkeypatch)
    shard = backwards(tmp_path, 8)
    replace_file(shard, "1.txt", (ok(A, "right"),))
    with pytest.raises(
        InvalidInput, match=r"some of its commits before .* are no\s+longer known.* from 70 on"
    ) as found:
        correct(shard, from_ms=5)
    assert shard.client.machine.fetch(HIDDEN) is None
    assert "Nothing was changed" in str(found.value)
    correct(shard, from_ms=70)
    assert names(shard)[A] == "right"


def test_a_file_takes_the_turn_that_counts(tmp_path: Path) -> None:
    """After a restore files are consumed again, together with newer ones."""
    shard = Collection(tmp_path)
    ids = []
    for number, name in enumerate(("1.txt", "3.txt")):
        shard.drop(name, [ok(A, name)])
        ids.append(shard.run(10 * (number + 1)))
    shard.go_back(ids[0])
    shard.drop("2.txt", [ok(A, "2.txt")])
    shard.run(30)
    assert names(shard)[A] == "3.txt"
    found = correct(shard, from_ms=5)
    assert not found.is_needed
    assert names(shard)[A] == "3.txt"


def test_a_restore_that_is_undone_keeps_the_turns(tmp_path: Path) -> None:
    """It puts back files of several turns in one commit."""
    shard = Collection(tmp_path)
    ids = []
    for number, name in enumerate(("3.txt", "2.txt", "1.txt")):
        shard.drop(name, [ok(A, name)])
        ids.append(shard.run(10 * (number + 1)))
    shard.go_back(ids[0])
    shard.go_back(ids[-1])
    assert not correct(shard, from_ms=5).is_needed
    assert names(shard)[A] == "1.txt"


def test_a_file_that_was_set_aside_takes_the_turn_of_its_read(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    shard.drop("1.txt", [ok(A, "corrected")])
    description = shard.mint(10)
    assert description.input_key is not None
    frozen = load_frozen(shard.client.blob, description.input_key, FrozenInput)
    files = CollectionSource(shard.client, shard.config).files
    progress = files.set_aside(description.sources[FILES], frozen.files, era=description.era or 0)
    unread = replace(description, input_key=None, sources={FILES: progress})
    assert isinstance(stages.append(shard.client, unread, shard.write(unread)), Committed)
    stages.checkpoint(shard.client, shard.config)
    shard.drop("2.txt", [ok(A, "2")])
    shard.run(20)
    (shard.folder / "1.txt").write_text("other bytes")
    shard.run(30)
    assert names(shard) == {A: "corrected"}
    for from_ms in (0, 10):
        assert not correct(shard, from_ms=from_ms).is_needed
    assert names(shard) == {A: "corrected"}


def test_a_second_correction_takes_a_new_file_by_its_date_too(tmp_path: Path) -> None:
    shard = Collection(tmp_path)
    source = {"path": "{date:%Y-%m-%d}-*.txt", "format": "json"}
    shard.config = CollectionConfig.model_validate({**shard.config.model_dump(mode="json"), "source": source})
    for day in (1, 2):
        shard.drop(f"2023-01-0{day}-a.txt", [ok(A, f"day {day}")])
        shard.run(parse_time(f"2023-01-0{day + 1}"))
    shard.drop("2023-01-01-late.txt", [ok(A, "late"), ok(B, "late")])
    begin = parse_time("2023-01-01")
    assert correct(shard, from_ms=begin).new == ("2023-01-01-late.txt",)
    assert names(shard) == {A: "day 2", B: "late"}
    assert not correct(shard, from_ms=begin).is_needed
    assert names(shard) == {A: "day 2", B: "late"}


def test_a_long_replay_keeps_its_history(tmp_path: Path) -> None:
    shard = made(tmp_path)
    shard.client.set_history(SHARD, 0)

    def slowly(_: BatchDescription) -> None:
        assert isinstance(shard.clock, ManualClock)
        shard.clock.sleep_ms(20 * HOUR_MS)
        shard.client.advance_since(SHARD)

    assert correct(shard, first=slowly).commit is not None
    assert names(shard) == {A: "right", B: "three"}
    assert not shard.client.state(SHARD).leases


def test_a_correction_stands_if_cleaning_up_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = made(tmp_path)

    def failing(*_: Any, **__: Any) -> bool:
        raise StorageError("the store is away")

    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(reprocess, "end", failing)
        found = correct(shard, say=lines.append)
        assert found.commit is not None
        assert not correct(shard).is_needed
        patch.setattr("persist_core.maintenance.maintain.tidy", failing)
        done = maintain(shard.client, SHARD)
    assert any("not cleaned up yet" in line and "the store is away" in line for line in lines)
    assert "the store is away" in done.did
    assert shard.client.state(HIDDEN).commits
    assert names(shard) == {A: "right", B: "three"}
    correct(shard)
    assert not shard.client.state(HIDDEN).commits


def test_the_rows_of_a_fork_within_a_run_are_unknown(tmp_path: Path) -> None:
    shard = made(tmp_path)
    first = shard.client.state(SHARD).commits[0].checkpoint_id
    merge_all(shard.client, SHARD)
    fork(shard.client, SHARD, first, "twin", writer="test")
    twin = shard.beside("twin")
    twin.run(20)
    replace_file(twin, "2.txt", (ok(B, "other"),))
    hidden = twin.beside(hidden_shard("twin", PURPOSE))
    asked = reprocess.Request(10, max_changed=("90 %",))
    with pytest.raises(InvalidInput, match="changes 1 of an unknown number of rows of twin, more than 90 %"):
        reprocess.reprocess(
            twin.client,
            twin.config,
            asked,
            write=lambda _, description: hidden.write(description),
            writer="test",
            say=lambda _: None,
        )


def test_names_of_files_are_safe_to_print() -> None:
    names = ("\x1b[2Jred.txt", *(f"{number:02}.txt" for number in range(22)))
    nothing = Differences(0, 0, 0, 0, 0, {}, pa.table({}))
    found = reprocess.Reprocessed(SHARD, Start(None, BEGINNING, None), names, (), (), nothing, 3, is_needed=True)
    assert "files replaced: \\x1b[2Jred.txt, 00.txt, 01" in report_of(found).lines[1]
    assert report_of(found).lines[1].endswith("18.txt and 3 more")


def test_a_net_change_that_is_impossible_says_since_when(tmp_path: Path) -> None:
    shard = made(tmp_path)
    state = shard.client.state(SHARD)
    delta = delta_since(shard.client.open_reader(SHARD), state, 9)
    with pytest.raises(InvariantViolation, match=r"since two o'clock .* more than once"):
        net_of([(1, delta), (1, delta)], shard.schema, 30, since="two o'clock")


def test_describe_says_where_a_correction_can_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_files(tmp_path) as (_, options):
        pass
    capsys.readouterr()
    assert run_command(["describe", SHARD, "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["reprocess_from"] == 10
    assert run_command(["describe", SHARD, *options]) == 0
    assert "replays days from 10 on; earlier ones by all input" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", ["in/*.txt", "in/{date:%Y-%m-%d}.txt", "s3://feed/*.txt", "s3://feed/{date:%Y/%m/%d}/*"]
)
def test_a_replays_collection_is_a_valid_one(tmp_path: Path, path: str) -> None:
    """Its job reads it from JSON."""
    body = Collection(tmp_path).config.model_dump(mode="json") | {"source": {"path": path, "format": "json"}}
    replayed = replay_config(CollectionConfig.model_validate(body))
    assert CollectionConfig.model_validate_json(replayed.model_dump_json()) == replayed


def test_too_many_changes_are_refused_before_the_replay(tmp_path: Path) -> None:
    shard = made(tmp_path)
    with pytest.raises(InvalidInput, match="the limit is 0"):
        corrected(shard, 10, max_updates=0)
    assert shard.client.machine.fetch(HIDDEN) is None
