"""A table of some hundred columns: no expression may be nested once for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sampling import is_long, sample
from tests.spark.test_fill import Table, write

TYPES = {"int": 1, "string": "x", "date": "2026-01-01", "decimal(9,2)": "1.50", "timestamp": "2026-01-01T00:00:00Z"}
COLUMNS: dict[str, Any] = {f"c{place}": [*TYPES][place % len(TYPES)] for place in range(300)}
RECORD = {name: TYPES[kind] for name, kind in COLUMNS.items()}


@pytest.mark.family("sizes")
@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    "kind", [*sample(["json", "csv", "parquet"], 1, "wide"), *(["debezium-json"] if is_long() else [])]
)
def test_a_table_of_300_columns_is_loaded(tmp_path: Path, kind: str) -> None:
    more = {"order": "log"} if kind == "debezium-json" else {"delete": "none"}
    path = tmp_path / "in" / "a"
    records: list[dict[str, Any]] = [{"id": 1, **RECORD}, {"id": 2}, {"id": 3, **RECORD, "c200": "x"}]
    table = Table(tmp_path, "t", {"path": str(path), "format": kind}, {**more, "limits": {"max_errors": None}})
    table.define({**COLUMNS, "more": "json"})
    if kind == "parquet":
        path.parent.mkdir()
        texts = [{name: str(value) for name, value in each.items() if name != "id"} for each in records]
        cells = [{"id": place + 1, **dict.fromkeys(COLUMNS), **each} for place, each in enumerate(texts)]
        pq.write_table(pa.Table.from_pylist(cells), path)
    else:
        write(path, kind, records)
    table.persist("run")
    rows = table.rows()
    assert {number: sum(value is not None for value in row.values()) for number, row in rows.items()} == {1: 301, 2: 1}
    assert table.errs() == {3}
