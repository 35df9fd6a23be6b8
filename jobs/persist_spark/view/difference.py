"""`install_desired_into_persist`: what makes a shard hold the desired rows, as one DataFrame expression.

    desired (+1) ──┐
                   ├─ one exchange by whole row ─> sum of the signs ─> those not zero ─> updates, all at one time
    persisted (-1) ┘                │ observed: contents before and after, what goes out

Persisted updates need not be consolidated: their diffs add up like everything else. So the difference is taken against
what the target really holds, and each refresh corrects it. Rows are compared null-safe, after floats
were brought to one encoding (`canonical`). Errs go the same way beside them; their message is not compared.

Nothing here starts a Spark job or knows a location. Every count is observed after the exchange, in the stage that
writes: a retried task does not count a row twice. Expressions are SQL texts with flat column names, so no name of a
user's column can clash or break out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_KIND_SEPARATOR,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    PART,
    TIME,
    CollectionSchema,
    Column,
)
from persist_core.shard.batch import BatchCounts, PartKind
from persist_core.shard.parts import ERR_IDENTITY
from persist_core.shard.stats import ViewStats
from persist_spark.frame import ERR_COLUMNS, err_type, passed, quoted, spark_type
from persist_spark.stage import StateRows
from persist_spark.upsert.counts import HASHES, as_json, limb_sums, whole_sum

WANTED = "_persist_wanted"  # bigint: how often the row should be there
FOUND = "_persist_found"  # bigint: how often it is
_63_BITS = (1 << 63) - 1
_PART_OF_OK = f"CASE WHEN {DIFF} > 0 THEN '{PartKind.INSERTIONS}' ELSE '{PartKind.RETRACTIONS}' END"


@dataclass(frozen=True)
class Contents:
    """What a multiset holds: the numbers of rows and errs, repeated ones included, and an order-independent digest."""

    rows: int
    errs: int
    digest: tuple[int, int]


EMPTY = Contents(0, 0, (0, 0))


@dataclass(frozen=True)
class Refresh:
    """What one refresh's action observed. `misplaced` is how many rows `before` holds, negative counts as positive."""

    before: Contents
    after: Contents
    counts: BatchCounts
    inserted: int
    retracted: int
    errs_inserted: int
    errs_retracted: int
    misplaced: int
    rows_digest: str
    corrections: int = 0

    needs_thorough_plan = False
    state_rows: ClassVar[Mapping[str, StateRows]] = {}  # a view has no operator state

    @property
    def stats(self) -> ViewStats:
        """What a refresh reports."""
        return ViewStats(
            rows=self.after.rows,
            errs=self.after.errs,
            inserted=self.inserted,
            retracted=self.retracted,
            errs_inserted=self.errs_inserted,
            errs_retracted=self.errs_retracted,
            updates=self.counts.updates,
            corrections=self.corrections,
            contents_0=self.after.digest[0],
            contents_1=self.after.digest[1],
        )


@dataclass(frozen=True)
class Installed:
    """What `install_desired_into_persist` returns. `updates` is for exactly one action; then ask for `outcome()`.

    `updates` has the user's columns, time, diff, the err columns and `PART` (`insertions`, `retractions`, `errs`).
    A diff may be any number but 0.
    """

    updates: DataFrame
    _observed: Sequence[Observation]

    def outcome(self) -> Refresh:
        """What the action observed. Call it only after the action has succeeded: it waits for the counts."""
        totals: dict[str, int] = {}
        for observation in self._observed:
            for name, value in json.loads(observation.get["counts"]).items():
                totals[name] = totals.get(name, 0) + int(value or 0)
        return _refresh(totals)


