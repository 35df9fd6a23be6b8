"""Errs in groups: what stays of a message, and that memory is bounded."""

from __future__ import annotations

import pytest

from persist_core.contents.err_groups import ErrGroup, grouped, lines_of, pattern_of
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION

OTHERS = "errors with other messages, or not looked at"


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("column 'c12' is '17672256'; expected bigint", "column 'c12' is '...'; expected bigint"),
        ("column 'n' is 'O'Brien; x'; expected decimal(10,2), without rounding",
         "column 'n' is '...'; expected decimal(10,2), without rounding"),
        ("column 'id' is missing or null; a key needs a value", "column 'id' is missing or null; a key needs a value"),
        ("time field 'at' is 'x'; expected ms since 1970 or an ISO timestamp, from 1970 on",
         "time field 'at' is '...'; expected ms since 1970 or an ISO timestamp, from 1970 on"),
        ("time 2026-01-01T00:00:00Z (1767225600000) lies before 2026-01-02T00:00:00Z (1767312000000), which is final",
         "time ... (...) lies before ... (...), which is final"),
        ("op is 'q'; expected one of c, r", "op is '...'; expected one of c, r"),
        ("file 'a.gz' (123 bytes) is damaged", "file '...' (... bytes) is damaged"),
    ],
)  # fmt: skip
def test_what_differs_from_record_to_record_is_left_out(message: str, pattern: str) -> None:
    assert pattern_of(message) == pattern


def err(message: str, number: int = 0) -> dict[str, object]:
    return {
        ERR_KIND: "value",
        ERR_MESSAGE: message,
        ERR_POSITION: f"a, line {number}",
        ERR_PAYLOAD: b"\xff" + b"x" * 999,
    }


def test_the_most_frequent_come_first_with_their_first_record() -> None:
    errs = [err("odd", 1), *(err(f"column 'n' is '{number}'; expected int", number) for number in range(2, 5))]
    first, second = grouped(errs)
    assert (first.count, first.message, first.position) == (3, "column 'n' is '...'; expected int", "a, line 2")
    assert (second.count, second.message, second.position) == (1, "odd", "a, line 1")
    assert len(first.payload) == 200
    assert grouped(errs, 1)[1] == ErrGroup("other", OTHERS, 1, OTHERS)
    assert lines_of(grouped(errs, 1), has_payloads=False) == [
        "3 value: column 'n' is '...'; expected int; the first: a, line 2",
        f"1 other: {OTHERS}",
    ]


def test_more_messages_than_memory_holds_are_counted_together() -> None:
    groups = grouped(err(f"message{'x' * number}") for number in range(1, 1_200))
    assert len(groups) <= 1_001
    assert sum(group.count for group in groups) == 1_199
    assert grouped([]) == ()


def test_lines_count_all_errs_also_those_without_a_group() -> None:
    different = [err(f"message{'x' * number}") for number in range(25)]
    assert lines_of(grouped(different))[-1] == f"15 other: {OTHERS}"
    assert lines_of(grouped(different, 10, of=40))[-1] == f"30 other: {OTHERS}"
    assert lines_of(grouped(different[:1] * 3, 10, of=4))[1:] == [f"1 other: {OTHERS}"]
