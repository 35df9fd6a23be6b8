"""SQL that must say the same as the core's Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persist_core.time_text import LAST_ISO_MS, MAX_TIME, show_time
from persist_spark.frame import shown_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_time_has_the_text_that_the_core_gives_it(spark: SparkSession) -> None:
    times = [0, 86_399_999, 86_400_000, 1_767_312_000_000, 1_767_312_000_007, LAST_ISO_MS, LAST_ISO_MS + 1, MAX_TIME]
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = spark.createDataFrame([(time,) for time in times], "t bigint").selectExpr(shown_time("t")).collect()
    assert [row[0] for row in rows] == [show_time(time) for time in times]
