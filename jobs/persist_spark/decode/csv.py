"""CSV: `csv` with a delete marker, `dms-csv` with a leading `Op`. Quotes are doubled within quotes (RFC 4180).

    files --first MiB--> first record, is a field open over a line end? --yes--> a copy, one line, one record
                                    '--too long to know: Spark looks

A record is a line, and is kept whole as the payload of its err. One that has line breaks within quotes has a mark in
the place of each (`BREAK`) in the copy. As many blank lines follow it, so that line numbers stay.
`persist_core.sample.csv_records` says which lines are a record.

The first record of each file is its header (`header: true`); any other record equal to it is one too. Which other files
are read with it does not matter. Columns are found by the header's names, exactly. Extra columns in a file are ignored,
missing ones are null; without a key column the file is not read. Without a header, columns are in the order of
`columns:`, or at the number that `field` gives (1 is the first); a record must have as many fields as its file's first.

An unquoted empty field is null and `""` an empty string in `csv`. In `dms-csv` an empty field is an empty string, or
null if the column is not a string. The text `null_value` is null, also in quotes, since Spark takes them off: in
`dms-csv` it is NULL (the default of DMS), if the source does not say another one.
"""

from __future__ import annotations

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.sample.csv_records import csv_rows, null_text, open_field, whole_records
from persist_core.sample.fields import known_fields
from persist_core.sample.files import DMS_OP, DMS_OPS
from persist_core.sources.input_file import InputFile
from persist_spark.decode.encoding import Encoding
from persist_spark.decode.files import FULL_LOAD, LINE, Copies, ReadableFile, files_with
from persist_spark.decode.plain import LOAD_OPS, MARKER, before_paths, check_op, free_paths, order_of, row_op
from persist_spark.decode.records import FAULT, FAULT_KIND, RawRecords, fields_of, line_columns
from persist_spark.decode.rest import read_paths, rest_of_cells
from persist_spark.decode.unread import of_each, text_without

_MAX_NAMES = 20_480  # of a header: Spark plans a column for each
MAX_FIELDS = 1 << 18  # of a line: Spark's parser keeps a place for each, and fails at a line with more in any mode
_NO_FIELD = "\n"  # what no field of one line is: only an empty field is null
_OPTIONS = {
    "quote": '"',
    "escape": '"',
    "charToEscapeQuoteEscaping": '"',  # the default is NUL: Spark's parser drops these characters between quotes
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "odd",
    "nullValue": _NO_FIELD,  # an unquoted empty field; we interpret any other text
    "emptyValue": "",
    "maxCharsPerColumn": "-1",
    "maxColumns": str(MAX_FIELDS),
}
UNBALANCED = "an odd number of quotes: a field is not closed, here or in a line that follows"
CONTINUED = 'a quoted field goes on behind its closing quote; double a quote within quotes ("")'
MISCOUNTED = "the line does not have as many fields as its file's first line"
_LOOKED_BYTES = 1 << 20  # at the start of each file; more if its first record does not end there
_UNNAMED = "\ufdd2"  # before the number of a field without a name
_SHOWN_CHARS = 200  # of a header, in a message
BREAK = "\ufdd3"  # in copies, in place of a line break within quotes
ESCAPES = {"\ufdd4": "\ufdd4\ufdd6", BREAK: "\ufdd4\ufdd5"}  # in copies, of characters of a text


@dataclass(frozen=True)
class Layout:
    """The layout of the lines of some files: the names of their fields in order, and the header line to drop.

    A header is bytes, as it may be no UTF-8: then no text equals it. `is_joined`: the files are copies, with `BREAK`.
    """

    names: tuple[str, ...]
    header: bytes | None
    is_joined: bool = False

    @property
    def fields(self) -> list[str]:
        """The names; a field without one by its number, from 1 on."""
        return [str(at) if name.startswith(_UNNAMED) else name for at, name in enumerate(self.names, start=1)]


