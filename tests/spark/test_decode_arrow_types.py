"""Parquet files of writers that note Arrow's types in the footer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.decode_feed import Feed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_parquet_of_arrow_types_with_known_storage(spark: SparkSession, tmp_path: Path) -> None:
    """Writers note Arrow's own types beside Parquet's: views of texts, JSON, UUID and others."""
    (tmp_path / "in").mkdir()
    feed = Feed(spark, tmp_path / "in")
    table = {
        "id": [1],
        "name": pa.array(["a"], pa.string_view()),
        "raw": pa.array([b"\xff"], pa.binary_view()),
        "body": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\xfe" * 16], pa.binary(16))),
        "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
    }
    pq.write_table(pa.table(table), feed.folder / "1.parquet")
    columns = {"id": "bigint", "name": "string", "raw": "binary", "body": "json", "uuid": "binary", "flag": "boolean"}
    (row,) = feed.records("parquet", columns)
    assert [row[name] for name in columns] == [1, "a", b"\xff", '{"a": 1}', b"\xfe" * 16, True]
