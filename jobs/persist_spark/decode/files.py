"""Frozen files to rows with a position: text lines (gz, bz2, zstd or plain), each with its file, block and row.

    InputFile.. --readable--> paths that Spark reads as they are --text_lines--> LINE, DATE_MS, BROKEN, the position
                   '-- foreign compression and records that are too long: a copy in the blob store

Position. Comparing (FILE, BLOCK, ROW) is the order of lines in a file, since lines of one block are read by one task,
one after the other, and blocks of a file start at ascending offsets. ROW counts lines within a task, blank ones too.
Records of different files are compared by FILE alone, so it does not matter there. A redelivered description gives the
same comparisons. A partition of lines is one block of one file if the batch has few files, or if orders are stored
(`kept_apart`): then ROW is the number of a line, from 0 on, whatever else is read. Small partitions share a task after
the rows are counted (`_in_fewer_tasks`).
"""

from __future__ import annotations

import functools
import gzip
import math
import os
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.config.collection import CollectionConfig
from persist_core.errors import InvalidInput, SourceChanged, StorageError
from persist_core.keys import input_copy
from persist_core.location.blob import Blob, FileTaker
from persist_core.sample.files import CODECS
from persist_core.sources.input_file import InputFile
from persist_spark import s3a
from persist_spark.compat import READS_ZSTD_TEXT, is_valid_utf8
from persist_spark.decode.unread import TooLong, text_without
from persist_spark.feed_access import FeedAccess
from persist_spark.frame import passed, struct_of
from persist_spark.read.damage import LOUD_OPTIONS, PATH_FILTER
from persist_spark.read.parts import files_found, literal, only_of
from persist_spark.session import use

LINE, DATE_MS, NAME = "line", "date_ms", "file_name"
BROKEN = "broken"  # boolean: the record is not well-formed UTF-8
FILE, BLOCK, ROW = (f"p{place}" for place in range(3))  # the position