def layouts(
    spark: SparkSession, config: CollectionConfig, files: Sequence[ReadableFile], copies: Copies
) -> list[tuple[Layout, list[ReadableFile]]]:
    """Files of equal layout together, at least one group; copies in place of the files that need one.

    Raises `UnreadableFiles` for files whose start cannot be read, or hides records.
    """
    by_file = {each.file: each for each in files}

    def look(file: InputFile) -> tuple[Layout | None, bool | None]:
        return _look(config, by_file[file], copies)

    looked = list(zip(files, of_each(look, list(by_file)), strict=True))
    large = [file for file, (layout, is_odd) in looked if layout is not None and is_odd is None]
    opens = open_field(config.source.delimiter)
    odd = {file.file for file, (_, is_odd) in looked if is_odd}
    odd |= files_with(spark, large, copies.options, lambda line: has_odd_quotes(line) & F.col(line).rlike(opens))
    found: dict[Layout, list[ReadableFile]] = {}
    for file, (layout, _) in looked:
        if layout is None:
            continue
        if file.file in odd:
            file = _joined(config, file, copies)
            layout = replace(layout, header=layout.header and _in_a_line(layout.header), is_joined=True)
        found.setdefault(layout, []).append(file)
    return list(found.items()) or [(Layout(("",), None), [])]


def _look(config: CollectionConfig, file: ReadableFile, copies: Copies) -> tuple[Layout | None, bool | None]:
    """The layout of a file, `None` without a record; and whether it has a line that leaves a quoted field open, `None`
    if it is too long to know.

    The start of a header that is too long is taken, as `readable` has it.
    """
    start, wanted, first, is_odd = b"", _LOOKED_BYTES, None, None
    for piece in text_without(copies.access.feed, file.file, file.lost, keeps_first=config.source.header):
        start += piece
        if len(start) >= wanted:
            first = _first_record(config, start.rpartition(b"\n")[0], is_cut=True)
            if first is not None:
                break
            if not start.strip():  # blank lines
                start = start.rpartition(b"\n")[2]
            wanted = max(_LOOKED_BYTES, 2 * len(start))
    else:
        first = _first_record(config, start, is_cut=False)
        opens = re.compile(open_field(config.source.delimiter).encode())
        is_odd = any(line.count(b'"') % 2 and opens.search(line) for line in _lines_of(start))
    if first is None:
        return None, is_odd
    names = _names(config, file.file, first.decode("utf-8", "replace"))
    return Layout(names, first if config.source.header else None), is_odd


def _first_record(config: CollectionConfig, text: bytes, *, is_cut: bool) -> bytes | None:
    """The first record of a text. `is_cut`: the text goes on, and so may the record."""
    limit = config.limits.max_record_bytes
    records = whole_records(_lines_of(text), config.source.delimiter, max_bytes=limit, is_cut=is_cut)
    return next((line.removesuffix(b"\r") for line in records if line.strip()), None)


def _lines_of(text: bytes) -> Iterator[bytes]:
    """The lines of a text, one at a time: all of them together may take many times its memory."""
    return (line.removesuffix(b"\n") for line in io.BytesIO(text.removeprefix(BOM_UTF8)))


def has_odd_quotes(line: str) -> SparkColumn:
    """True for a line with an odd number of quotes: a field is not closed, or not opened."""
    quotes = F.octet_length(line) - F.octet_length(F.replace(F.col(line), F.lit('"'), F.lit("")))
    return F.col(line).contains('"') & (quotes % 2 != 0)


def _joined(config: CollectionConfig, file: ReadableFile, copies: Copies) -> ReadableFile:
    text = text_without(copies.access.feed, file.file, file.lost, keeps_first=config.source.header)
    records = whole_records(_lines(text), config.source.delimiter, max_bytes=config.limits.max_record_bytes)
    copy = (_in_a_line(each) + b"\n" * (1 + each.count(b"\n")) for each in records)
    return replace(file, path=copies.add(file.file, copy))


