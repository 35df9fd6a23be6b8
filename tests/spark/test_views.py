"""A view as of each refresh is its query over the inputs as of that time, for many queries and random histories."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from persist_core.maintenance.fsck import fsck
from persist_spark.frame import user_fields
from persist_spark.view.rows import queried, shaped
from tests.sampling import sample
from tests.spark.view_histories import QUERIES, SCHEMAS, History
from tests.spark.view_shards import ViewShards, texts, view

REFRESHES = (3, 7)
QUERIES_OF_A_SESSION = 6  # by the seed; all of them at night


class World:
    """The inputs, grown refresh by refresh, and what they hold by a model, as plain tables."""

    def __init__(self, spark: SparkSession, folder: Path, seed: str) -> None:
        self.spark, self.shards, history = spark, ViewShards(spark, folder), History(seed)
        self.tables: dict[tuple[str, int], DataFrame] = {}
        for lower, upper in itertools.pairwise((0, *REFRESHES)):
            history.grow(self.shards, lower, upper)
            for name, schema in SCHEMAS.items():
                table = spark.createDataFrame(history.contents(name, upper - 1), T.StructType(user_fields(schema)))
                self.tables[name, upper] = table

    def wanted(self, name: str, upper: int) -> Counter[str]:
        """The query over plain tables."""
        inputs, query = QUERIES[name]
        tables = {each: self.tables[each, upper] for each in inputs}
        _, rows = shaped(name, queried(self.spark, name, query, tables))
        return texts(row.asDict() for row in rows.collect())


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, persist_seed: int) -> World:
    return World(spark, tmp_path_factory.mktemp("views"), f"{persist_seed}/views")


@pytest.mark.parametrize("name", sample(QUERIES, QUERIES_OF_A_SESSION, "views"))
def test_a_view_is_its_query_at_every_refresh(world: World, name: str) -> None:
    inputs, query = QUERIES[name]
    config, shards = view(f"v-{name}", query, inputs), world.shards
    held: list[Counter[str]] = [Counter()]
    for upper in REFRESHES:
        stats = shards.refresh(config, upper).stats
        before, now = held[-1], world.wanted(name, upper)
        assert shards.rows(config.name) == now
        assert (stats["rows"], stats["corrections"]) == (now.total(), 0)
        assert (stats["inserted"], stats["retracted"]) == ((now - before).total(), (before - now).total())
        held.append(now)
    early, late = (upper - 1 for upper in REFRESHES)
    assert shards.rows(config.name, early) == held[1]
    changes = shards.changes(config.name, early, late)
    changes.update(held[1])
    assert {row: count for row, count in changes.items() if count} == dict(held[2])
    assert fsck(shards.client, config.name).is_clean
