"""CSV: `csv` with a delete marker, `dms-csv` with a leading `Op`. One line, one record.

A line is kept whole as the payload of its err, so line breaks within quoted fields are not supported: such a record
comes as lines with an odd number of quotes, each an err. Quotes are doubled within quotes (RFC 4180).

The first line of each file that is not blank is its header (`header: true`); any other line equal to it is one too.
Which other files are read with it does not matter.
Columns are found by the header's names, exactly. Extra columns in a file are ignored, missing ones are null; without a
key column the file is not read. Without a header, columns are in the order of `columns:`, or at
the number that `field` gives (1 is the first); a line must have as many fields as the first line of its file.

An unquoted empty field is null and `""` an empty string in `csv`. In `dms-csv` the text NULL is null (the default of
DMS) and an empty field is an empty string, or null if the column is not a string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.config.collection import CollectionConfig
from persist_core.sample.files import csv_rows
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_spark.decode.encoding import Encoding
from persist_spark.decode.files import LINE, ReadableFile
from persist_spark.decode.long_records import text_without
from persist_spark.decode.plain import DMS_OP, MARKER, check_op, free_paths, order_of, row_op
from persist_spark.decode.records import FAULT, FAULT_KIND, RawRecords, fields_of, line_columns
from persist_spark.decode.rest import read_paths, rest_of_cells
from persist_spark.decode.unreadable import of_each

_FIRST_LINE_BYTES = 1 << 20  # of a file, in which its first line must end
_NO_NULL = "\ufdd2"  # a text that no field has: only an empty field is null
_UNNAMED = "\ufdd2"  # before the number of a field without a name
_DMS_NULL = "NULL"
_SHOWN_CHARS = 200  # of a header, in a message
_OPS = ("I", "U", "D")
UNBALANCED = "an odd number of quotes: a field is not closed; line breaks within quoted fields are not supported"
CONTINUED = 'a quoted field goes on behind its closing quote; double a quote within quotes ("")'
MISCOUNTED = "the line does not have as many fields as its file's first line"


@dataclass(frozen=True)
class Layout:
    """The layout of the lines of some files: the names of their fields in order, and the header line to drop.

    A header is bytes, as it may be no UTF-8: then no text equals it.
    """

    names: tuple[str, ...]
    header: bytes | None

    @property
    def fields(self) -> list[str]:
        """The names; a field without one by its number, from 1 on."""
        return [str(at) if name.startswith(_UNNAMED) else name for at, name in enumerate(self.names, start=1)]


def layouts(
    config: CollectionConfig, feed: Feed, files: Sequence[ReadableFile]
) -> list[tuple[Layout, list[ReadableFile]]]:
    """Files of equal layout together, at least one group. Reads the first line of each file.

    Raises `UnreadableFiles` if it cannot be read.
    """
    found: dict[Layout, list[ReadableFile]] = {}
    by_file = {each.file: each for each in files}

    def look(file: InputFile) -> Layout | None:
        line = first_line(feed, by_file[file], keeps_long=config.source.header)
        if line is None:
            return None
        return Layout(_names(config, line.decode("utf-8", "replace")), line if config.source.header else None)

    for file, layout in zip(files, of_each(look, list(by_file)), strict=True):
        if layout is not None:
            found.setdefault(layout, []).append(file)
    return list(found.items()) or [(Layout(("",), None), [])]


def first_line(feed: Feed, file: ReadableFile, *, keeps_long: bool) -> bytes | None:
    """The first line that is not blank, without BOM and line end; `None` for a file without one.

    `keeps_long`: the start of one that is too long is taken, as `readable` has it.
    """
    start = b""
    for piece in text_without(feed, file.file, file.lost, keeps_first=keeps_long):
        start += piece
        if len(start) >= _FIRST_LINE_BYTES:
            break
    for line in start.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if line.strip():
            return line.removesuffix(b"\r")
    return None


def _names(config: CollectionConfig, line: str) -> tuple[str, ...]:
    """The names of the fields of a file with this first line.

    Raises `ArrowInvalid` if records are in that line, or deletes in the file, that no err would show.
    """
    names = tuple(next(csv_rows([line], config.source.delimiter)))
    if not config.source.header:
        names = _positional_names(config, names)
    elif "\r" in line:
        raise pa.ArrowInvalid("a CR is in its first line: end lines in LF or CRLF")
    check_op(config, names)
    for key in config.key:
        field = config.columns[key].field or key
        if field not in names:
            shown = ", ".join(names)[:_SHOWN_CHARS]
            raise pa.ArrowInvalid(
                f"its first line has no field {field!r} for the key, only {shown}; correct it, or the column's `field`,"
                " source.delimiter or source.header"
            )
    return names


def _positional_names(config: CollectionConfig, first: tuple[str, ...]) -> tuple[str, ...]:
    """Names for a file without a header: the columns in their order, after `Op` if the file has it."""
    columns = [column.field or name for name, column in config.columns.items()]
    if any(name.isdigit() for name in columns):
        return tuple(str(index + 1) for index in range(len(first)))
    has_op = config.source.format == "dms-csv" and len(first) > len(columns) and first[0] in _OPS
    names = [DMS_OP, *columns] if has_op else columns
    extra = [f"{_UNNAMED}{index}" for index in range(len(names), len(first))]  # fields without a column of that name
    return tuple([*names, *extra][: len(first)])


def csv_records(config: CollectionConfig, lines: DataFrame, layout: Layout) -> RawRecords:
    """`csv` and `dms-csv`: see the module's docstring. `lines` come from files of this layout."""
    fields = fields_of(config)
    is_dms = config.source.format == "dms-csv"
    wanted = {raw: ".".join(path) for raw, path in read_paths(config, fields).items()}
    wanted |= {raw: ".".join(path) for raw, path in free_paths(config).items()}
    marker = DMS_OP if is_dms else config.delete.column
    if marker is not None:
        wanted[MARKER] = marker
    texts = {field.raw for field in fields.all if field.column.type in ("string", "json")}
    at = {name: index for index, name in reversed(list(enumerate(layout.names)))}
    row_type = T.StructType(
        [T.StructField(f"c{i}", T.StringType()) for i in range(len(layout.names))]
        + [T.StructField("odd", T.StringType())]
    )
    options = {
        "sep": config.source.delimiter,
        "quote": '"',
        "escape": '"',
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "odd",
        "nullValue": _NO_NULL,  # an unquoted empty field; we interpret any other text
        "emptyValue": "",
        "maxCharsPerColumn": "-1",
    }
    kept = lines if layout.header is None else lines.where(F.col(LINE).cast("binary") != F.lit(layout.header))
    row = F.from_csv(F.col(LINE), row_type.simpleString(), options)
    # Spark keeps a field such as "x"y with its quotes, others read xy. A second reading skips such fields; only a line
    # with a quote between two other characters needs it.
    apart = "".join(f"\\x{{{ord(char):x}}}" for char in config.source.delimiter)
    strict = F.from_csv(F.col(LINE), row_type.simpleString(), {**options, "unescapedQuoteHandling": "SKIP_VALUE"})
    goes_on = F.col(LINE).rlike(f'[^{apart}]"[^"{apart}]') & ~strict.eqNullSafe(row)
    rows = kept.select(*line_columns(config), row.alias("row"), goes_on.alias("goes_on"))
    parsed = F.col("row")

    def text(raw: str, name: str) -> SparkColumn:
        if name not in at:
            return F.lit(None).cast("string")
        found = parsed.getField(f"c{at[name]}")
        if not is_dms:
            return found
        return F.when(found != _DMS_NULL, found).when(found.isNull() & F.lit(raw in texts), F.lit(""))

    known = dict(zip(layout.fields, layout.names, strict=True))
    rest = rest_of_cells(config, fields, {shown: text("", name) for shown, name in known.items()})
    is_trusted, fault = _fault(layout, parsed, wanted)
    frame = rows.select(
        *line_columns(config),
        *[
            (F.when(is_trusted, text(raw, name)) if raw.startswith("k") else text(raw, name)).alias(raw)
            for raw, name in wanted.items()
        ],
        *[column.alias(raw) for raw, column in rest.items()],
        F.when(fault.isNotNull(), F.when(is_trusted, F.lit("value")).otherwise(F.lit("key"))).alias(FAULT_KIND),
        fault.alias(FAULT),
    )
    op = row_op(config, fields, has_marker=marker is not None and marker in at)
    encoding = Encoding.of(config, marked=False)
    return RawRecords(frame, fields, F.col(LINE), encoding, order_of(config, fields), op.columns)