def _in_a_line(record: bytes) -> bytes:
    for char, escape in ESCAPES.items():
        record = record.replace(char.encode(), escape.encode())
    return record.replace(b"\n", BREAK.encode())


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    start: list[bytes] = []
    for piece in pieces:
        first, *others = piece.split(b"\n")
        start.append(first)
        if others:
            yield b"".join(start)
            yield from others[:-1]
            start = others[-1:]
    yield b"".join(start)


def _names(config: CollectionConfig, file: InputFile, line: str) -> tuple[str, ...]:
    """The names of the fields of `file`, which has this first line.

    Raises `ArrowInvalid` if records are in that line, or deletes in the file, that no err would show.
    """
    names = tuple(next(csv_rows([line], config.source.delimiter)))
    if len(names) > _MAX_NAMES:
        raise pa.ArrowInvalid(f"its first line has {len(names)} fields; expected at most {_MAX_NAMES}")
    # Without a header a value may hold a CR. Other records behind it would be fields without a column, if it has any.
    is_over = len(config.columns) == 1 or len(names) > len(config.columns) + (config.source.format == "dms-csv")
    if "\r" in (line if config.source.header else re.sub('"[^"]*+"', "", line) * is_over):
        raise pa.ArrowInvalid("a CR is in its first line: end lines in LF or CRLF")
    if not config.source.header:
        names = _positional_names(config, file, names)
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


def _positional_names(config: CollectionConfig, file: InputFile, first: tuple[str, ...]) -> tuple[str, ...]:
    """Names for a file without a header: the columns in their order, after `Op` if the file has it.

    In a full load each operation is I: any other text is a value of the table.
    """
    columns = [column.field or name for name, column in config.columns.items()]
    if any(name.isdigit() for name in columns):
        return tuple(str(index + 1) for index in range(len(first)))
    ops = LOAD_OPS if re.match(FULL_LOAD, Path(file.relative).name) else DMS_OPS
    has_op = config.source.format == "dms-csv" and len(first) > len(columns) and first[0] in ops
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
    before = {f"b{key.raw}": ".".join(path) for key, path in before_paths(config, fields).items()}
    if not is_dms or not {DMS_OP, *before.values()} <= {*layout.names}:
        before = {}
    null = null_text(config.source.format, config.source.null_value)
    texts = {field.raw for field in fields.all if field.column.type in ("string", "json")}
    texts |= {f"b{raw}" for raw in texts}
    at = {name: index for index, name in reversed(list(enumerate(layout.names)))}
    cells = ", ".join([*(f"c{i} STRING" for i in range(len(layout.names))), "odd STRING"])
    options = {**_OPTIONS, "sep": config.source.delimiter}
    kept = lines
    if layout.header is not None:  # again where files were joined to one, behind a BOM of its own
        headers = [layout.header, BOM_UTF8 + layout.header]
        is_as_long = F.octet_length(F.col(LINE)).isin([len(header) for header in headers])  # of most lines all it takes
        kept = lines.where(~(is_as_long & F.col(LINE).cast("binary").isin(headers)))
    apart = F.length(LINE) - F.length(F.replace(F.col(LINE), F.lit(config.source.delimiter), F.lit("")))
    line = F.when((F.octet_length(LINE) < MAX_FIELDS) | (apart < MAX_FIELDS), F.col(LINE))
    row = F.from_csv(line, cells, options)
    # Spark keeps a field such as "x"y with its quotes, others read xy. A second reading skips such fields; only a line
    # with a quote between two other characters needs it.
    delimiter = "".join(f"\\x{{{ord(char):x}}}" for char in config.source.delimiter)
    strict = F.from_csv(line, cells, {**options, "unescapedQuoteHandling": "SKIP_VALUE"})
    goes_on = F.col(LINE).rlike(f'[^{delimiter}]"[^"{delimiter}]') & ~strict.eqNullSafe(row)
    rows = kept.select(*line_columns(config), row.alias("row"), goes_on.alias("goes_on"))
    parsed = F.col("row")

    def text(raw: str, place: int | None) -> SparkColumn:
        if place is None:
            return F.lit(None).cast("string")
        found = _broken(layout, parsed.getField(f"c{place}"))
        if null is None:
            return found
        known = F.when(found != null, found)
        return known.when(found.isNull(), F.lit("")) if is_dms and null and raw in texts else known

    shown = _distinct(layout, at, known_fields(config)) if config.source.rest else ()
    rest = rest_of_cells(config, fields, {name: text("", place) for place, name in enumerate(shown)})
    is_trusted, fault = _fault(layout, parsed, wanted)
    frame = rows.select(
        *line_columns(config),
        *[
            (F.when(is_trusted, text(raw, at.get(name))) if raw.startswith("k") else text(raw, at.get(name))).alias(raw)
            for raw, name in wanted.items()
        ],
        *[column.alias(raw) for raw, column in rest.items()],
        *[F.when(fault.isNull(), text(raw, at.get(name))).alias(raw) for raw, name in before.items()],
        F.when(fault.isNotNull(), F.when(is_trusted, F.lit("value")).otherwise(F.lit("key"))).alias(FAULT_KIND),
        fault.alias(FAULT),
    )
    op = row_op(config, fields, has_marker=marker is not None and marker in at)
    encoding = Encoding.of(config, marked=False)
    payload, is_update = _broken(layout, F.col(LINE)), F.col(MARKER) == "U" if before else None
    return RawRecords(frame, fields, payload, encoding, order_of(config, fields), op, is_update=is_update)


