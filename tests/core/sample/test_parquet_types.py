"""Columns of Parquet files whose types Spark cannot read: a collection that names one makes an err of each row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from persist_core.config.collection import CollectionConfig
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.sample.found import found_by
from persist_core.sample.propose import new_columns, propose

KINDS = {
    "clock": pa.time64("us"),
    "always_null": pa.time32("ms"),
    "big": pa.decimal256(39, 2),
    "deep": pa.struct([("n", pa.list_(pa.decimal256(50, 0)))]),
    "by_name": pa.map_(pa.string(), pa.time64("ns")),
}


def test_types_that_spark_cannot_read_are_no_columns(tmp_path: Path) -> None:
    values = [1_000, None, 7, {"n": [1]}, [("x", 1_000)]]
    columns = {name: pa.array([value], KINDS[name]) for name, value in zip(KINDS, values, strict=True)}
    readable = {"id": pa.array([1]), "small": pa.array([2], pa.decimal256(38, 2))}
    pq.write_table(pa.table({**columns, **readable}), tmp_path / "a.parquet")
    given = found_by([str(tmp_path / "a.parquet")], OpenLocation(MemBlob(), MemConsensus()))
    text = propose(given, folder=None)
    for name, kind in KINDS.items():
        assert f"\n  # {name}: Spark cannot read its type {str(kind)[:10]}" in text
        assert f"\n  {name}:" not in text
    assert "\n  small: decimal(18,2) #" in text
    body = {"source": {"path": "*.parquet", "format": "parquet"}, "key": "id", "columns": {"id": "bigint"}}
    config = CollectionConfig.model_validate({"name": "a", **body, "delete": "none", "base_dir": str(tmp_path)})
    lines, _ = new_columns(config, given.feed, given.files)
    assert [each.field for each in lines if each.text is not None] == ["small"]