def _fault(layout: Layout, row: SparkColumn, wanted: dict[str, str]) -> tuple[SparkColumn, SparkColumn]:
    """The reliability of a line's key, and the fault of the line or its file, or null.

    In a line with a fault a key is reliable if it comes first, another field follows it, and no quote is left in it:
    then it is complete and in its place.
    """
    keys = [name for raw, name in wanted.items() if raw.startswith("k")]
    twice = sorted({name for name in wanted.values() if layout.names.count(name) > 1})
    if twice:
        return F.lit(twice[0] not in keys), F.lit(f"the header has {twice[0]!r} twice; give its fields different names")
    quotes = F.length(F.regexp_replace(F.col(LINE), '[^"]+', ""))
    is_open = F.col(LINE).contains('"') & (quotes % 2 != 0)
    is_odd = row.getField("odd").isNotNull()
    follower = len(keys) + (layout.names[0] == DMS_OP)
    is_first = set(layout.names[:follower]) <= {*keys, DMS_OP} and follower < len(layout.names)
    first = F.concat_ws("", *[row.getField(f"c{at}") for at in range(follower)])
    is_trusted = row.getField(f"c{follower}").isNotNull() & ~first.contains('"') if is_first else F.lit(False)
    fault = F.when(is_open, F.lit(UNBALANCED)).when(is_odd, F.lit(MISCOUNTED))
    fault = fault.when(F.col("goes_on"), F.lit(CONTINUED)).otherwise(F.lit(None).cast("string"))
    return fault.isNull() | is_trusted, fault