_BLANK_BYTES = 256  # a longer line is parsed without a check whether it is blank
_FOLDED_FILES = 8  # up to this many, a literal costs less than a broadcast join
_APART_FILES = 64  # up to this many, each is read in partitions of its own
_APART_BYTES = 16 << 20  # of a file, in one partition, if they are
_TASK_BYTES = 8 << 20  # small files of a batch share a task up to about this: each task generates code of its own
_MOST_TASK_BYTES = 4 * _TASK_BYTES  # together, if they are of very different sizes
_OPEN_BYTES = 32 << 10  # opening a file counts as so many: 256 a task, half a second in a folder and seconds on S3
_UNPACKED = 8  # bytes of text for one of a compressed file, about
_ROW_BITS = 33  # of monotonically_increasing_id: below these, the number of the task
_ZSTD = (".zst", ".zstd")
_CHUNK_BYTES = 4 << 20
_GLOBS = "__globPaths__"
_LITERAL = {**LOUD_OPTIONS, _GLOBS: "false"}  # nothing in a path is a glob
# For local paths. Hadoop's default also looks for a checksum beside each file, and fails at a name with a colon. Not
# for a read that has paths on S3 too: S3A needs that default.
INPUT_OPTIONS = {
    **_LITERAL,
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
# Where the platform has set a length, Hadoop silently passes over longer lines. Ours are found before.
_ALL_LINES = {"lineSep": "\n", "mapreduce.input.linerecordreader.line.maxlength": str(2**31 - 1)}
_URI_PLAIN = frozenset("_-!.~'()*/;:@&=+$,")  # what java.net.URI does not escape in a path, besides letters and digits
# The kinds of DMS's files, by their names: `LOAD0000000A.csv` is of a full load, any other one holds changes.
FULL_LOAD = r"^LOAD[0-9A-F]+\."  # a name, also as a natural-sort key
_FACTS = {FILE: T.StringType(), DATE_MS: T.LongType(), NAME: T.StringType()}
_PLACE = {BLOCK: T.LongType(), ROW: T.LongType(), BROKEN: T.BooleanType()}
NO_LINES = struct_of({LINE: T.StringType(), **_FACTS, **_PLACE})


@dataclass(frozen=True)
class ReadableFile:
    """A path that Spark reads as it is, and the frozen file that it stands for."""

    path: str
    file: InputFile
    lost: tuple[TooLong, ...] = ()  # records of the file that `path` has not


@dataclass(frozen=True)
class Copies:
    """Copies of input files in the blob store, where executors on any machine read them; `made` holds their keys,
    which `key_of` makes (`JobSpec.key_of`)."""

    blob: Blob
    key_of: Callable[[str], str]
    access: FeedAccess
    made: list[str] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        """The options with which Spark reads paths on S3, of copies and of originals."""
        return {**s3a.access_options(self.blob.uri, os.environ), **self.access.options}

    def add(self, file: InputFile, text: Iterable[bytes] | None) -> str:
        """The path of a copy of `file`: of this text, in pieces, else exact.

        A text is compressed, since the file may expand to more than the disk holds.
        """
        if not isinstance(self.blob, FileTaker):
            raise InvalidInput(f"{self.blob.uri} takes no files: Spark needs a copy of file {file.relative!r} there")
        key = self.key_of(input_copy(len(self.made), ".parquet" if text is None else ".gz"))
        with TemporaryDirectory(prefix="persist-") as folder:
            copy = Path(folder, "copy")
            if text is None:
                with self.access.feed.opened(file) as source, copy.open("wb") as exact:
                    shutil.copyfileobj(source, exact, _CHUNK_BYTES)
            else:
                with gzip.open(copy, "wb", compresslevel=1) as packed:
                    packed.writelines(text)
            self.made.append(key)
            self.blob.set_file(key, copy)
        return self.blob.uri_of(key).removeprefix("file://")


@contextmanager
def copies_in(blob: Blob, key_of: Callable[[str], str], access: FeedAccess) -> Iterator[Copies]:
    """Copies that one job makes, removed at its end; GC removes what a killed job left."""
    copies = Copies(blob, key_of, access)
    try:
        yield copies
    finally:
        with suppress(StorageError):  # the job's own result counts
            for key in copies.made:
                blob.delete(key)


def readable(
    files: Sequence[InputFile],
    copies: Copies,
    lost: Mapping[InputFile, Sequence[TooLong]],
    *,
    keeps_header: bool,
    is_text: bool = True,
) -> list[ReadableFile]:
    """The path to read each file under, without its records in `lost`. Empty files are left out, and files lost whole.

    What Spark would not read as it should gets a copy: files with records in `lost`, zstd where it cannot read it, and
    what is not for Spark (`FeedAccess`).
    """
    found = []
    for file in files:
        too_long = tuple(lost.get(file, ()))
        if file.size_bytes == 0 or any(each.size_bytes == 0 for each in too_long):
            continue
        is_foreign = is_text and file.path.lower().endswith(_ZSTD) and not READS_ZSTD_TEXT
        path = None if is_foreign or too_long else copies.access.spark_path(file)
        if path is None:
            text = text_without(copies.access.feed, file, too_long, keeps_first=keeps_header) if is_text else None
            path = copies.add(file, text)
        found.append(ReadableFile(path, file, too_long))
    return found


def text_lines(spark: SparkSession, files: Sequence[ReadableFile], options: Mapping[str, str]) -> DataFrame:
    """One row per line that is not blank: `LINE`, `DATE_MS`, `NAME`, `BROKEN`, and its position.

    `LINE` is a string of exactly the line's bytes without the line end, LF or CRLF. `options` lead to paths on S3.
    """
    if not files:
        return spark.createDataFrame([], NO_LINES)
    value, frames = F.col("value"), []
    # A row's number in its task, which a union of tasks does not change: one projection less than after it.
    row = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1)).alias(ROW)
    for paths, how in by_store(files, options):
        found = all_found(spark.read.options(**_ALL_LINES, **how).text(paths), paths)
        path, block = F.col("_metadata.file_path").alias("path"), F.col("_metadata.file_block_start").alias(BLOCK)
        frames.append(found.select(value, path, block, row))
    counted = _in_fewer_tasks(functools.reduce(DataFrame.union, frames), files)
    lines = counted.where((F.octet_length(value) > _BLANK_BYTES) | value.rlike(r"\S"))
    line = F.when(value.endswith("\r"), value.substr(F.lit(1), F.length(value) - 1)).otherwise(value)
    known = placed(spark, lines, files)
    broken = (~is_valid_utf8(value)).alias(BROKEN)
    return known.select(line.alias(LINE), DATE_MS, NAME, broken, FILE, BLOCK, ROW)


