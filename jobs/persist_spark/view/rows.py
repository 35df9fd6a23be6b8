"""The rows of a view: its query (or function) over its inputs as of one time, in the types that shards have.

    inputs as of r --temporary views--> query that passes the gate --column by column--> CollectionSchema, DataFrame

| Spark type | column |
| --- | --- |
| byte, short | int |
| char, varchar, collated string | string |
| struct, array, map | json, by `to_json` with fixed options |
| void, timestamp_ntz, time, intervals, variant | refused: the query has to cast them |
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from persist_core.errors import ConfigError, InvalidName, RunFailed
from persist_core.schema import CollectionSchema, Column, decimal_of
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.frame import quoted
from persist_spark.view.gate import as_rows, check_query, register

_MAX_MESSAGE_CHARS = 2_000  # Spark's messages may hold whole plans
_AFTER_MESSAGE = ("JVM stacktrace", "Driver stacktrace", "\n\tat ")
_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_CAST: dict[type[T.DataType], str] = {  # Spark drops a cast to the type that a column has
    T.BooleanType: "boolean", T.ByteType: "int", T.ShortType: "int", T.IntegerType: "int", T.LongType: "bigint",
    T.FloatType: "float", T.DoubleType: "double", T.BinaryType: "binary", T.DateType: "date",
    T.TimestampType: "timestamp", T.StringType: "string", T.CharType: "string", T.VarcharType: "string",
}  # fmt: skip
_NESTED = (T.StructType, T.ArrayType, T.MapType)
# Nulls stay, times are in UTC with six digits: one text for one value.
_JSON_OPTIONS = (
    "map('ignoreNullFields', 'false', 'timeZone', 'UTC', 'dateFormat', 'yyyy-MM-dd',"
    " 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX')"
)


def queried(spark: SparkSession, view: str, definition: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows in Spark's types. `definition`: `ViewConfig.definition`. Raises `ConfigError` if it is not a query.

    Nothing is computed yet.
    """
    if definition.startswith("function "):
        return _called(spark, view, definition.removeprefix("function "), inputs)
    text = definition.strip().rstrip(";")
    with refused(view, "the query"):
        check_query(spark, f"view {view}: query", text, inputs)
        register(inputs)
        return spark.sql(as_rows(text))


def _called(spark: SparkSession, view: str, function: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    module, _, name = function.partition(":")
    try:
        call: Callable[[SparkSession, dict[str, DataFrame]], object] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"view {view}: function: found {function!r}, which the Spark job cannot import ({error}); expected"
            " module:name of a module that is installed there or sent along (`persist run --conf"
            " spark.submit.pyFiles=FILE`, in Airflow spark={'py_files': FILE})"
        ) from error
    with refused(view, f"function {function}"):
        try:
            found = call(spark, dict(inputs))
        except ENGINE_ERRORS:
            raise
        except Exception as error:
            raise RunFailed(
                f"view {view}: function {function} raised {type(error).__name__}: {error}. Nothing was committed"
            ) from error
    if not hasattr(found, "selectExpr"):
        raise ConfigError(f"view {view}: function {function} returned {type(found).__name__}; expected a DataFrame")
    return found  # type: ignore[return-value] # - a DataFrame of either kind (classic, Connect): checked by its methods


@contextmanager
def refused(view: str, what: str) -> Iterator[None]:
    """Turn Spark's rejection of a definition into `ConfigError`; errors at run time pass."""
    try:
        yield
    except AnalysisException as error:
        raise ConfigError(f"view {view}: {what} is refused by Spark: {_message(error)}") from error


@contextmanager
def failed(view: str, what: str) -> Iterator[None]:
    """Turn Spark's errors into `RunFailed` with the first part of their message, without plans and stack traces."""
    try:
        yield
    except ENGINE_ERRORS as error:
        raise RunFailed(f"view {view}: {what} failed: {_message(error)}. Nothing was committed") from error


def _message(error: Exception) -> str:
    text = whole = str(error)
    for mark in _AFTER_MESSAGE:
        text = text.partition(mark)[0]
    shown = text.strip()[:_MAX_MESSAGE_CHARS]
    *_, cause = ["", *_CAUSE.findall(whole)]  # of a task that writes, 3.5 says it there alone
    return shown if cause in shown else f"{shown}: {cause[:_MAX_MESSAGE_CHARS]}"


def shaped(view: str, rows: DataFrame) -> tuple[CollectionSchema, DataFrame]:
    """The rows in the types that shards have, and their schema: no key, every column nullable.

    Raises `ConfigError` naming the column that has no such type, no usable name, or the name of another.
    """
    names = [field.name for field in rows.schema.fields]
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"view {view}: found two columns named {twice!r} (case does not count), expected different names; give"
            " one an alias: ... AS other_name"
        )
    columns: list[Column] = []
    expressions: list[str] = []
    for field in rows.schema.fields:
        type_name, expression = _shape(view, field)
        try:
            columns.append(Column(field.name, type_name))
        except InvalidName as error:
            raise ConfigError(f"view {view}: {error}; give it an alias: ... AS other_name") from error
        expressions.append(f"{expression} AS {quoted(field.name)}")
    try:
        schema = CollectionSchema(key=(), values=tuple(columns))
    except InvalidName as error:
        raise ConfigError(f"view {view}: {error}") from error
    return schema, rows.selectExpr(*expressions)


def _shape(view: str, field: T.StructField) -> tuple[str, str]:
    name, found = quoted(field.name), field.dataType
    if isinstance(found, T.DecimalType):
        type_name = f"decimal({found.precision},{found.scale})"
        if decimal_of(type_name) and found.scale <= found.precision:
            return type_name, name
    if isinstance(found, _NESTED) and not any(isinstance(inner, _REFUSED) for inner in _within(found)):
        return "json", f"to_json({name}, {_JSON_OPTIONS})"
    type_name = _CAST.get(type(found), "")
    if type_name:
        return type_name, f"CAST({name} AS {type_name})"
    raise ConfigError(
        f"view {view}: column {field.name!r} has type {found.simpleString()}, which shards do not support; cast it,"
        f" e.g. CAST({name} AS STRING), or AS TIMESTAMP"
    )


_REFUSED = tuple(
    getattr(T, name)
    for name in ("NullType", "TimestampNTZType", "TimeType", "DayTimeIntervalType", "YearMonthIntervalType",
                 "CalendarIntervalType", "VariantType")
    if hasattr(T, name)
)  # fmt: skip


def _within(found: T.DataType) -> Iterator[T.DataType]:
    if isinstance(found, T.StructType):
        inner = [field.dataType for field in found.fields]
    elif isinstance(found, T.ArrayType):
        inner = [found.elementType]
    else:
        inner = [found.keyType, found.valueType] if isinstance(found, T.MapType) else []
    for each in inner:
        yield each
        yield from _within(each)
