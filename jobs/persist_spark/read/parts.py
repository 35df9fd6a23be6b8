"""What a shard has committed, as DataFrames: for look-ups of previous values (`upsert/lookup.py`), and for readers.

    ShardState -> hollow batches -> manifests -> pieces (persist_core.shard.pieces) -> one scan for all that are alike,
    explicit schema, pruned columns

A part that was written before a nullable column was added reads as null there.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.location.blob import Blob
from persist_core.schema import DIFF, ENDED, TIME
from persist_core.shard.pieces import Piece, Take
from persist_spark import s3a
from persist_spark.frame import named
from persist_spark.read import damage

_READ_OPTIONS = {
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",  # dates are read as they were written
    **damage.READ_OPTIONS,
}
_ENDED = (T.StructField(ENDED, T.LongType()),)
_GLOB = re.compile(r"[\\*?\[\]{}]")


def scan_pieces(spark: SparkSession, blob: Blob, pieces: Iterable[Piece], schema: T.StructType) -> DataFrame | None:
    """What these pieces take of their files, as one DataFrame with the columns of `schema`; `None` without pieces."""
    groups: dict[tuple[Take, int | None, int | None], list[str]] = {}
    for piece in pieces:
        groups.setdefault((piece.take, piece.after, piece.through), []).append(piece.part.key)
    frames = [_taken(spark, blob, keys, schema, *group) for group, keys in groups.items()]
    return functools.reduce(DataFrame.unionByName, frames) if frames else None


def _taken(
    spark: SparkSession,
    blob: Blob,
    keys: Sequence[str],
    schema: T.StructType,
    take: Take,
    after: int | None,
    through: int | None,
) -> DataFrame:
    """The same as `Piece.of`, of several files together, but updates that are undone keep their times."""
    has_ends = take in (Take.ALIVE, Take.UPDATES)
    found = scan_keys(spark, blob, keys, T.StructType([*schema.fields, *_ENDED] if has_ends else schema.fields))
    if take is Take.ALIVE:
        time = F.lit(through)
        return found.where((F.col(TIME) <= time) & (F.col(ENDED) > time)).drop(ENDED)
    if take is Take.UPDATES:
        inserted = F.struct(F.col(TIME).alias("time"), F.col(DIFF).alias("diff"))
        retracted = F.struct(F.col(ENDED).alias("time"), (-F.col(DIFF)).alias("diff"))
        others = [named(field.name) for field in schema.fields if field.name not in (TIME, DIFF)]
        exploded = found.select(*others, F.explode(F.array(inserted, retracted)).alias("_persist_update"))
        update = F.col("_persist_update")
        found = exploded.select(*others, update["time"].alias(TIME), update["diff"].alias(DIFF))
    if after is not None:
        found = found.where(F.col(TIME) > after)
    if through is not None:
        found = found.where(F.col(TIME) <= through)
    return found.withColumn(DIFF, -F.col(DIFF)) if take is Take.UNDONE else found


def scan_keys(spark: SparkSession, blob: Blob, keys: Sequence[str], schema: T.StructType) -> DataFrame:
    """The Parquet files under these blob keys. A `[` or `{` in the location's own path is not a pattern."""
    paths = [_GLOB.sub(r"\\\g<0>", blob.uri_of(key)) for key in keys]
    options = {**_READ_OPTIONS, **s3a.access_options(blob.uri, os.environ)}
    with s3a.jars_present():
        return spark.read.schema(schema).options(**options).parquet(*paths)
