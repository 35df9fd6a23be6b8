"""Frozen input files to the records frame: what every format has in common, and the choice between them.

    files --decode_files--> lines --decode_<format>--> RawRecords --decode_records--> the records frame

Bad input becomes errs in the frame, never a failed job; a file that can't be read at all (a truncated gzip, one that is
gone) fails it, and Spark's message names the file. No Spark job runs until somebody acts on the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from persist_core.config import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.sources.files import InputFile
from persist_spark.compat import HAS_TRY_CAST
from persist_spark.decode_debezium import debezium_records
from persist_spark.decode_dms import dms_json_records
from persist_spark.decode_files import readable, text_lines
from persist_spark.decode_plain import json_records
from persist_spark.decode_records import records_frame
from persist_spark.decode_tabular import csv_records, parquet_records

_LINES = {"json": json_records, "debezium-json": debezium_records, "dms-json": dms_json_records}
_TABULAR = {
    "csv": csv_records,
    "dms-csv": csv_records,
    "parquet": parquet_records,
    "dms-parquet": parquet_records,
}


def decode(
    spark: SparkSession, config: CollectionConfig, files: Sequence[InputFile], *, scratch: Path | None = None
) -> DataFrame:
    """The records frame of `files`, in no particular row order, lazily.

    `scratch` is a folder that the driver and all executors see, for files that Spark can't read under their own name;
    it must live until the frame has been acted on. Raises `InvalidInput` where the session's time zone is not UTC
    (texts without a zone are UTC), or where `scratch` is needed and not given.
    """
    zone = spark.conf.get("spark.sql.session.timeZone", None)
    if zone not in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00"):
        raise InvalidInput(
            f"spark.sql.session.timeZone is {zone!r}; wanted 'UTC': decode inside persist_spark's settings"
        )
    if not HAS_TRY_CAST and spark.conf.get("spark.sql.ansi.enabled", "false") == "true":
        raise InvalidInput("spark.sql.ansi.enabled is true; wanted false on this release of Spark, or Spark 4")
    found = readable(files, scratch)
    if config.source.format in _TABULAR:
        return records_frame(config, _TABULAR[config.source.format](spark, config, found))
    return records_frame(config, _LINES[config.source.format](config, text_lines(spark, found)))
