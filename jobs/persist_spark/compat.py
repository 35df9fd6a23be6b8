"""The differences between the Spark releases we run on (3.5 to 4.x), in one place.

On 3.5 there is no `Column.try_cast`; our sessions have ANSI mode off there: `cast` gives null for what does not fit.

3.5 passes on some errors of a running job as py4j wraps them; a Connect client has no py4j.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_TRY_CAST = SPARK_VERSION >= (4, 0)
HAS_TRIM_CHARACTERS = SPARK_VERSION >= (4, 0)  # `F.ltrim(text, characters)`
HAS_NEW_SESSION = SPARK_VERSION >= (4, 3)  # `SparkSession.newSession` in Spark Connect
CLONES_SESSIONS = SPARK_VERSION >= (4, 1)  # `cloneSession` there
REPARTITIONS_BY_ID = SPARK_VERSION >= (4, 1)  # `DataFrame.repartitionById`
NAMES_COUNTS = SPARK_VERSION >= (4, 0)  # `DataFrame.executionInfo` in Spark Connect
READS_ARROW = SPARK_VERSION >= (4, 0)  # `createDataFrame` of an Arrow table
PARSES_ONCE = SPARK_VERSION >= (4, 3)  # a filter does not repeat costly expressions below it (SPARK-47672)
READS_HALF_FLOATS = SPARK_VERSION >= (4, 0)  # before, it opens no Parquet file that has some
READS_ZSTD_TEXT = SPARK_VERSION >= (4, 3)
WRITES_TO_S3 = SPARK_VERSION >= (4, 0)  # on 3.5 the magic committer leaves no report of what it has committed

ANSI = "spark.sql.ansi.enabled"
_WHOLE = r"^\s*+[+-]?\d++\s*+$"  # the text of an integer
ENGINE_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
if importlib.util.find_spec("py4j"):
    ENGINE_ERRORS = (PySparkException, importlib.import_module("py4j.protocol").Py4JJavaError)


def server_of(session: SparkSession) -> str:
    """The id of the Spark that runs the session's plans."""
    return str(session.conf.get("spark.app.id"))


def is_connect(session: SparkSession) -> bool:
    return type(session).__module__.startswith("pyspark.sql.connect")


def java_sessions(session: Any) -> Any:
    """The JVM's class of sessions, which knows the active one of each thread."""
    spark_sql = session._jvm.org.apache.spark.sql
    return spark_sql.classic.SparkSession if SPARK_VERSION >= (4, 0) else spark_sql.SparkSession


@contextmanager
def failing(session: SparkSession) -> Iterator[None]:
    """Let expressions that are analyzed within it fail if they cannot be computed: the default from Spark 4 on.

    No effect in a Spark Connect server of 3.5, which analyzes a plan when it runs.
    """
    if HAS_TRY_CAST:
        yield
        return
    session.conf.set(ANSI, "true")
    try:
        yield
    finally:
        session.conf.set(ANSI, "false")


def cached_leaf(cached: DataFrame) -> DataFrame:
    """The rows of a cached frame by a plan that has nothing below them. Each step on the frame itself is analyzed with
    all steps that made it, though none of them runs again: for many columns a fifth of a small commit.

    A Connect server analyzes a plan once, as a whole, so there it is the frame itself.
    """
    session: Any = cached.sparkSession
    if is_connect(session):
        return cached
    spark_sql = session._jvm.org.apache.spark.sql
    dataset = spark_sql.classic.Dataset if SPARK_VERSION >= (4, 0) else spark_sql.Dataset
    frame: Any = cached
    leaf = dataset.ofRows(frame._jdf.sparkSession(), frame._jdf.queryExecution().withCachedData())
    found: DataFrame = type(frame)(leaf, session)
    return found


def try_cast(value: SparkColumn, type_name: str) -> SparkColumn:
    """`value` as that type, null if it does not fit."""
    return value.try_cast(type_name) if HAS_TRY_CAST else value.cast(type_name)


def try_cast_integer(text: SparkColumn, type_name: str) -> SparkColumn:
    """Text as an integer, null if it is not one: a plain cast takes control characters for blanks, and on 3.5 would
    truncate 5.5 to 5. Usual spellings need no regular expression."""
    found = try_cast(text, type_name)
    return F.when((found.cast("string") == text) | text.rlike(_WHOLE), found)


def whole_to_bigint(value: SparkColumn) -> SparkColumn:
    """A decimal that is a whole number as a bigint, null if it does not fit: on 3.5 a plain cast wraps around."""
    return value.try_cast("bigint") if HAS_TRY_CAST else value.cast("decimal(38,0)").cast("string").cast("bigint")


def fenced(column: SparkColumn) -> SparkColumn:
    """The column, below whose frame no filter goes: on 3.5 each use of a parsed field in it would parse again."""
    return column if PARSES_ONCE else F.when(F.spark_partition_id() >= 0, column)


def is_valid_utf8(text: SparkColumn) -> SparkColumn:
    """True if the bytes of a string are well-formed UTF-8: Spark's sources do not check them."""
    if SPARK_VERSION >= (4, 0):
        return F.is_valid_utf8(text)
    raw = text.cast("binary")
    return F.encode(F.decode(raw, "UTF-8"), "UTF-8") == raw