def files_with(
    spark: SparkSession, files: Sequence[ReadableFile], options: Mapping[str, str], has: Callable[[str], SparkColumn]
) -> set[InputFile]:
    """The files that have a line of which `has` is true, given the name of its column."""
    if not files:
        return set()
    frames = [
        all_found(spark.read.options(**_ALL_LINES, **how).text(paths), paths)
        .where(has("value"))
        .select(F.col("_metadata.file_path"))
        for paths, how in by_store(files, options)
    ]
    known = {uri: each.file for each in files for uri in uris(each.path)}
    return {known[row[0]] for row in functools.reduce(DataFrame.union, frames).distinct().collect()}


def _in_fewer_tasks(lines: DataFrame, files: Sequence[ReadableFile]) -> DataFrame:
    """Lines in as many tasks as their files and bytes need: `kept_apart` gave each file a partition or more.

    A task gets partitions that follow each other, and Spark has sorted them: the largest files are neighbors.
    """
    sizes = [each.file.size_bytes * (_UNPACKED if Path(each.path).suffix.lower() in CODECS else 1) for each in files]
    blocks = sorted((min(size, _APART_BYTES) for size in sizes for _ in range(0, size, _APART_BYTES)), reverse=True)
    tasks = math.ceil((sum(sizes) + len(sizes) * _OPEN_BYTES) / _TASK_BYTES)
    while tasks < len(blocks) and sum(blocks[: math.ceil(len(blocks) / tasks)]) > _MOST_TASK_BYTES:
        tasks *= 2
    return lines.coalesce(tasks)


