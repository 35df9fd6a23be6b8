"""Committed data as DataFrames: for look-ups of previous values (`upsert/lookup.py`), and for readers.

    ShardState -> hollow batches -> manifests -> pieces (`contents.pieces`) -> one scan for all that are alike,
    explicit schema, pruned columns

`scan` reads every file of a shard, in the schema version that it was written in (`persist_spark.frame.as_written`).

For each path Spark asks the store whether it is there, and lists what is below it: on S3 three requests. So a folder
that holds only files to read, which is what most attempts stage, is one path. Spark passes over a file that goes
between the two. So the files that it has found are compared with the files to read (`files_found`).

A Spark Connect server lists nothing before a plan runs, which may be long after the listings here: by then GC may have
deleted some of a folder's files, and no reader would miss their rows. There each file is a path, which has to be there
when the plan begins.
"""

from __future__ import annotations

import functools
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.pieces import Piece, Take
from persist_core.errors import CorruptArtifact
from persist_core.location.blob import Blob
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_spark import s3a
from persist_spark.compat import is_connect
from persist_spark.frame import as_written, named, places
from persist_spark.read import damage

_READ_OPTIONS = {
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",  # dates are read as they were written
    **damage.READ_OPTIONS,
}
File = tuple[str, CollectionSchema]  # the key of a Parquet file, and the schema in which it was written
_ENDED = (T.StructField(ENDED, T.LongType()),)
_FOLDER_FILES = 8  # from so many on, to list their folder costs less
_GLOB = re.compile(r"[\\*?\[\]{}]")


def scan_pieces(
    spark: SparkSession,
    blob: Blob,
    pieces: Iterable[Piece],
    schema: T.StructType,
    options: Mapping[str, str] | None = None,
) -> DataFrame | None:
    """The pieces' rows of their files, as one DataFrame with the columns of `schema`; `None` without pieces."""
    groups: dict[tuple[Take, int | None, int | None], list[File]] = {}
    for piece in pieces:
        groups.setdefault((piece.take, piece.after, piece.through), []).append((piece.part.key, piece.part.schema))
    read = functools.partial(scan, spark, blob, options=options)
    frames = [_taken(read, files, schema, *group) for group, files in groups.items()]
    return functools.reduce(DataFrame.unionByName, frames) if frames else None


def _taken(
    read: Callable[[Sequence[File], T.StructType], DataFrame],
    files: Sequence[File],
    schema: T.StructType,
    take: Take,
    after: int | None,
    through: int | None,
) -> DataFrame:
    """Like `Piece.of`, for several files together, but updates that are undone keep their times."""
    has_ends = take in (Take.ALIVE, Take.UPDATES)
    found = read(files, T.StructType([*schema.fields, *_ENDED] if has_ends else schema.fields))
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


def scan(
    spark: SparkSession,
    blob: Blob,
    files: Iterable[File],
    schema: T.StructType,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of these files, one at least, with the columns of `schema`: one read for each version."""
    versions: dict[int, tuple[CollectionSchema, list[str]]] = {}
    for key, written in files:
        versions.setdefault(written.version, (written, []))[1].append(key)
    frames = [_read(spark, blob, keys, schema, written, options or {}) for written, keys in versions.values()]
    return functools.reduce(DataFrame.union, frames)


def _read(
    spark: SparkSession,
    blob: Blob,
    keys: Sequence[str],
    schema: T.StructType,
    written: CollectionSchema,
    more: Mapping[str, str],
) -> DataFrame:
    """Files of one version. Raises `CorruptArtifact` if one vanishes meanwhile."""
    whole = [] if is_connect(spark) else _whole_folders(blob, keys)
    apart = [key for key in keys if posixpath.dirname(key) not in whole]
    paths = [literal(blob.uri_of(path)) for path in (*whole, *apart)]
    options = {**_READ_OPTIONS, **s3a.access_options(blob.uri, os.environ), **more, **only_of(sorted(keys))}
    fields, cells = as_written(schema, written)
    with s3a.jars_present():
        found = spark.read.schema(fields).options(**options).parquet(*paths)
    listed = files_found(found)
    if listed is not None and (odd := {damage.key_in(blob, unquote(path)) for path in listed} ^ {*keys}):
        raise CorruptArtifact(
            f"{min(map(str, odd))}: appeared or vanished while Spark listed it, or the platform has a"
            f" {damage.PATH_FILTER} that hides it; {damage.REMEDY}"
        )
    return found if fields == schema else found.toDF(*places(fields)).selectExpr(*cells)


def only_of(files: Sequence[object]) -> dict[str, str]:
    """An option that no read of other files has. To Spark reads of equal paths and options have equal rows, in a query
    and in its cache, which all sessions of an application share. But a folder may have lost files, and another file may
    have taken the place of one."""
    return {"persist.files": hashlib.sha256(repr(files).encode()).hexdigest()}


def files_found(found: DataFrame) -> list[str] | None:
    """The URIs of all files of a plain `spark.read`, which it has listed; `None` of a Connect server's: it has not."""
    if is_connect(found.sparkSession):
        return None
    relation = found._jdf.queryExecution().analyzed().collectLeaves().head()
    is_v2 = relation.getClass().getSimpleName() == "DataSourceV2Relation"  # as the user's session may want it
    index = relation.table().fileIndex() if is_v2 else relation.relation().location()
    jvm = cast(Any, found.sparkSession)._jvm
    files = str(jvm.org.apache.hadoop.util.StringUtils.join("\n", index.inputFiles()))  # one message for all
    return files.split("\n") if files else []


def _whole_folders(blob: Blob, keys: Iterable[str]) -> list[str]:
    wanted: dict[str, set[str]] = {}
    for key in keys:
        wanted.setdefault(posixpath.dirname(key), set()).add(key)
    large = [folder for folder, files in wanted.items() if len(files) >= _FOLDER_FILES]
    found = damage.listings(blob, large)
    shown = [{file.key for file in each if posixpath.basename(file.key)[0] not in "._"} for each in found]
    return [folder for folder, files in zip(large, shown, strict=True) if files == wanted[folder]]


def literal(path: str) -> str:
    """A path for Spark's readers: a `[` or `{` in the location's own is not a pattern."""
    return _GLOB.sub(r"\\\g<0>", path)
