"""Columns of a view that come, go and change, as the columns of its inputs do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.contents.batch import BatchDescription
from persist_core.errors import SchemaMismatch
from persist_core.maintenance.drop import create_again, drop
from persist_core.protocol import stages
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.state import Committed
from tests.spark.view_shards import ITEMS, ViewShards, text, view


def row(**cells: Any) -> str:
    return text(cells)


@pytest.fixture
def shards(spark: SparkSession, tmp_path: Path) -> ViewShards:
    """`items` with a red and a blue one, up to 5."""
    made = ViewShards(spark, tmp_path)
    made.commit("items", ITEMS, 5, [((1, "red", 5), 1, 1), ((2, "blue", 7), 2, 1)])
    return made


def test_columns_evolve_and_nothing_is_guessed(shards: ViewShards) -> None:
    shards.refresh(view("v", "SELECT id FROM items", ["items"]))
    shards.commit("items", ITEMS, 8)
    with pytest.raises(SchemaMismatch, match=r"write `renamed: \{number: id\}`; if not, write `dropped: \[id\]`"):
        shards.refresh(view("v", "SELECT id AS number FROM items", ["items"]))
    stats = shards.refresh(view("v", "SELECT id, colour FROM items", ["items"])).stats
    assert (stats["inserted"], stats["retracted"], stats["corrections"]) == (2, 2, 0)
    assert shards.rows("v") == {row(id=1, colour="red"): 1, row(id=2, colour="blue"): 1}


def test_a_view_follows_columns_without_a_change_of_rows(shards: ViewShards) -> None:
    every = view("every", "SELECT * FROM items", ["items"], dropped=["colour"])
    texts = view("texts", "SELECT to_json(struct(every.*)) AS j FROM every", ["every"])
    less = CollectionSchema(key=ITEMS.key, values=(Column("n", "int"),), dropped=("colour",))
    for schema, upper in ((ITEMS, 8), (less, 9)):
        shards.commit("items", schema, upper)
        assert [shards.refresh(each).stats["corrections"] for each in (every, texts)] == [0, 0]
    assert shards.rows("every") == {row(id=1, n=5): 1, row(id=2, n=7): 1}
    assert shards.rows("texts") == {row(j='{"id":1,"n":5}'): 1, row(j='{"id":2,"n":7}'): 1}


def test_a_column_that_input_and_view_lose_is_no_correction(shards: ViewShards) -> None:
    shards.refresh(view("v", "SELECT id, colour FROM items", ["items"]))
    shards.commit("items", CollectionSchema(key=ITEMS.key, values=(Column("n", "int"),), dropped=("colour",)), 8)
    stats = shards.refresh(view("v", "SELECT id FROM items", ["items"], dropped=["colour"])).stats
    assert (stats["updates"], stats["corrections"]) == (0, 0)
    shards.commit("v", CollectionSchema(key=(), values=(Column("id", "int"),)), 9, [((3,), 8, 1)])
    shards.commit("items", ITEMS, 10)
    assert shards.refresh(view("v", "SELECT id, colour FROM items", ["items"])).stats["corrections"] == 1
    assert shards.rows("v") == {row(id=1, colour=None): 1, row(id=2, colour=None): 1}


def test_a_refresh_reads_the_columns_that_were_frozen(shards: ViewShards) -> None:
    """An input may lose one between mint and write, or between two tries of write."""
    colours = view("v", "SELECT id, colour FROM items", ["items"])
    description = shards.mint(colours)
    assert isinstance(description, BatchDescription)
    shards.commit("items", CollectionSchema(key=ITEMS.key, values=(Column("n", "int"),), dropped=("colour",)), 8)
    assert isinstance(stages.append(shards.client, description, shards.write(colours, description)), Committed)
    assert shards.rows("v") == {row(id=1, colour="red"): 1, row(id=2, colour="blue"): 1}


def test_a_refresh_reads_the_generation_that_is_there(shards: ViewShards) -> None:
    """Another one has schema versions of its own."""
    colours = view("v", "SELECT id, colour FROM items", ["items"])
    more = CollectionSchema(key=ITEMS.key, values=(*ITEMS.values, Column("shop", "string")))
    shards.commit("items", more, 8)
    description = shards.mint(colours)
    assert isinstance(description, BatchDescription)
    drop(shards.client, "items", is_forced=True)
    create_again(shards.client, "items")
    shards.commit("items", ITEMS, 8, [((1, "green", 5), 1, 1)])
    assert isinstance(stages.append(shards.client, description, shards.write(colours, description)), Committed)
    assert shards.rows("v") == {row(id=1, colour="green"): 1}


def test_a_refresh_that_is_forgotten_is_no_correction(shards: ViewShards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only seals are known, and the query before does not fit the input any more."""
    before = view("v", "SELECT id, colour FROM items", ["items"])
    shards.refresh(before)
    for bound in ("state.MIN_COMMITS_KEPT", "state.MAX_COMMITS_KEPT", "invariants.MIN_COMMITS_KEPT"):
        monkeypatch.setattr(f"persist_core.shard.{bound}", 2)
    for upper in (8, 9):
        shards.commit("items", ITEMS, upper)
        assert shards.refresh(before).stats == {}, "a seal"
    shards.commit("items", CollectionSchema(key=ITEMS.key, values=(Column("n", "int"),), dropped=("colour",)), 10)
    stats = shards.refresh(view("v", "SELECT id FROM items", ["items"], dropped=["colour"])).stats
    assert (stats["updates"], stats["corrections"]) == (0, 0)