def by_store(files: Sequence[ReadableFile], options: Mapping[str, str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The paths in folders and on S3, each with the options to read them."""
    only = only_of([each.file for each in files])
    # Hadoop looks for a path without a scheme where the platform says, which may be HDFS.
    for scheme, how in (("file://", INPUT_OPTIONS), ("", {**_LITERAL, **options})):
        paths = [f"{scheme}{file.path}" for file in files if file.path.startswith("/") == bool(scheme)]
        # Of a path with a `[` that is to be no pattern, Spark makes all paths once more: each file would be read again.
        for is_pattern, more in ((False, {}), (True, {_GLOBS: "true"})):
            if some := [literal(path) for path in paths if (literal(path) != path) == is_pattern]:
                yield some, {**how, **more, **only}


def all_found(found: DataFrame, paths: Sequence[str]) -> DataFrame:
    """A plain read of these paths. Raises `SourceChanged` if Spark has listed less, or other objects: it passes over a
    file that goes in that moment, and S3A takes `a` for a folder if there is an object `a/b`."""
    listed = files_found(found)
    if listed is None:
        return found
    names = {*map(unquote, listed)}
    missing = [path for path in paths if path.startswith("s3a:") and path not in names]
    if missing or len(listed) != len(paths):
        raise SourceChanged(
            f"Spark found {len(listed)} of {len(paths)} input files, {(missing or paths)[0]} the first of them."
            " The others vanished; or, on S3, objects with their name and a slash make folders of them, and one has to"
            f" be renamed; or the platform has a {PATH_FILTER} that hides them. Nothing was committed"
        )
    return found


def placed(spark: SparkSession, rows: DataFrame, files: Sequence[ReadableFile]) -> DataFrame:
    """Add `FILE`, `DATE_MS` and `NAME` by the column `path`. A path that is not among `files` fails the job."""
    if len(files) == 1:
        one = files[0].file
        date = {} if one.date_ms is None else {DATE_MS: F.expr(passed(one.date_ms)[0])}  # another one in each batch
        return rows.withColumns({**_facts(one), **date})
    if len(files) <= _FOLDED_FILES:
        pairs: list[SparkColumn] = []
        for file in files:
            facts = F.struct(*[fact.alias(name) for name, fact in _facts(file.file).items()])
            for uri in uris(file.path):
                pairs += [F.lit(uri), facts]
        found = rows.withColumn("facts", F.create_map(*pairs)[F.col("path")])
        named = found.withColumns({name: F.col("facts").getField(name) for name in (FILE, DATE_MS, NAME)})
    else:
        known = [
            (uri, file.file.order, file.file.date_ms, file.file.relative) for file in files for uri in uris(file.path)
        ]
        table = F.broadcast(spark.createDataFrame(known, struct_of({"path": T.StringType(), **_FACTS})))
        named = rows.join(table, "path", "left")
    lost = F.raise_error(F.concat(F.lit("Spark read a file that was not frozen: "), F.col("path")))
    return named.withColumn(FILE, F.coalesce(F.col(FILE), lost.cast("string")))


def _facts(file: InputFile) -> dict[str, SparkColumn]:
    date_ms = F.lit(file.date_ms).cast("bigint")
    return {FILE: F.lit(file.order), DATE_MS: date_ms, NAME: F.lit(file.relative)}


def kept_apart(spark: SparkSession, files: Sequence[InputFile], *, is_stored: bool) -> bool:
    """Have each text file of a batch of few files read in partitions of its own, so that lines can be counted; true if
    so. `is_stored`: of any files, since positions are kept: a file that is read again beside others must give the same.

    Spark closes a partition when the next file does not fit. A single file, or block, needs nothing but the same size.
    """
    if is_stored or 1 < len(files) <= _APART_FILES:
        sizes = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
        use(spark, dict.fromkeys(sizes, str(_APART_BYTES)))
    return is_stored or len(files) <= _APART_FILES


def shown_position(*, is_text: bool, has_lines: bool) -> SparkColumn:
    """The text of a record's place: `orders/2026-01-02.jsonl, line 7`, or `row 7` of Parquet, where rows count from 0.

    In a file that Spark reads in blocks, the lines of the later ones count from the first line end after a byte. What
    is not known is left out.
    """
    if not is_text:
        return F.concat(NAME, F.lit(", row "), F.col(ROW).cast("string"))
    if not has_lines:
        return F.col(NAME)
    line = F.concat(NAME, F.lit(", line "), (F.col(ROW) + 1).cast("string"))
    after = F.concat(line, F.lit(" after byte "), F.col(BLOCK).cast("string"))
    is_packed = F.lower(NAME).endswith(".bz2")  # its blocks are of compressed bytes
    return F.when(F.col(BLOCK) == 0, line).when(is_packed, F.col(NAME)).otherwise(after)


def uris(path: str) -> tuple[str, ...]:
    """The names that Spark may give this path in `_metadata.file_path`: a URI as java.net.URI writes it."""
    quoted = "".join(_quoted(char) for char in path)
    return (f"file:{quoted}", f"file://{quoted}") if path.startswith("/") else (quoted,)


def _quoted(char: str) -> str:
    if ord(char) < 0x80:
        return char if char.isalnum() or char in _URI_PLAIN else f"%{ord(char):02X}"
    if unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc"):
        return "".join(f"%{byte:02X}" for byte in char.encode())
    return char


def is_of_dms(config: CollectionConfig) -> bool:
    return config.source.format in ("dms-csv", "dms-parquet")


def file_name() -> SparkColumn:
    """The name of a record's file, as a natural-sort key without its zeros. A pattern would be slower."""
    return F.substring_index(F.substring_index(FILE, " //", 1), "/", -1)


def is_full_load() -> SparkColumn:
    return file_name().startswith("LOAD") & file_name().rlike(FULL_LOAD)