def _broken(layout: Layout, found: SparkColumn) -> SparkColumn:
    """The text with its line breaks, as it was before its file was joined."""
    if layout.is_joined:
        found = F.replace(found, F.lit(BREAK), F.lit("\n"))
        for char, escape in reversed(ESCAPES.items()):
            found = F.replace(found, F.lit(escape), F.lit(char))
    return found


def _distinct(layout: Layout, at: Mapping[str, int], known: Set[str]) -> list[str]:
    """The fields of `rest`. One whose name another has before it is known by its number, which no other may have."""
    shown = list(layout.fields)
    for place, name in enumerate(layout.names):
        if at[name] != place:
            shown[place] = str(place + 1)
            while shown[place] in {*shown[:place], *layout.fields, *known}:
                shown[place] = f"{name} {shown[place]}"
    return shown


def _fault(layout: Layout, row: SparkColumn, wanted: dict[str, str]) -> tuple[SparkColumn, SparkColumn]:
    """The reliability of a line's key, and the fault of the line or its file, or null.

    In a line with a fault a key is reliable if it comes first, another field follows it, and no quote is left in it:
    then it is complete and in its place.
    """
    keys = [name for raw, name in wanted.items() if raw.startswith("k")]
    twice = sorted({name for name in wanted.values() if layout.names.count(name) > 1})
    if twice:
        return F.lit(twice[0] not in keys), F.lit(f"the header has {twice[0]!r} twice; give its fields different names")
    is_odd = row.isNull() | row.getField("odd").isNotNull()
    follower = len(keys) + (layout.names[0] == DMS_OP)
    is_first = set(layout.names[:follower]) <= {*keys, DMS_OP} and follower < len(layout.names)
    first = F.concat_ws("", *[row.getField(f"c{at}") for at in range(follower)])
    is_trusted = row.getField(f"c{follower}").isNotNull() & ~first.contains('"') if is_first else F.lit(False)
    fault = F.when(has_odd_quotes(LINE), F.lit(UNBALANCED)).when(is_odd, F.lit(MISCOUNTED))
    fault = fault.when(F.col("goes_on"), F.lit(CONTINUED)).otherwise(F.lit(None).cast("string"))
    return fault.isNull() | is_trusted, fault
