"""Frozen files to rows with a position: text lines (gz, bz2, zstd or plain), each with its file, block and row.

    InputFile.. --readable--> paths that Spark reads as they are --text_lines--> LINE, FILE, DATE_MS, BLOCK
                   '-- odd names get an alias, foreign compression a copy, both in the scratch folder

Position. `position` adds the row number to (FILE, BLOCK): comparing (file, block, row) is the order of lines in a file,
since lines of one block are read by one task, one after the other, and blocks of a file start at ascending offsets.
The row number counts records within a task. Records of different files are compared by FILE alone, so it does not
matter there. A redelivered description gives the same comparisons.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.errors import InvalidInput
from persist_core.schema import POSITION
from persist_core.sources.files import InputFile
from persist_spark.compat import READS_ZSTD_TEXT, is_valid_utf8
from persist_spark.decode.long_records import TooLong, copy_without, opened
from persist_spark.read.damage import LOUD_OPTIONS

LINE, FILE, DATE_MS, BLOCK = "line", "file", "date_ms", "block"
BROKEN = "broken"  # boolean: the record is not well-formed UTF-8

_BLANK_BYTES = 256  # a longer line is parsed without a check whether it is blank
_FOLDED_FILES = 8  # up to this many, a literal costs less than a broadcast join
_ROW_BITS = 33  # of monotonically_increasing_id: below these, the number of the task
_ZSTD = (".zst", ".zstd")
_COPY_BYTES = 1 << 20
_URI_PLAIN = frozenset("_-!.~'()*/;:@&=+$,")  # what java.net.URI does not escape in a path, besides letters and digits
_LINE_FACTS = T.StructType(
    [T.StructField("path", T.StringType()), T.StructField(FILE, T.StringType()), T.StructField(DATE_MS, T.LongType())]
)
NO_LINES = T.StructType(
    [
        T.StructField(LINE, T.StringType()),
        T.StructField(FILE, T.StringType()),
        T.StructField(DATE_MS, T.LongType()),
        T.StructField(BLOCK, T.LongType()),
        T.StructField(BROKEN, T.BooleanType()),
    ]
)


@dataclass(frozen=True)
class ReadableFile:
    """A path that Spark reads as it is, and the frozen file that it stands for."""

    path: str
    file: InputFile


def readable(
    files: Sequence[InputFile], scratch: Path | None, lost: Mapping[InputFile, Sequence[TooLong]], *, keeps_header: bool
) -> list[ReadableFile]:
    """The path to read each file under, without its records in `lost`. Empty files are left out, and those lost whole.

    Names that Spark skips or cannot open (`_x`, `.x`, `a:b`) get a symlink in `scratch`, zstd files a decompressed
    copy if this Spark cannot read them. Raises `InvalidInput` if that is needed and there is no `scratch`.
    """
    found = []
    for index, file in enumerate(files):
        too_long = lost.get(file, ())
        if file.size_bytes == 0 or any(each.size_bytes == 0 for each in too_long):
            continue
        name = Path(file.path).name
        is_foreign = name.lower().endswith(_ZSTD) and not READS_ZSTD_TEXT
        if not is_foreign and not too_long and name[0] not in "._" and ":" not in name:
            found.append(ReadableFile(file.path, file))
            continue
        if scratch is None:
            raise InvalidInput(f"file {file.relative!r} cannot be read under its name; give decode a scratch folder")
        folder = scratch / f"{index:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        if too_long:
            target = folder / "short.gz"
            copy_without(file, too_long, target, keeps_first=keeps_header)
        elif is_foreign:
            target = folder / "plain.txt"
            _decompress(Path(file.path), target)
        else:
            target = folder / ("alias" + "".join(Path(name).suffixes[-1:]).replace(":", "_"))
            target.unlink(missing_ok=True)
            target.symlink_to(file.path)
        found.append(ReadableFile(str(target), file))
    return found


def _decompress(source: Path, target: Path) -> None:
    with opened(str(source)) as packed, target.open("wb") as plain:
        shutil.copyfileobj(packed, plain, _COPY_BYTES)


def text_lines(spark: SparkSession, files: Sequence[ReadableFile]) -> DataFrame:
    """One row per line that is not blank: `LINE`, `FILE`, `DATE_MS`, `BLOCK`, `BROKEN`.

    `LINE` is a string of exactly the line's bytes without the line end, LF or CRLF. Paths are literal: nothing in
    them is a glob.
    """
    if not files:
        return spark.createDataFrame([], NO_LINES)
    reader = spark.read.options(**LOUD_OPTIONS).option("lineSep", "\n").option("__globPaths__", "false")
    value = F.col("value")
    lines = reader.text([file.path for file in files]).select(
        value, F.col("_metadata.file_path").alias("path"), F.col("_metadata.file_block_start").alias(BLOCK)
    )
    lines = lines.where((F.octet_length(value) > _BLANK_BYTES) | value.rlike(r"\S"))
    line = F.when(value.endswith("\r"), value.substr(F.lit(1), F.length(value) - 1)).otherwise(value)
    known = placed(spark, lines, files)
    return known.select(line.alias(LINE), FILE, DATE_MS, BLOCK, (~is_valid_utf8(value)).alias(BROKEN))


def placed(spark: SparkSession, rows: DataFrame, files: Sequence[ReadableFile]) -> DataFrame:
    """Add `FILE` and `DATE_MS` by the column `path`. A path that is not among `files` fails the job."""
    if len(files) == 1:
        only = files[0].file
        return rows.withColumn(FILE, F.lit(only.order)).withColumn(DATE_MS, F.lit(only.date_ms).cast("bigint"))
    if len(files) <= _FOLDED_FILES:
        pairs: list[SparkColumn] = []
        for file in files:
            facts = F.struct(F.lit(file.file.order).alias(FILE), F.lit(file.file.date_ms).cast("bigint").alias(DATE_MS))
            for uri in _uris(file.path):
                pairs += [F.lit(uri), facts]
        found = rows.withColumn("facts", F.create_map(*pairs)[F.col("path")])
        named = found.withColumn(FILE, F.col("facts").getField(FILE))
        named = named.withColumn(DATE_MS, F.col("facts").getField(DATE_MS))
    else:
        known = [(uri, file.file.order, file.file.date_ms) for file in files for uri in _uris(file.path)]
        table = F.broadcast(spark.createDataFrame(known, _LINE_FACTS))
        named = rows.join(table, "path", "left")
    lost = F.raise_error(F.concat(F.lit("Spark read a file that was not frozen: "), F.col("path")))
    return named.withColumn(FILE, F.coalesce(F.col(FILE), lost.cast("string")))


def _uris(path: str) -> tuple[str, str]:
    """What Spark may call this local path in `_metadata.file_path`: a URI as java.net.URI writes it."""
    quoted = "".join(_quoted(char) for char in path)
    return f"file:{quoted}", f"file://{quoted}"


def _quoted(char: str) -> str:
    if ord(char) < 0x80:
        return char if char.isalnum() or char in _URI_PLAIN else f"%{ord(char):02X}"
    if unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc"):
        return "".join(f"%{byte:02X}" for byte in char.encode())
    return char


def row_number() -> SparkColumn:
    """The number of a record within its task: ascending in file order within a block."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))


def position(row: SparkColumn) -> list[SparkColumn]:
    """The last fields of every order struct: a file source's position. See the module's docstring."""
    values = (F.col(FILE), F.col(BLOCK), row)
    return [value.cast(field.type).alias(field.name) for field, value in zip(POSITION, values, strict=True)]
