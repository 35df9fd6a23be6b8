"""Guesses at types: what values always are, and when another type is suggested."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from persist_core.config.column import ColumnConfig
from persist_core.sample.guess import better, guess

MS = 1_767_225_600_000  # 2026-01-01


@pytest.mark.parametrize(
    ("values", "is_text", "expected"),
    [
        ([1, None, 7], False, ("bigint", None)),
        ([2**63, 1], False, ("decimal(19,0)", None)),
        ([MS, MS + 5], False, ("timestamp", "ms")),
        ([MS * 1000], False, ("timestamp", "us")),
        ([MS * 10**6], False, ("timestamp", "ns")),
        ([MS // 1000], False, ("bigint", None)),
        ([MS, 5], False, ("bigint", None)),
        ([Decimal("1.50"), 7], False, ("decimal(18,2)", None)),
        ([Decimal("0.1234567891234")], False, ("double", None)),
        ([Decimal("0.123456789123456789")], False, ("decimal(38,18)", None)),
        ([Decimal("1e400")], False, ("string", None)),
        ([10**30 + 1], False, ("decimal(31,0)", None)),
        ([MS * 10**6 + 1], False, ("bigint", None)),
        (["1.50", "22"], False, ("decimal(18,2)", None)),
        (["2026-01-31", "2026-02-01Z"], False, ("date", None)),
        (["2026-01-31", "2026-02-31"], False, ("string", None)),
        (["1950-01-31"], False, ("date", None)),
        (["2026-01-31T10:00:00.123456+01:00", "1950-01-31 10:00Z"], False, ("timestamp", None)),
        (["2026-01-31T10:00:00.123456789Z"], False, ("string", None)),
        (["2026-01-31 10:00:00 Europe/Berlin"], False, ("string", None)),
        (["2026-01-31T10:00:00+99:99"], False, ("string", None)),
        (["2026-01-31T10:00:00+18:00", "2026-01-31T10:00:00-17:59"], False, ("timestamp", None)),
        (["2026-01-31T10:00:00-18:01"], False, ("string", None)),
        (["2026-01-31T10:00:00+19:00"], False, ("string", None)),
        (["7", "8"], False, ("string", None)),
        (["7", "8"], True, ("bigint", None)),
        (["007", "8"], True, ("string", None)),
        (["true", "f"], True, ("boolean", None)),
        ([True, None], False, ("boolean", None)),
        ([{"a": 1}, [2]], False, ("json", None)),
        ([1, "a"], False, ("string", None)),
    ],
)
def test_types(values: list[Any], is_text: bool, expected: tuple[str, str | None]) -> None:
    found = guess("x", values, is_text=is_text)
    assert found is not None
    assert (found.type, found.unit) == expected


def test_whole_seconds_are_times_only_under_the_name_of_a_time() -> None:
    found = guess("created_at", [MS // 1000])
    assert found is not None
    assert found.unit == "s"


def test_a_number_with_too_many_digits_is_text() -> None:
    found = guess("x", ["1" * 5000], is_text=True)
    assert found is not None
    assert found.type == "string"


def test_nothing_is_guessed_from_nothing() -> None:
    assert guess("x", [None]) is None
    assert better("x", ColumnConfig(type="string"), [None], is_text=False, in_schema=False) is None


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (
            {"type": "bigint"},
            [MS, MS + 1],
            "`x` is always a whole number between 2000 and 2036 in ms since 1970: did"
            " you mean `timestamp`, `unit: ms`?",
        ),
        ({"type": "timestamp"}, [MS * 1000], "did you mean `timestamp`, `unit: us`?"),
        ({"type": "timestamp", "unit": "ms"}, [MS * 1000], "did you mean `timestamp`, `unit: us`?"),
        ({"type": "timestamp", "unit": "us"}, [MS * 1000], None),
        ({"type": "string"}, ["2026-01-31"], "`x` is always a date: did you mean `date`?"),
        ({"type": "string"}, ["1.5"], "did you mean `decimal(18,1)`?"),
        ({"type": "string"}, ["a", "2026-01-31"], None),
        ({"type": "decimal(9,2)"}, [Decimal("1.005")], "3 digits after the point: did you mean `decimal(18,3)`"),
        ({"type": "decimal(9,2)"}, [Decimal("1.05"), 3], None),
        ({"type": "bigint"}, [Decimal("1.5")], "did you mean `decimal(18,1)`?"),
        ({"type": "int"}, [2**31], "`x` has whole numbers beyond 32 bits: did you mean `bigint`?"),
        ({"type": "int"}, [5], None),
        ({"type": "double"}, [Decimal("1.5")], None),
        ({"type": "json"}, [{"a": 1}], None),
    ],
)
def test_a_better_type_is_a_question(column: dict[str, Any], values: list[Any], expected: str | None) -> None:
    found = better("x", ColumnConfig.model_validate(column), values, is_text=False, in_schema=False)
    assert found is expected if expected is None else expected in (found or "")


def test_a_schema_in_the_message_says_the_unit() -> None:
    column = ColumnConfig(type="timestamp")
    assert better("x", column, [MS * 1000], is_text=False, in_schema=True) is None
