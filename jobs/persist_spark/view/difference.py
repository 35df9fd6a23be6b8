"""`install_desired_into_persist`: what makes a shard hold the desired rows, as one DataFrame expression.

    desired (+1) ──┐
                   ├─ one exchange by whole row ─> sum of the signs ─> those not zero ─> updates, all at one time
    persisted (-1) ┘                │ observed: contents before and after, what goes out

    row  desired  persisted │ diff  part
    a    2        1         │   +1  insertions
    b    1        1         │    0  none: only counted
    c    0        1         │   -1  retractions

Persisted updates need not be consolidated: their diffs add up like everything else. So the difference is taken against
what the target really holds, and each refresh corrects it. Rows are compared null-safe, after floats were brought to
one encoding (`_canonical`). Errs go the same way beside them; their message is not compared.

Nothing here starts a Spark job or knows a location. Every count is observed after the exchange, in the stage that
writes: a retried task does not count a row twice. Expressions are SQL texts in which user columns are c0.. and errs'
columns kind, key, payload and message: no name of a user's column can clash or break out.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.row_checks import KINDS
from persist_core.contents.batch import BatchCounts, PartKind
from persist_core.contents.parts import ERR_IDENTITY
from persist_core.contents.stats import ViewStats
from persist_core.keys import PART
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_KIND_SEPARATOR,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    TIME,
    CollectionSchema,
    Column,
)
from persist_spark.compat import is_valid_utf8
from persist_spark.counted import HASHES, Counting, hashes, limb_sums, tally, whole_sum
from persist_spark.frame import ERR_COLUMNS, no_err, passed, quoted, sql_type
from persist_spark.stage import Planned, Written

_63_BITS = (1 << 63) - 1
_IDENTITY = ("kind", "key", "payload")  # what makes two errs equal
_ERR_CELLS = {"kind": ERR_KIND, "message": ERR_MESSAGE, "key": ERR_KEY, "payload": ERR_PAYLOAD}


@dataclass(frozen=True)
class Contents:
    """Counts of a multiset: rows and errs, repeated ones included, and an order-independent digest."""

    rows: int
    errs: int
    digest: tuple[int, int]


EMPTY = Contents(0, 0, (0, 0))


@dataclass(frozen=True, kw_only=True)
class Refresh(Written):
    """The observations of one action; `report`: `ViewStats`, without corrections.

    `misplaced` is how many rows `before` holds, negative counts as positive.
    """

    before: Contents
    after: Contents
    misplaced: int


def install_desired_into_persist(
    desired_oks: DataFrame,
    desired_errs: DataFrame | None,
    persisted_oks: DataFrame | None,
    persisted_errs: DataFrame | None,
    *,
    schema: CollectionSchema,
    at: int,
) -> Planned[Refresh]:
    """The updates, all at time `at`, after which the target's shard holds the desired oks and errs and nothing else.

    `desired_oks` has the columns of `schema`, in any order, with repeated rows; `desired_errs` the err columns and
    `DIFF`. `persisted_*` have the same columns and `DIFF`: the target's updates, all before `at`. `None` is
    an empty frame. `schema` has no key: a view is a multiset.

    The result's `updates` has the user's columns, time, diff, the err columns and `PART` (`insertions`, `retractions`,
    `errs`). A diff may be any number but 0.
    """
    (time,) = passed(at)
    plain = [f"c{i}" for i in range(len(schema.columns))]
    values = [f"{_canonical(column)} AS {name}" for name, column in zip(plain, schema.columns, strict=True)]
    oks = desired_oks.selectExpr(*values, "1L AS desired", "0L AS persisted")
    if persisted_oks is not None:
        oks = oks.union(persisted_oks.selectExpr(*values, "0L AS desired", f"{DIFF} AS persisted"))
    # Moved first, summed after: nearly all rows differ from each other, so summing them before the exchange as well, as
    # Spark would do by itself, costs a third of the time and saves nothing (docs/benchmarks.md).
    summed = oks.repartition(*map(F.col, plain)).groupBy(*plain).agg(*_sums())
    changed, observed = _changed(summed, plain, is_err=False)
    named = [_well_formed(column, F.col(name)) for name, column in zip(plain, schema.columns, strict=True)]
    system = [f"{time} AS {TIME}", f"diff AS {DIFF}"]
    updates = changed.select(*named, *map(F.expr, (*system, *no_err(), f"part AS {PART}")))
    errs = _errs(desired_errs, persisted_errs)
    columns = [*(column.name for column in schema.columns), TIME, DIFF, *ERR_COLUMNS, PART]
    if errs is None:
        return Planned(updates, columns, functools.partial(_refresh, [observed]))
    changed_errs, observed_errs = _changed(errs, _IDENTITY, is_err=True)
    no_values = [f"CAST(NULL AS {sql_type(column.type)}) AS {quoted(column.name)}" for column in schema.columns]
    cells = [f"{name} AS {column}" for name, column in _ERR_CELLS.items()]
    cells.append(f"CAST(NULL AS STRING) AS {ERR_POSITION}")  # a view has none: its records are in its inputs
    err_updates = changed_errs.selectExpr(*no_values, *system, *cells, f"part AS {PART}")
    return Planned(updates.union(err_updates), columns, functools.partial(_refresh, [observed, observed_errs]))


def inherited(name: str) -> list[str]:
    """The err columns of an input's err as the view has them: no byte of its message, position, key or payload.

    `tests/oracle/view.py` makes the same digest. The message follows from the kind: it names the
    collection where the record is.
    """
    # `-` for null: no key is not an empty one
    lengths = {each: f"CAST(coalesce(CAST(octet_length({each}) AS STRING), '-') AS BINARY)" for each in ERR_IDENTITY}
    parts = [f"{size}, X'3A', coalesce(CAST({each} AS BINARY), X'')" for each, size in lengths.items()]
    kind = f"concat('{name}{ERR_KIND_SEPARATOR}', {ERR_KIND})"
    # The kind of a check is in two parts; an input may be called `check` too.
    plain = f"regexp_replace({ERR_KIND}, '(^|/)check/(?!({'|'.join(KINDS)})$)[^/]*$', '$1check')"
    collection = f"element_at(split(concat('{name}{ERR_KIND_SEPARATOR}', {plain}), '{ERR_KIND_SEPARATOR}'), -2)"
    return [
        f"{kind} AS {ERR_KIND}",
        f"concat('run `persist errors ', {collection}, '`, which shows the record') AS {ERR_MESSAGE}",
        f"unhex(sha2(concat({', '.join(parts)}), 256)) AS {ERR_KEY}",
        f"X'' AS {ERR_PAYLOAD}",
    ]


def _sums() -> list[SparkColumn]:
    return [F.expr("sum(desired) AS desired"), F.expr("sum(persisted) AS persisted")]


def _canonical(column: Column) -> str:
    """The column's value with one encoding for NaN and one for zero; Parquet and hashes would tell them apart."""
    name = quoted(column.name)
    if column.type not in ("float", "double"):
        return name
    nan, zero = f"CAST('NaN' AS {column.type})", f"CAST(0 AS {column.type})"
    return f"CASE WHEN isnan({name}) THEN {nan} WHEN {name} = {zero} THEN {zero} ELSE {name} END"


