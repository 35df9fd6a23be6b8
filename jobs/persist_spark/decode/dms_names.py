"""The kinds of DMS's files, by their names: `LOAD0000000A.csv` is of a full load, any other one holds changes."""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_spark.decode.files import FILE

FULL_LOAD = r"^LOAD[0-9A-F]+\."  # a name, also as a natural-sort key


def is_of_dms(config: CollectionConfig) -> bool:
    """True for the formats of DMS's files."""
    return config.source.format in ("dms-csv", "dms-parquet")


def file_name() -> SparkColumn:
    """The name of a record's file, as a natural-sort key without its zeros. A pattern would be slower."""
    return F.substring_index(F.substring_index(FILE, " //", 1), "/", -1)


def is_full_load() -> SparkColumn:
    """True for a record of a full load."""
    return file_name().startswith("LOAD") & file_name().rlike(FULL_LOAD)