def install_desired_into_persist(
    desired_oks: DataFrame,
    desired_errs: DataFrame | None,
    persisted_oks: DataFrame | None,
    persisted_errs: DataFrame | None,
    *,
    schema: CollectionSchema,
    at: int,
) -> Installed:
    """The updates, all at time `at`, after which the target's shard holds the desired oks and errs and nothing else.

    `desired_oks` has the columns of `schema`, in any order, with repeated rows; `desired_errs` the err columns and
    `DIFF`. `persisted_*` have the same columns and `DIFF`: the target's updates, all before `at`. `None` is
    an empty frame. `schema` has no key: a view is a multiset.
    """
    (time,) = passed(at)
    flat = [f"c{i}" for i in range(len(schema.columns))]
    values = [f"{_canonical(column)} AS {name}" for name, column in zip(flat, schema.columns, strict=True)]
    oks = desired_oks.selectExpr(*values, f"1L AS {WANTED}", f"0L AS {FOUND}")
    if persisted_oks is not None:
        oks = oks.union(persisted_oks.selectExpr(*values, f"0L AS {WANTED}", f"{DIFF} AS {FOUND}"))
    # Moved first, summed after: nearly all rows differ from each other, so summing them before the exchange as well, as
    # Spark would do by itself, costs a third of the time and saves nothing (docs/benchmarks.md).
    gathered = oks.repartition(*map(F.col, flat))
    changed, observed = _changed(gathered.groupBy(*flat).agg(*_sums()), flat, is_err=False)
    published = [f"{name} AS {quoted(column.name)}" for name, column in zip(flat, schema.columns, strict=True)]
    no_err = [f"CAST(NULL AS {err_type(name).simpleString()}) AS {name}" for name in ERR_COLUMNS]
    updates = changed.selectExpr(*published, f"{time} AS {TIME}", DIFF, *no_err, PART)
    errs = _errs(desired_errs, persisted_errs)
    if errs is None:
        return Installed(updates, (observed,))
    changed_errs, observed_errs = _changed(errs, list(ERR_IDENTITY), is_err=True)
    no_values = [f"CAST(NULL AS {_sql_type(column)}) AS {quoted(column.name)}" for column in schema.columns]
    err_updates = changed_errs.selectExpr(*no_values, f"{time} AS {TIME}", DIFF, *ERR_COLUMNS, PART)
    return Installed(updates.union(err_updates), (observed, observed_errs))


def inherited(name: str) -> list[str]:
    """The err columns of an input's err as the view has them: no byte of its message, key or payload.

    `persist_core.oracle.view.inherited` says how the digest is made. The message follows from the kind: it names the
    collection where the record is.
    """
    # `-` for null: no key is not an empty one
    lengths = {each: f"CAST(coalesce(CAST(octet_length({each}) AS STRING), '-') AS BINARY)" for each in ERR_IDENTITY}
    parts = [f"{size}, X'3A', coalesce(CAST({each} AS BINARY), X'')" for each, size in lengths.items()]
    kind = f"concat('{name}{ERR_KIND_SEPARATOR}', {ERR_KIND})"
    collection = f"element_at(split({kind}, '{ERR_KIND_SEPARATOR}'), -2)"
    return [
        f"{kind} AS {ERR_KIND}",
        f"concat('run `persist errors ', {collection}, '`, which shows the record') AS {ERR_MESSAGE}",
        f"unhex(sha2(concat({', '.join(parts)}), 256)) AS {ERR_KEY}",
        f"X'' AS {ERR_PAYLOAD}",
    ]


def _sums() -> list[SparkColumn]:
    return [F.expr(f"sum({name}) AS {name}") for name in (WANTED, FOUND)]


def _sql_type(column: Column) -> str:
    return spark_type(column.type).simpleString()


def _canonical(column: Column) -> str:
    """The column's value with one encoding for NaN and one for zero; Parquet and hashes would tell them apart."""
    name = quoted(column.name)
    if column.type not in ("float", "double"):
        return name
    as_type = f"AS {column.type.upper()}"
    return (
        f"CASE WHEN isnan({name}) THEN CAST('NaN' {as_type}) WHEN {name} = CAST(0 {as_type}) THEN CAST(0 {as_type})"
        f" ELSE {name} END"
    )


