"""What a shard has committed, as DataFrames: for the look-up of previous values, and for readers.

    ShardState -> hollow batches -> manifests -> pieces (persist_core.shard.pieces) -> one scan for all that are alike,
    explicit schema, pruned columns

A look-up needs the whole rows of insertions, since an old value becomes a retraction; of retractions only key and time.
A part that was written before a nullable column was added reads as null there.
"""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Iterable, Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.location.blob import Blob
from persist_core.schema import DIFF, ENDED, ERR_KEY, ERR_PAYLOAD, TIME, CollectionSchema
from persist_core.shard.batch import BatchManifest, HollowBatch, PartKind
from persist_core.shard.pieces import OKS, Piece, Take, all_errs, oks_as_of
from persist_spark import s3a
from persist_spark.frame import BAD_KEY, ERR_COLUMNS, err_null, named, null_of, part_type
from persist_spark.read import damage
from persist_spark.session import settings

_READ_OPTIONS = {
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",  # dates are read as they were written
    **damage.READ_OPTIONS,
}
_ENDED = (T.StructField(ENDED, T.LongType()),)
_ALWAYS_BY_THE_DRIVER, _DEFAULT_THRESHOLD = "100000", "32"
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
    with s3a.jars_present(), settings(spark, _listing(blob)):
        return spark.read.schema(schema).options(**options).parquet(*paths)


def _listing(blob: Blob) -> dict[str, str]:
    """The number of files from which Spark lists them by a job, which costs more than it saves on a file system."""
    threshold = _ALWAYS_BY_THE_DRIVER if blob.uri.startswith("file:") else _DEFAULT_THRESHOLD
    return {"spark.sql.sources.parallelPartitionDiscovery.threshold": threshold}


def committed_updates(
    spark: SparkSession,
    blob: Blob,
    batches: Sequence[tuple[HollowBatch, BatchManifest]],
    schema: CollectionSchema,
    *,
    slots: DataFrame | None = None,
) -> DataFrame | None:
    """The updates in these batches as `persistent_upsert` takes them, or `None` if none exist.

    History that no look-up of the newest contents needs is left out.

    Columns: the user's, time, diff, the err columns, `BAD_KEY`. Value columns of retractions are null. `slots` (key
    columns and `BAD_KEY`, small enough to be broadcast) selects only updates of these slots.
    """
    chosen: dict[PartKind, list[Piece]] = {kind: [] for kind in (*OKS, PartKind.ERRS)}
    for batch, manifest in batches:
        for piece in (*oks_as_of(batch, manifest, batch.last_time), *all_errs(batch, manifest)):
            # What is alive in the history of a run that a fork shares is an insertion there.
            is_history = piece.part.kind is PartKind.HISTORY
            chosen[PartKind.INSERTIONS if is_history else piece.part.kind].append(piece)
    frames = [
        _restricted(_updates(found, kind, schema), kind, schema, slots)
        for kind, pieces in chosen.items()
        if (found := scan_pieces(spark, blob, pieces, _needed(kind, schema))) is not None
    ]
    return functools.reduce(DataFrame.unionByName, frames) if frames else None


def _needed(kind: PartKind, schema: CollectionSchema) -> T.StructType:
    """The columns of a part that a look-up decodes."""
    names = {*schema.key_names, TIME, DIFF}
    if kind is PartKind.INSERTIONS:
        names.update(column.name for column in schema.values)
    if kind is PartKind.ERRS:
        names.update(ERR_COLUMNS)
    return T.StructType([field for field in part_type(schema).fields if field.name in names])


def _updates(frame: DataFrame, kind: PartKind, schema: CollectionSchema) -> DataFrame:
    """Every kind with the same columns; what was not read is null."""
    has_values, has_err = kind is PartKind.INSERTIONS, kind is PartKind.ERRS
    return frame.select(
        *[named(name) for name in schema.key_names],
        *[named(c.name) if has_values else null_of(c.type).alias(c.name) for c in schema.values],
        TIME,
        DIFF,
        *[F.col(name) if has_err else err_null(name).alias(name) for name in ERR_COLUMNS],
        (bad_key_of_err(schema) if has_err else err_null(ERR_KEY)).alias(BAD_KEY),
    )


def bad_key_of_err(schema: CollectionSchema) -> SparkColumn:
    """The slot of an err whose key could not be decoded: the raw key, or the payload if there is no key."""
    has_key = functools.reduce(operator.or_, [named(name).isNotNull() for name in schema.key_names])
    return F.when(~has_key, F.coalesce(F.col(ERR_KEY), F.col(ERR_PAYLOAD)))


def _restricted(updates: DataFrame, kind: PartKind, schema: CollectionSchema, slots: DataFrame | None) -> DataFrame:
    """Only updates of `slots`. Oks have a key, so plain equality is enough; it joins faster than null-safe equality."""
    if slots is None:
        return updates
    names = [*schema.key_names, BAD_KEY] if kind is PartKind.ERRS else list(schema.key_names)
    wanted = slots.select(*[named(name).alias(f"_persist_slot{i}") for i, name in enumerate(names)])
    if kind is PartKind.ERRS:
        same = [named(name).eqNullSafe(F.col(f"_persist_slot{i}")) for i, name in enumerate(names)]
    else:
        same = [named(name) == F.col(f"_persist_slot{i}") for i, name in enumerate(names)]
    return updates.join(F.broadcast(wanted), functools.reduce(operator.and_, same), "left_semi")
