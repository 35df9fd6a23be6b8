"""Collections that change at random against the oracle: evolutions, corrections, generations, restores, erasures."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sampling import is_long
from tests.spark.change_histories import World

PLAIN, BY_SPARK = (400, 60) if is_long() else (2, 1)


@pytest.mark.family("histories in Spark")
@pytest.mark.parametrize("number", range(PLAIN))
def test_a_changing_table_is_the_oracles(
    number: int, tmp_path: Path, persist_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(World(tmp_path, persist_seed + number, None, monkeypatch), 20)


@pytest.mark.parametrize("number", range(BY_SPARK))
@pytest.mark.family("histories in Spark")
def test_a_changing_table_written_by_spark_is_the_oracles(
    number: int, tmp_path: Path, persist_seed: int, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    change(World(tmp_path, persist_seed + number, spark, monkeypatch), 10)


def change(world: World, steps: int) -> None:
    try:
        world.steps(steps)
    except BaseException as error:
        error.add_note("\n".join(world.told))
        raise