def _errs(desired: DataFrame | None, persisted: DataFrame | None) -> DataFrame | None:
    """Errs summed by what makes them equal, or `None` if neither side has any."""
    sides = []
    if desired is not None:
        sides.append(desired.selectExpr(*ERR_IDENTITY, ERR_MESSAGE, f"{DIFF} AS {WANTED}", f"0L AS {FOUND}"))
    if persisted is not None:
        sides.append(persisted.selectExpr(*ERR_IDENTITY, ERR_MESSAGE, f"0L AS {WANTED}", f"{DIFF} AS {FOUND}"))
    if not sides:
        return None
    both = sides[0] if len(sides) == 1 else sides[0].union(sides[1])
    return both.groupBy(*ERR_IDENTITY).agg(*_sums(), F.expr(f"max({ERR_MESSAGE}) AS {ERR_MESSAGE}"))


def _changed(summed: DataFrame, identity: Sequence[str], *, is_err: bool) -> tuple[DataFrame, Observation]:
    """The rows whose counts differ, with `DIFF` and `PART`; all rows are observed on the way."""
    part = f"'{PartKind.ERRS}'" if is_err else _PART_OF_OK
    rows = summed.selectExpr("*", f"{WANTED} - {FOUND} AS {DIFF}").selectExpr(
        "*", f"{part} AS {PART}", *_hashes(identity, is_err=is_err)
    )
    observation = Observation()
    observed = rows.observe(observation, as_json(_counts("errs_" if is_err else "rows_")))
    return observed.where(f"{DIFF} != 0"), observation


def _hashes(identity: Sequence[str], *, is_err: bool) -> list[str]:
    """Two independent 64-bit hashes of a row. Hashing passes over nulls, so where they are is hashed too."""
    hashed = ", ".join([*identity, *(f"{name} IS NULL" for name in identity)])
    return [f"xxhash64({i}, {str(is_err).lower()}, {hashed}) AS {name}" for i, name in enumerate(HASHES)]


def _counts(prefix: str) -> dict[str, str]:
    """What is counted of every row, changed or not. Sums of hashes, limb by limb: neither order nor files matter."""
    counts = {
        f"{prefix}wanted": f"sum({WANTED})",
        f"{prefix}found": f"sum({FOUND})",
        f"{prefix}misplaced": f"sum(abs({FOUND}))",
        f"{prefix}inserted": f"sum(greatest({DIFF}, 0L))",
        f"{prefix}retracted": f"sum(greatest(-{DIFF}, 0L))",
        f"{prefix}insertions": f"count_if({DIFF} > 0)",
        f"{prefix}retractions": f"count_if({DIFF} < 0)",
    }
    for i, name in enumerate(HASHES):
        changed = f"CASE WHEN {DIFF} != 0 THEN xxhash64({name}, {DIFF}) ELSE 0L END"
        counts |= limb_sums(f"wanted_{i}", name, WANTED) | limb_sums(f"found_{i}", name, FOUND)
        counts |= limb_sums(f"changed_{i}", changed)
    return counts


def _refresh(totals: Mapping[str, int]) -> Refresh:
    """The counts of both kinds of rows, combined."""

    def contents(side: str) -> Contents:
        digests = [whole_sum(totals, f"{side}_{i}") & _63_BITS for i in range(2)]
        return Contents(totals[f"rows_{side}"], totals.get(f"errs_{side}", 0), (digests[0], digests[1]))

    counts = BatchCounts(
        insertions=totals["rows_insertions"],
        retractions=totals["rows_retractions"],
        err_insertions=totals.get("errs_insertions", 0),
        err_retractions=totals.get("errs_retractions", 0),
    )
    changed = [whole_sum(totals, f"changed_{i}") for i in range(2)]
    return Refresh(
        before=contents("found"),
        after=contents("wanted"),
        counts=counts,
        inserted=totals["rows_inserted"],
        retracted=totals["rows_retracted"],
        errs_inserted=totals.get("errs_inserted", 0),
        errs_retracted=totals.get("errs_retracted", 0),
        misplaced=totals["rows_misplaced"] + totals.get("errs_misplaced", 0),
        rows_digest=f"xxhash64-sums:{counts.updates}:{':'.join(map(str, changed))}",
    )
