"""Texts of a view that are not UTF-8: Spark makes them of bytes, and no reader could read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from persist_core.errors import RunFailed
from persist_core.schema import DIFF, TIME, CollectionSchema, Column
from persist_spark.view.difference import install_desired_into_persist
from tests.spark.view_shards import ITEMS, ViewShards, view

BROKEN = ("X'FF41'", "CASE WHEN id > 1 THEN unhex('EDA080') END", "substring(encode(colour, 'UTF-8'), 1, 4)")


@pytest.mark.parametrize("made", BROKEN)
def test_a_refresh_names_the_column_and_commits_nothing(spark: SparkSession, tmp_path: Path, made: str) -> None:
    shards = ViewShards(spark, tmp_path)
    shards.commit("items", ITEMS, 5, [((1, "grün", 5), 1, 1), ((2, "blé", 7), 2, 1), ((3, "rouß𝄞", 1), 3, 1)])
    config = view("w", f"SELECT id, colour, CAST({made} AS STRING) AS `it's` FROM items", ["items"])
    with pytest.raises(RunFailed, match=r'(?s)view w: .*column "it\'s" holds a text that is not UTF-8'):
        shards.refresh(config)
    with pytest.raises(RunFailed, match=r'column "it\'s" holds a text that is not UTF-8'):
        shards.dry_run(config, 4)
    assert not shards.client.state("w").commits


def test_what_was_committed_before_can_be_taken_out(spark: SparkSession) -> None:
    schema = CollectionSchema(key=(), values=(Column("s", "string"),))
    held = spark.sql(f"SELECT CAST(unhex(hex) AS STRING) AS s, 5L AS {TIME}, 1L AS {DIFF} FROM VALUES ('FF') AS t(hex)")
    installed = install_desired_into_persist(held.select("s").limit(0), None, held, None, schema=schema, at=20)
    assert [tuple(row) for row in installed.updates.selectExpr(DIFF, "hex(s)").collect()] == [(-1, "FF")]
