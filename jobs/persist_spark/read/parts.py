"""What a shard has committed, as DataFrames: for the look-up of previous values, and for readers.

    ShardState -> hollow batches -> manifests -> parts by kind -> one scan per kind, explicit schema, pruned columns

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
from persist_core.schema import DIFF, ERR_KEY, ERR_PAYLOAD, TIME, CollectionSchema
from persist_core.shard.batch import BatchManifest, Part, PartKind
from persist_spark import s3a
from persist_spark.frame import BAD_KEY, ERR_COLUMNS, err_null, named, null_of, part_type
from persist_spark.session import settings

_READ_OPTIONS = {"mergeSchema": "false", "datetimeRebaseMode": "CORRECTED"}  # dates are read as they were written
_ALWAYS_BY_THE_DRIVER, _DEFAULT_THRESHOLD = "100000", "32"
_GLOB = re.compile(r"[\\*?\[\]{}]")


def parts_of(manifests: Iterable[BatchManifest], kind: PartKind) -> list[Part]:
    """All parts of one kind, in the manifests' order."""
    return [part for manifest in manifests for part in manifest.parts if part.kind is kind]


def scan(spark: SparkSession, blob: Blob, parts: Sequence[Part], schema: T.StructType) -> DataFrame:
    """These parts as one DataFrame with exactly the columns of `schema`; at least one part."""
    return scan_keys(spark, blob, [part.key for part in parts], schema)


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
    manifests: Sequence[BatchManifest],
    schema: CollectionSchema,
    *,
    slots: DataFrame | None = None,
) -> DataFrame | None:
    """The updates in these batches as `persistent_upsert` takes them, or `None` if there are none.

    Columns: the user's, time, diff, the err columns, `BAD_KEY`. Value columns of retractions are null. `slots` (key
    columns and `BAD_KEY`, small enough to be broadcast) selects only updates of these slots.
    """
    kinds = {kind: parts_of(manifests, kind) for kind in PartKind}
    frames = [
        _restricted(_updates(scan(spark, blob, parts, _needed(kind, schema)), kind, schema), kind, schema, slots)
        for kind, parts in kinds.items()
        if parts
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
