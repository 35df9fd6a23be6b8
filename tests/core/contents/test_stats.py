"""Log lines of a run, of a checkpoint and of times."""

from __future__ import annotations

import pytest

from persist_core.checkpoint.publish import CheckpointReport
from persist_core.contents.stats import DrainStats, ViewStats, in_words
from persist_core.time_text import parse_time, show_interval


def test_the_changes_of_a_collection_in_one_line() -> None:
    stats = DrainStats(inserts=21, updates=16, deletes=10, errors=1, stashed=3).to_json()
    assert in_words("customers", stats) == (
        "+21 rows, 16 updated, 10 deleted, 1 error (persist errors customers), 3 in the stash until their time"
    )
    assert in_words("customers", DrainStats().to_json()) == "+0 rows, 0 updated, 0 deleted"


def test_the_changes_of_a_view_in_one_line() -> None:
    stats = ViewStats(
        rows=9,
        errs=2,
        inserted=4,
        retracted=1,
        errs_inserted=2,
        errs_retracted=0,
        updates=7,
        corrections=0,
        contents_0=1,
        contents_1=2,
    )
    assert in_words("totals", stats.to_json()) == "+4 rows, 1 deleted, 2 errors (persist errors totals)"


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        ("2026-01-02", "2026-01-03", "2026-01-02 -> 2026-01-03 (1767312000000 -> 1767398400000)"),
        ("2026-01-02T06:00:00Z", None, "2026-01-02T06:00:00Z -> closed (1767333600000 -> closed)"),
        ("7", "9", "7 -> 9"),
        ("0", "2026-01-03", "0 -> 2026-01-03 (0 -> 1767398400000)"),
    ],
)
def test_an_interval_is_shown_as_dates_with_its_numbers(lower: str, upper: str | None, said: str) -> None:
    assert show_interval(parse_time(lower), None if upper is None else parse_time(upper)) == said


def test_a_checkpoint_task_says_what_it_did() -> None:
    done = CheckpointReport(("c2",), checkpoint_id="c2", epoch=2, deleted=("c0",), kept=2)
    assert str(done) == "checkpoint c2 (epoch 2) published; 2 checkpoints kept; deleted 1 that are not retained"
    again = CheckpointReport((), checkpoint_id="c2", epoch=2, deleted=(), kept=2)
    assert str(again) == "checkpoint c2 (epoch 2) was published before; 2 checkpoints kept"
