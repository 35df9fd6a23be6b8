"""Frozen input files to the records frame: what every format has in common, and the choice between them.

    files --decode_files--> lines --decode_<format>--> RawRecords --decode_records--> the records frame

Bad input becomes errs in the frame and never fails the job. A file that cannot be read at all (truncated gzip, not
Parquet, missing) fails the job and is named: it may be half written, and its records must not be lost. Except to
look for open quotes in large CSV files, no Spark job runs until the caller acts on the frame.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.errors import InvalidInput
from persist_core.sources.input_file import InputFile
from persist_spark import s3a
from persist_spark.decode.csv import csv_records, layouts
from persist_spark.decode.debezium import debezium_records
from persist_spark.decode.files import (
    Copies,
    ReadableFile,
    kept_apart,
    readable,
    shown_position,
    text_lines,
)
from persist_spark.decode.parquet import FileSchema, alike, looked_at, parquet_records
from persist_spark.decode.plain import dms_json_records, json_records
from persist_spark.decode.records import RawRecords, decoded, is_sequence
from persist_spark.decode.row_checks import united
from persist_spark.decode.unread import long_records, long_records_frame
from persist_spark.frame import ORDER

_JSON_LINES = {"json": json_records, "debezium-json": debezium_records, "dms-json": dms_json_records}
_MAX_LAYOUTS = 100  # of CSV headers or Parquet schemas in one batch: each is a branch of the plan


def decode(
    spark: SparkSession,
    config: CollectionConfig,
    files: Sequence[InputFile],
    *,
    copies: Copies,
    see: Callable[..., None] = lambda *_: None,
) -> DataFrame:
    """The records frame of `files`, in no particular row order, lazily.

    `see` gets the names of the fields that a number of files have, by their header or schema (as
    `persist_core.sample.fields.FeedFields.see`). `copies` are
    needed until the action on the frame ends. Raises `InvalidInput` if the session's time zone is not UTC (texts
    without a zone are UTC); `SourceChanged` if a file's header or footer cannot be read, or a compressed file is
    damaged.
    """
    zone = spark.conf.get("spark.sql.session.timeZone", None)
    if zone not in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00"):
        raise InvalidInput(
            f"spark.sql.session.timeZone is {zone!r}; expected 'UTC': decode in a session of"
            " `persist_spark.session.own_session`"
        )
    is_text = "parquet" not in config.source.format
    known: Mapping[InputFile, FileSchema] = {}
    if is_text:
        is_json = config.source.format in _JSON_LINES
        lost = long_records(copies.access.feed, files, config.limits.max_record_bytes, is_json=is_json)
    else:
        known, lost = looked_at(config, copies.access.feed, files)
    has_lines = is_text and kept_apart(spark, files, is_stored=is_sequence(config))
    has_header = "csv" in config.source.format and config.source.header
    with s3a.jars_present():
        readables = readable(files, copies, lost, keeps_header=has_header, is_text=is_text)
        found = _raw_records(spark, config, readables, known, copies, see)
    at = shown_position(is_text=is_text, has_lines=has_lines)
    parts = [decoded(config, raw, at) for raw in found]
    if lost:
        order = parts[0].schema[ORDER].dataType
        parts.append(long_records_frame(spark, config, [each for lines in lost.values() for each in lines], order))
    return functools.reduce(united, parts)


def _raw_records(
    spark: SparkSession,
    config: CollectionConfig,
    files: list[ReadableFile],
    known: Mapping[InputFile, FileSchema],
    copies: Copies,
    see: Callable[..., None],
) -> list[RawRecords]:
    if config.source.format in _JSON_LINES:
        return [_JSON_LINES[config.source.format](config, text_lines(spark, files, copies.options))]
    if config.source.format in ("csv", "dms-csv"):
        laid_out = layouts(spark, config, files, copies)
        _check_layouts(len(laid_out))
        for layout, members in laid_out:
            see(layout.fields, len(members))
        return [csv_records(config, text_lines(spark, members, copies.options), layout) for layout, members in laid_out]
    by_schema = alike(known, files)
    _check_layouts(len(by_schema))
    for schema, members in by_schema:
        see(schema.fields, len(members), [name for name, _ in schema.unreadable], schema.has)
    return [parquet_records(spark, config, schema, members, copies.options) for schema, members in by_schema]


def _check_layouts(count: int) -> None:
    if count > _MAX_LAYOUTS:
        raise InvalidInput(
            f"the input files have {count} different headers or schemas; expected at most {_MAX_LAYOUTS} in one batch:"
            " lower limits.max_files, or give the files one header or schema"
        )
