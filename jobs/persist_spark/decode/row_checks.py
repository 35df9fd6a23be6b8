"""Checks of rows and bad values that become null, where records are decoded (`persist_core.config.row_checks`).

    a record that fails a check of `on_fail: err` ─> an err of kind `check/NAME` of its key, with the raw record
    a bad value of a column with `on_error: null`  ─> null, and a mark in `MARKS`, which goes on with the record

A collection without either has the same plan as if there were none. Checks that warn, or that fail the run, judge the
rows as they will be, after the exchange (`persist_spark.upsert.warnings`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.config.row_checks import CheckConfig
from persist_core.errors import ConfigError
from persist_core.schema import ERR_KIND, ERR_KIND_SEPARATOR, RESERVED_PREFIX, Column
from persist_spark.compat import ENGINE_ERRORS, failing, server_of
from persist_spark.frame import UPSERT, quoted, shown_json, sql_type, text_literal
from persist_spark.view.gate import check_query

MARKS = (
    "_persist_marks"  # of records: an array of the columns that had bad values, each with the text; null if none had
)
CHECK = "check"  # how the kind of an err begins that a check has made
_RECORD = "record"  # the relation of the columns, for the gate
_OPERATORS = frozenset(("Project", "Range", "SubqueryAlias", "View"))
_MAX_SHOWN_CHARS = 200
_ACCEPTED: set[tuple[str, ...]] = set()  # servers, each with a text and the columns for which it has passed


def failed_sql(sql: str) -> str:
    """SQL: the condition is false, or cannot be computed. Null is not false, as in a CHECK constraint.

    An error in `try_multiply` of an interval is null, whatever it came from; of numbers, errors of arguments pass.
    Months are integers, so it costs far less than `try_add` of a date.
    """
    whole = f"try_multiply(INTERVAL '1' MONTH, CAST(coalesce(({sql}\n), true) AS INT))"
    return f"NOT ({whole} <=> INTERVAL '1' MONTH)"


def first_failed(checks: Mapping[str, CheckConfig]) -> str:
    """SQL: the name of the first of these checks that the row fails; null if it fails none."""
    whens = "".join(f" WHEN {failed_sql(check.sql)} THEN '{name}'" for name, check in checks.items())
    return f"CASE{whens} END"


def check_texts(spark: SparkSession, config: CollectionConfig) -> None:
    """Raise `ConfigError` unless each check is one boolean expression that only computes with a row's columns.

    A process asks each server once: the answer depends on the text and on the columns alone.
    """
    columns = [f"CAST(NULL AS {sql_type(c.type)}) AS {quoted(n)}" for n, c in config.columns.items()]
    server = server_of(spark)
    for name, check in config.checks.items():
        asked = (server, check.sql, *columns)
        if asked in _ACCEPTED:
            continue
        record, what = spark.range(0).selectExpr(*columns), f"collection {config.name}: checks.{name}.sql"
        text = f"SELECT ({check.sql}\n) AS ok FROM {_RECORD}"
        try:
            check_query(spark, what, text, {_RECORD: record}, _OPERATORS)
            spark.catalog.dropTempView(_RECORD)  # so that no subquery can name it
            found = record.select(F.expr(check.sql).alias("ok")).schema["ok"].dataType.simpleString()
        except ENGINE_ERRORS as error:
            line = str(error).strip().splitlines()[0][:_MAX_SHOWN_CHARS]
            raise ConfigError(f"{what}: Spark refuses it: {line}; correct the expression") from error
        if found != "boolean":
            raise ConfigError(
                f"{what}: found an expression of type {found}, expected boolean; for example balance >= 0"
            )
        _ACCEPTED.add(asked)


def is_strict(config: CollectionConfig, column: Column) -> bool:
    """True if a bad value of the column makes its record an err."""
    return config.columns[column.name].on_error != "null"


def marks_of(
    config: CollectionConfig, values: Sequence[tuple[Column, SparkColumn, SparkColumn]], is_kept: SparkColumn
) -> list[SparkColumn]:
    """`MARKS` of a decoded record, if a column's bad values become null. `values`: column, is it bad, its text."""
    lenient = [(column, is_bad, text) for column, is_bad, text in values if not is_strict(config, column)]
    if not lenient:
        return []
    entries = [
        F.when(is_bad, F.struct(F.lit(column.name).alias("name"), text.alias("text")))
        for column, is_bad, text in lenient
    ]
    return [F.when(is_kept & F.coalesce(*entries).isNotNull(), F.array_compact(F.array(*entries))).alias(MARKS)]


def hidden(name: str) -> str:
    """SQL: a column of ours in `beside`."""
    return quoted(f"{RESERVED_PREFIX}own_{name}")


def beside(frame: DataFrame, values: Mapping[str, str]) -> DataFrame:
    """The user's columns under their names, by SQL over `frame`, whose own columns are `hidden`: for texts of users."""
    ours = [f"{quoted(name)} AS {hidden(name)}" for name in frame.columns]
    return frame.selectExpr(*ours, *[f"{sql} AS {quoted(name)}" for name, sql in values.items()])


def with_failed_checks(
    config: CollectionConfig, judged: DataFrame, values: Mapping[str, str], raw_op: str
) -> DataFrame:
    """Raw records, in which each good one that fails a check of `on_fail: err` is an err. `values`: SQL by column.

    A check sees the names of the user's columns and no others: ours are hidden in between. It asks for the operation
    that was read, which is the same for a good record, so that Spark joins this step with the one before it.
    """
    checks = _err_checks(config)
    if not checks:
        return judged
    failed = f"concat('{CHECK}{ERR_KIND_SEPARATOR}', {first_failed(checks)})"
    kind = hidden(ERR_KIND)
    given = {name: hidden(name) for name in judged.columns}
    given[ERR_KIND] = f"CASE WHEN {kind} IS NULL AND {hidden(raw_op)} = '{UPSERT}' THEN {failed} ELSE {kind} END"
    with failing(judged.sparkSession):
        return beside(judged, values).selectExpr(*[f"{sql} AS {quoted(name)}" for name, sql in given.items()])


def check_message(config: CollectionConfig, values: Mapping[str, str], otherwise: str) -> str:
    """SQL: the message of an err, by its kind: `otherwise` if no check has made it. `values`: SQL by column."""
    whens = ""
    for name, check in _err_checks(config).items():
        said = text_literal(f"check {name!r} is not true: {' '.join(check.sql.split())[:_MAX_SHOWN_CHARS]}")
        if check.columns:
            shown = shown_json({each: values[each] for each in check.columns})
            said = f"concat({said}, '; the record has ', substring({shown}, 1, {_MAX_SHOWN_CHARS}))"
        whens += f" WHEN {ERR_KIND} = '{CHECK}{ERR_KIND_SEPARATOR}{name}' THEN {said}"
    return f"CASE{whens} ELSE {otherwise} END" if whens else otherwise


def _err_checks(config: CollectionConfig) -> dict[str, CheckConfig]:
    return {name: check for name, check in config.checks.items() if check.on_fail == "err"}


def united(records: DataFrame, more: DataFrame) -> DataFrame:
    """Two records frames; one made of known rows has no marks."""
    return records.unionByName(more, allowMissingColumns=True)
