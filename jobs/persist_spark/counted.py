"""Counts and digests that an action observes while it runs, as SQL.

Count after the exchange, in the stage that writes: a retried task does not count a row twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from persist_spark.compat import NAMES_COUNTS, is_connect

HASHES = ("_persist_hash_0", "_persist_hash_1")
# A hash is summed in three limbs of at most so many bits. So no sum over fewer than 2**41 rows overflows, which is an
# error in ANSI mode and a wrong number without it.
_LIMB_BITS, _LIMBS = 22, 3


class Counting:
    """Counts that one action makes at one place of its plan, under a name of its own.

    In Spark Connect an `Observation` asks whether the frame is a stream, for which the server analyzes its whole plan.
    """

    def __init__(self, name: str) -> None:
        self._name, self._observation = name, Observation()

    def of(self, rows: DataFrame, counts: Mapping[str, str]) -> DataFrame:
        """`rows`, of which the action computes `counts`, aggregates by name.

        As one JSON text: one message to the JVM instead of dozens, and a struct comes back as a row only from Spark 4
        on.
        """
        struct = ", ".join(f"{sql} AS {name}" for name, sql in counts.items())
        text = F.expr(f"to_json(struct({struct}), map('ignoreNullFields', 'false')) AS counts")
        return rows.observe(self._name if _is_named(rows) else self._observation, text)

    def found(self, written: DataFrame) -> dict[str, Any]:
        """The counts, by name, of the action that wrote this frame. Waits for them."""
        if not _is_named(written):
            return dict(json.loads(self._observation.get["counts"]))
        run = written.executionInfo
        assert run is not None  # the action has succeeded
        return dict(json.loads(dict(run.flows)[self._name]["counts"]))


def _is_named(rows: DataFrame) -> bool:
    return NAMES_COUNTS and is_connect(rows.sparkSession)


def tally(conditions: Mapping[str, str]) -> dict[str, str]:
    """The number of rows for which each is true. Spark would compute `count_if` in a column of its own for each row."""
    return {name: f"count(CASE WHEN {condition} THEN 1 END)" for name, condition in conditions.items()}


def hashes(cells: Sequence[str]) -> list[str]:
    """Two independent 64-bit hashes of a row. Hashing passes over nulls, so where they are is hashed too."""
    hashed = ", ".join([*cells, *(f"{name} IS NULL" for name in cells)])
    return [f"xxhash64({i}, {hashed}) AS {name}" for i, name in enumerate(HASHES)]


def limb_sums(named: str, value: str, times: str = "1L") -> dict[str, str]:
    """The sums of an unsigned bigint's limbs, each row counted so many times. `whole_sum` puts them together.

    Neither the order of rows nor their files matter.
    """
    mask = (1 << _LIMB_BITS) - 1
    limbs = [f"shiftrightunsigned({value}, {place * _LIMB_BITS}) & {mask}L" for place in range(_LIMBS)]
    return {f"{named}_{place}": f"sum({times} * ({limb}))" for place, limb in enumerate(limbs)}


def digest_sums() -> dict[str, str]:
    """Aggregates for `rows_digest`: the sums of both `hashes` of each row that has a `diff`."""
    sums: dict[str, str] = {}
    for i, name in enumerate(HASHES):
        sums |= limb_sums(f"digest_{i}", f"CASE WHEN diff IS NOT NULL THEN {name} ELSE 0L END")
    return sums


def rows_digest(sums: Mapping[str, int], updates: int) -> str:
    """The order-independent digest of so many updates, for `persist_core.contents.batch.contents_digest`."""
    digests = (whole_sum(sums, f"digest_{i}") for i in range(len(HASHES)))
    return f"xxhash64-sums:{updates}:{':'.join(map(str, digests))}"


def whole_sum(sums: Mapping[str, int], named: str) -> int:
    """The sum whose limbs are these: of any size."""
    return sum(sums[f"{named}_{place}"] << (place * _LIMB_BITS) for place in range(_LIMBS))
