"""Arrow values as JSON: the text of a value does not depend on the rows beside it."""

from __future__ import annotations

import pyarrow as pa

from persist_core.inspection.values import json_rows


def test_far_dates_and_times_are_exact() -> None:
    """PostgreSQL's infinity comes through DuckDB as the largest time; Arrow prints years in 16 bits, or fails."""
    times = [2**63 - 1, -(2**63) + 1, 971_890_963_200_000_000, -62_135_596_800_000_001, 0, None]
    days = [2**31 - 1, -(2**31), 2_932_897, -719_529, 0, None]
    table = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "day": pa.array(days, pa.date32())})
    assert [tuple(row.values()) for row in json_rows(table)] == [
        ("+294247-01-10T04:00:54.775807Z", "+5881580-07-11"),
        ("-290308-12-21T19:59:05.224193Z", "-5877641-06-23"),
        ("+32768-01-01T00:00:00.000000Z", "+10000-01-01"),
        ("0000-12-31T23:59:59.999999Z", "-0001-12-31"),
        ("1970-01-01T00:00:00.000000Z", "1970-01-01"),
        (None, None),
    ]