def _well_formed(column: Column, value: SparkColumn) -> SparkColumn:
    """The column of a changed row. A text that is inserted has to be UTF-8: Spark casts bytes as they are."""
    if column.type == "string":
        said = f"column {column.name!r} holds a text that is not UTF-8; write decode(bytes, charset) or hex(bytes)"
        broken = F.expr("diff > 0") & ~is_valid_utf8(value)
        value = F.when(broken, F.raise_error(F.lit(said))).otherwise(value)
    return value.alias(column.name)


def _errs(desired: DataFrame | None, persisted: DataFrame | None) -> DataFrame | None:
    cells = [f"{column} AS {name}" for name, column in _ERR_CELLS.items()]
    sides = [
        frame.selectExpr(*cells, *counts)
        for frame, counts in (
            (desired, (f"{DIFF} AS desired", "0L AS persisted")),
            (persisted, ("0L AS desired", f"{DIFF} AS persisted")),
        )
        if frame is not None
    ]
    if not sides:
        return None
    both = functools.reduce(DataFrame.union, sides)
    return both.groupBy(*_IDENTITY).agg(*_sums(), F.expr("max(message) AS message"))


def _changed(summed: DataFrame, identity: Sequence[str], *, is_err: bool) -> tuple[DataFrame, Counting]:
    """The rows whose counts differ, with `diff` and `part`; all rows are observed on the way."""
    of_ok = f"CASE WHEN diff > 0 THEN '{PartKind.INSERTIONS}' ELSE '{PartKind.RETRACTIONS}' END"
    part = f"'{PartKind.ERRS}'" if is_err else of_ok
    rows = summed.selectExpr("*", "desired - persisted AS diff").selectExpr(
        "*", f"{part} AS part", *hashes([str(is_err).lower(), *identity])
    )
    prefix = "errs_" if is_err else "rows_"
    counting = Counting(prefix)
    return counting.of(rows, _counts(prefix)).where("diff != 0"), counting


def _counts(prefix: str) -> dict[str, str]:
    sums = {
        "desired": "sum(desired)",
        "persisted": "sum(persisted)",
        "misplaced": "sum(abs(persisted))",
        "inserted": "sum(greatest(diff, 0L))",
        "retracted": "sum(greatest(-diff, 0L))",
        **tally({"insertions": "diff > 0", "retractions": "diff < 0"}),
    }
    counts = {f"{prefix}{name}": sql for name, sql in sums.items()}
    for i, name in enumerate(HASHES):
        counts |= limb_sums(f"desired_{i}", name, "desired") | limb_sums(f"persisted_{i}", name, "persisted")
        counts |= limb_sums(f"changed_{i}", f"CASE WHEN diff != 0 THEN xxhash64({name}, diff) ELSE 0L END")
    return counts


def _refresh(observed: Sequence[Counting], written: DataFrame) -> Refresh:
    totals = Counter[str]()
    for each in observed:
        totals.update({name: int(value or 0) for name, value in each.found(written).items()})

    def contents(side: str) -> Contents:
        digests = [whole_sum(totals, f"{side}_{i}") & _63_BITS for i in range(2)]
        return Contents(totals[f"rows_{side}"], totals[f"errs_{side}"], (digests[0], digests[1]))

    counts = BatchCounts(
        insertions=totals["rows_insertions"],
        retractions=totals["rows_retractions"],
        err_insertions=totals["errs_insertions"],
        err_retractions=totals["errs_retractions"],
    )
    changed = [whole_sum(totals, f"changed_{i}") for i in range(2)]
    after = contents("desired")
    stats = ViewStats(
        rows=after.rows,
        errs=after.errs,
        inserted=totals["rows_inserted"],
        retracted=totals["rows_retracted"],
        errs_inserted=totals["errs_inserted"],
        errs_retracted=totals["errs_retracted"],
        updates=counts.updates,
        corrections=0,
        contents_0=after.digest[0],
        contents_1=after.digest[1],
    )
    return Refresh(
        before=contents("persisted"),
        after=after,
        counts=counts,
        report=stats.to_json(),
        misplaced=totals["rows_misplaced"] + totals["errs_misplaced"],
        rows_digest=f"xxhash64-sums:{counts.updates}:{':'.join(map(str, changed))}",
    )
