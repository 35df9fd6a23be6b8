"""SQL that must say the same as the core's Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as T

from persist_core.config.collection import CollectionConfig
from persist_core.schema import CollectionSchema, Column
from persist_core.time_text import LAST_ISO_MS, MAX_TIME, show_time
from persist_spark.frame import ORDER, as_written, known_records, shown_time, user_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_time_has_the_text_that_the_core_gives_it(spark: SparkSession) -> None:
    times = [0, 86_399_999, 86_400_000, 1_767_312_000_000, 1_767_312_000_007, LAST_ISO_MS, LAST_ISO_MS + 1, MAX_TIME]
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = spark.createDataFrame([(time,) for time in times], "t bigint").selectExpr(shown_time("t")).collect()
    assert [row[0] for row in rows] == [show_time(time) for time in times]


def test_a_known_record_needs_no_order(spark: SparkSession) -> None:
    """Spark says of a struct's field that it is never null, if no record that was read can have a null there."""
    body = {"name": "t", "source": {"path": "*", "format": "dms-csv"}, "key": "id", "columns": {"id": "bigint"}}
    schema = CollectionConfig.model_validate(body).collection_schema()
    order = T.StructType([T.StructField(name, T.StringType(), nullable=False) for name in ("by0", "file")])
    (row,) = known_records(spark, schema, order, [{ORDER: {"file": "a"}}]).collect()
    assert row[ORDER].asDict() == {"by0": None, "file": "a"}


def test_a_time_that_a_version_lacks_is_an_instant() -> None:
    """A user's session may have `spark.sql.timestampType`."""
    key, at = Column("id", "bigint", nullable=False, id=1), Column("at", "timestamp", id=2)
    before, after = (CollectionSchema((key,), values) for values in ((), (at,)))
    _, cells = as_written(T.StructType(user_fields(after)), before)
    assert cells[1] == "CAST(NULL AS timestamp_ltz) AS `at`"
