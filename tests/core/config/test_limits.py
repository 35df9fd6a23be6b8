"""`limits.max_errors`: what it takes, and which run reaches it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from persist_core.config.limits import DEFAULT, ErrorLimits, LimitsConfig, reached_limit


@pytest.mark.parametrize(
    ("given", "read"),
    [(7, (7,)), ("5 %", ("5 %",)), ("0.5%", ("0.5%",)), ([9, "5 %"], (9, "5 %")), (None, None)],
)
def test_a_number_a_share_or_both(given: Any, read: ErrorLimits) -> None:
    limits = LimitsConfig(max_errors=given)
    assert limits.max_errors == read
    assert LimitsConfig.model_validate(limits.model_dump(mode="json")) == limits


@pytest.mark.parametrize("given", [-1, "5", "101 %", "x %", True, 1.5, [], [1, 2], ["1 %", "2 %"], [1, "1 %", 2]])
def test_what_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="found"):
        LimitsConfig(max_errors=given)


@pytest.mark.parametrize(
    ("limits", "errors", "records", "message"),
    [
        (DEFAULT, 1000, 50_000, None),
        (DEFAULT, 1001, 50_000, "at most 1000"),
        (DEFAULT, 5, 100, None),
        (DEFAULT, 6, 100, "at most 5 %"),
        (DEFAULT, 98, 99, None),  # a share of so few says little
        (DEFAULT, 1, 1, "no record is good"),
        ((1000,), 130, 130, "no record is good"),
        (DEFAULT, 0, 0, None),
        (None, 130, 130, None),
        (("0 %",), 1, 100, "at most 0 %"),
    ],
)
def test_which_run_reaches_it(limits: ErrorLimits, errors: int, records: int, message: str | None) -> None:
    found = reached_limit(limits, errors=errors, bad_records=errors, records=records)
    assert found is None if message is None else message in str(found)


def test_files_set_aside_count_as_errors_not_as_records() -> None:
    assert reached_limit(DEFAULT, errors=3, bad_records=0, records=0) is None
    assert reached_limit((2,), errors=3, bad_records=0, records=0) == "at most 2 are allowed"
