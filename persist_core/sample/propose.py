"""`persist init --from FILES`: a collection file for files that are there, each guess with its reason as a comment.

    files --take--> Sample --detect--> format --raw_rows--> fields --guess--> key, columns, order, deletes --> YAML text

What could not be known is a commented line with a question. Nothing of this is used by a run.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from persist_core.config.collection import NEVER_KEYS, PLAIN_FORMATS, CollectionConfig, Format
from persist_core.config.path_pattern import S3, BadPattern, parse_pattern
from persist_core.errors import InvalidInput
from persist_core.sample.csv_records import csv_rows
from persist_core.sample.detect import Detected, detect, is_glob, path_of, stated_types
from persist_core.sample.fields import BEFORE, hints_of, named_fields, rows_of
from persist_core.sample.files import (
    DMS_OP,
    DOCUMENT,
    RawRow,
    SampledFile,
    has_op,
    payload_of,
    raw_rows,
    take,
    value_at,
)
from persist_core.sample.found import FoundFiles
from persist_core.sample.guess import Guess, guess
from persist_core.schema import MAX_COLUMNS, MAX_NAME_CHARS, RESERVED_PREFIX, folded
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_core.sources.root import relative_to

MAX_RECORDS = 10_000
_MARKERS = re.compile(r"(?:__)?(?:op|op_type|operation|change_type|deleted|is_deleted|_action)", re.IGNORECASE)
_DELETES = ("d", "delete", "deleted", "del", "true", "1")
_NOT_TAKEN = ("__", BEFORE, ".", RESERVED_PREFIX)  # beginnings of names
_SEQUENCES = re.compile(r"(?:^|_)(?:lsn|scn|seq|sequence|change_no|version|revision|offset|position)$", re.IGNORECASE)
_CHANGED = re.compile(r"(?:^|[ _])(?:updated|modified|changed)(?:[ _](?:at|on|ts))?$", re.IGNORECASE)
_IDS = tuple(re.compile(text, re.IGNORECASE) for text in (r"_?id", r".*[ _]id|.*Id", r".*uuid|.*key|.*code|.*[ _]no"))
_TIMES = ("timestamp", "date")
_PLAIN = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_MOST = 0.9
_WORDS = {"true", "false", "null"}


@dataclass(frozen=True)
class _Column:
    name: str
    field: str
    values: tuple[Any, ...]
    guess: Guess

    @property
    def can_be_key(self) -> bool:
        return self.guess.type not in (*NEVER_KEYS, "boolean")

    @property
    def nulls(self) -> int:
        return self.values.count(None)

    @property
    def is_unique(self) -> bool:
        return len({json.dumps(value, default=str) for value in self.values}) == len(self.values)


@dataclass(frozen=True)
class _Feed:
    detected: Detected
    rows: Sequence[RawRow]
    columns: Sequence[_Column]
    others: Mapping[str, str]
    marker: str | None
    order: _Column | None

    @property
    def is_plain(self) -> bool:
        return self.detected.format in PLAIN_FORMATS


def propose(given: FoundFiles, *, folder: Path | None, format: Format | None = None) -> str:
    """The text of a collection file for these files. It is written to `folder`; `None`: it is only shown.

    Raises `InvalidInput` if no record is found in them.
    """
    files, pattern = given.files, path_of([each.path for each in given.files], given.globs)
    found = take(given.feed, files, MAX_RECORDS)
    problems = [f"{each.file.path}: {each.problem}" for each in found if each.problem]
    if not any(each.records for each in found):
        raise InvalidInput(f"--from: found no record in {len(files)} files. {' '.join(problems[:1])}".strip())
    detected = detect(found, format)
    raw = raw_rows(found, detected.format, delimiter=detected.delimiter, names=_names(detected, found))
    feed, shown = _feed(detected, raw, _unreadable(found)), _relative(pattern, folder)
    source = _source(feed, f"{_scalar(shown)}{_doubt(given, pattern)}", given.connection)
    head = [
        f"# Proposed by `persist init --from`, from {len(raw)} records of {len(found)} of {len(files)} files. Read each"
        " line:",
        "# a guess says why, and a QUESTION is for you. `persist preview` tries it.",
        *[f"# {_one_line(problem)}" for problem in problems],
    ]
    return "\n".join([*head, *source, *_key(feed), *_columns(feed), *_rest(feed, shown)]) + "\n"


@dataclass(frozen=True)
class Proposed:
    """A line of `columns` for a field that has none, or (`text` is `None`) why it cannot be one yet."""

    field: str
    text: str | None
    reason: str

    @property
    def line(self) -> str:
        """It as YAML, below `columns:`."""
        text = f"# {_one_line(self.field)}" if self.text is None else f"{_scalar(self.field)}: {self.text}"
        return f"  {text}{':' if self.text is None else ' #'} {_one_line(self.reason)}"


def new_columns(config: CollectionConfig, feed: Feed, files: Sequence[InputFile]) -> tuple[list[Proposed], list[str]]:
    """Lines for fields of these files that the collection file does not name; questions about types that it has."""
    source, known = config.source, named_fields(config)
    sampled = take(feed, files, MAX_RECORDS, source)
    raw = rows_of(config, sampled)
    if not raw:
        raise InvalidInput(f"--from: found no record of {source.format} in {len(files)} files")
    found = _feed(Detected(source.format, "", source.delimiter, source.header), raw, _unreadable(sampled))
    columns = [*found.columns, *([found.order] if found.order and found.order not in found.columns else [])]
    taken = {folded(name) for name in config.columns}
    lines = [
        Proposed(each.name, None, "another column has this name, ignoring case: rename one, with field:")
        if folded(each.name) in taken
        else Proposed(each.name, _typed(each), each.guess.reason)
        for each in columns
        if each.field not in known
    ]
    lines += [Proposed(name, None, why) for name, why in found.others.items() if name not in known]
    if found.marker is not None and found.marker not in known:
        lines.append(Proposed(found.marker, None, "by its name a mark of deletes: see `delete`"))
    return lines, [*hints_of(config, raw)]


def _doubt(given: FoundFiles, pattern: str) -> str:
    """A question, if the path takes files that were not given, or is refused. An object's folder was not listed."""
    try:
        taken = parse_pattern(pattern, "/")
    except BadPattern as error:
        return f" # QUESTION: {_one_line(str(error))}"
    more = [path for path in given.beside if taken.loose.fullmatch(relative_to(path, taken.root))]
    if more:
        return f" # QUESTION: it takes {_one_line(more[0].rpartition('/')[2])} too: are all files of this table?"
    may_take = any(each.startswith(S3) and not is_glob(each) for each in given.globs)
    return " # QUESTION: it may take other objects too: are all of this table?" * may_take


def _relative(pattern: str, folder: Path | None) -> str:
    """Relative to the collection file, if the feed is not far from it."""
    if folder is None or pattern.startswith(S3):
        return pattern
    relative = os.path.relpath(pattern, folder.absolute())
    return pattern if relative.startswith("../../../") else relative


def _names(detected: Detected, found: Sequence[SampledFile]) -> list[str] | None:
    if detected.header or not detected.format.endswith("csv"):
        return None
    lines = (next(filter(bytes.strip, each.lines), b"") for each in found)
    texts = [line.decode("utf-8-sig", "replace").rstrip("\r\n") for line in lines if line]
    firsts = [next(csv_rows([text], detected.delimiter)) for text in texts]
    is_dms = detected.format == "dms-csv"
    count = max(len(row) - has_op(row, 1) for row in firsts) if is_dms else len(firsts[0])
    return [DMS_OP] * is_dms + [f"column_{number + 1}" for number in range(count)]


def _unreadable(files: Sequence[SampledFile]) -> dict[str, str]:
    """The fields of Parquet files that cannot be columns, and why: `persist_spark.decode.parquet` makes them errs."""
    schemas = [each.table.schema for each in files if each.table is not None]
    fields = [field for schema in schemas for field in schema if not _is_readable(field.type)]
    return {field.name: f"Spark cannot read its type {_one_line(str(field.type))}" for field in fields}


def _is_readable(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_is_readable(kind.field(place).type) for place in range(kind.num_fields))
    return not pa.types.is_time(kind) and not (pa.types.is_decimal(kind) and kind.precision > 38)


def _feed(detected: Detected, raw: Sequence[RawRow], unreadable: Mapping[str, str]) -> _Feed:
    rows = [value_at(each.row, ("payload",)) or {} for each in raw] if detected.prefix else [each.row for each in raw]
    rows = [row for row in rows if row and isinstance(row, Mapping)]  # the others are truncates and heartbeats
    is_debezium, is_plain = detected.format == "debezium-json", detected.format in PLAIN_FORMATS
    stated: dict[str, Guess] = {}
    for each in raw[:100] if is_debezium or detected.prefix else ():
        stated |= stated_types(each.message, "after" if is_debezium and not each.is_unwrapped else None)
    names = list(dict.fromkeys([*stated, *(name for row in rows for name in row)]))
    marker = next((name for name in names if is_plain and _MARKERS.fullmatch(name)), None)
    marker = "__deleted" if is_plain and "__deleted" in names else marker
    columns: list[_Column] = []
    others = {**unreadable}
    order = None
    for name in names:
        if name in unreadable:
            continue
        values = tuple(row.get(name) for row in rows)
        found = guess(name, values, is_text=detected.format.endswith("csv"))
        if name in stated and (is_debezium or stated[name].unit):  # plain JSON has no decimals in base64
            found = stated[name]
        if name in (marker, DMS_OP):
            continue
        if found is None and not detected.header:  # those behind it are known by their places
            found = Guess("string", "QUESTION: always null in the sample: which type?")
        if found is None:
            others[name] = "always null in the sample: which type?"
            continue
        shown = unicodedata.normalize("NFC", name.strip())
        column = _Column(shown, detected.prefix + name, values, _asked(found, values) if is_debezium else found)
        if order is None and is_plain and _SEQUENCES.search(name) and _grows(column):
            order = column
        elif not _can_be_named(column, detected) or len(columns) >= MAX_COLUMNS:
            others[name] = f"not taken, by its name; it looks like {found.type}"
        elif folded(shown) in {folded(each.name) for each in columns}:
            others[name] = "another column has this name, ignoring case: rename one, with field:"
        else:
            columns.append(column)
    if order is None and is_plain:
        order = next((each for each in columns if _CHANGED.search(each.name) and _grows(each)), None)
    if not any(each.can_be_key for each in columns):
        is_document = any(isinstance(payload_of(each.message).get("after"), str) for each in raw)
        raise InvalidInput(
            f"--from: found no field that could be a key in {len(raw)} records of {detected.format}"
            f"{f': {DOCUMENT}' if is_debezium and is_document else ''}"
        )
    return _Feed(detected, raw, columns, others, marker, order)


def _can_be_named(column: _Column, detected: Detected) -> bool:
    """True if a collection file can have its name and field. Except in CSV, a dot in a field means nesting."""
    name, field = column.name, column.field
    is_nested = field != name and "." in name and not detected.format.endswith("csv")
    is_visible = bool(name) and name.isprintable() and len(field) <= MAX_NAME_CHARS
    return is_visible and not is_nested and not name.startswith(_NOT_TAKEN)


def _grows(column: _Column) -> bool:
    return column.guess.type in ("bigint", "int", "timestamp") and not column.nulls


def _asked(found: Guess, values: Sequence[Any]) -> Guess:
    """The guess, with a question if texts may be the decimals of Debezium; its decimals that say their own scale."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, Mapping) and {*value} == {"scale", "value"} for value in known):
        return Guess("decimal(38,9)", "numbers that say their own scale")
    texts = [value for value in known if isinstance(value, str)]
    share = sum(_BASE64.fullmatch(text) is not None for text in texts) / max(len(texts), 1)
    if found.type != "string" or share < _MOST or not any(text.endswith("=") for text in texts):
        return found
    return Guess("string", "QUESTION: texts that may be base64. A decimal(p,s), with decimals: precise?")


def _source(feed: _Feed, pattern: str, connection: str | None) -> Iterator[str]:
    found = feed.detected
    yield "source:"
    yield f"  path: {pattern}"
    if connection is not None:
        yield f"  connection: {_scalar(connection)}"
    yield f"  format: {found.format} # {found.reason}"
    if found.format.endswith("csv"):
        if found.delimiter != ",":
            yield f"  delimiter: {json.dumps(found.delimiter)}"
        if not found.header:
            yield "  header: false # the columns below are named by their place"
    elif found.format == "debezium-json" and not all(each.has_schema for each in feed.rows if each.row):
        yield "  # decimals: precise # QUESTION: messages without a schema; how are decimals written (or: string)?"


def _key(feed: _Feed) -> Iterator[str]:
    stated, *others = {each.key for each in feed.rows if each.row} or {()}
    if stated and not others and {*stated} <= {each.name for each in feed.columns if each.can_be_key}:
        names = ", ".join(map(_scalar, stated))
        yield f"key: {names if len(stated) == 1 else f'[{names}]'} # the key of the messages"
        return
    candidates = [column for column in feed.columns if column.can_be_key and column is not feed.order]
    is_changes = not feed.is_plain or feed.marker is not None or feed.order is not None
    candidates = [column for column in candidates if column.guess.type not in _TIMES] or candidates
    candidates = candidates or [column for column in feed.columns if column.can_be_key]
    unique = [column for column in candidates if not column.nulls and (is_changes or column.is_unique)]
    best, *more = sorted(unique or candidates or feed.columns, key=lambda column: (_rank(column), column.nulls))
    if not unique or _rank(best)[0]:
        nulls = f"null in {best.nulls} of {len(best.values)} records" if best.nulls else "in several records"
        yield f"key: {_scalar(best.name)} # QUESTION: it is {nulls}. Does it name a row? Several columns: [a, b]"
        return
    also = f"; so are {_one_line(', '.join(column.name for column in more[:5]))}" if more else ""
    yield f"key: {_scalar(best.name)} # {'' if is_changes else 'unique and '}never null in the sample{also}"


def _rank(column: _Column) -> tuple[bool, int]:
    named = next((place for place, regex in enumerate(_IDS) if regex.fullmatch(column.name)), len(_IDS))
    return not column.is_unique and named == len(_IDS), named


def _columns(feed: _Feed) -> Iterator[str]:
    yield "columns:"
    for column in feed.columns:
        yield f"  {_scalar(column.name)}: {_typed(column)} # {_one_line(column.guess.reason)}"
    for name, why in feed.others.items():
        yield f"  # {_one_line(name)}: {why}"


def _typed(column: _Column) -> str:
    found = column.guess
    more = {"field": column.field} if column.field != column.name else {}
    more |= {"unit": found.unit} if found.unit else {}
    if not more:
        return found.type
    return (
        f"{{type: {json.dumps(found.type)}, {', '.join(f'{name}: {_scalar(value)}' for name, value in more.items())}}}"
    )


def _rest(feed: _Feed, pattern: str) -> Iterator[str]:
    is_dated = "{date:" in pattern
    times = [column.field for column in feed.columns if column.guess.type == "timestamp"]
    if is_dated:
        yield "time: path # the paths have a date; each record counts for the date of its file"
    else:
        field = _scalar(times[0] if times else "updated_at")
        yield f"# time: {{field: {field}}} # QUESTION: when did a change happen? Without a time it counts for its run"
    yield from _order(feed)
    yield from _deletes(feed)
    if is_dated:
        yield '# schedule: "@daily" # QUESTION: when does Airflow run it, and from which date on?'
        yield "# start_date: 2026-01-01"


def _order(feed: _Feed) -> Iterator[str]:
    order = feed.order
    if not feed.is_plain:
        yield f"# order: auto # the default: {feed.detected.format} has an order of its own"
    elif order is None:
        times = [column.name for column in feed.columns if column.guess.type == "timestamp" and not column.nulls]
        by = _scalar(times[0] if times else "version")
        yield f"# order: {{by: [{by}]}} # QUESTION: which field grows with each change? Else files must come in order"
    else:
        is_column, typed = order in feed.columns, order.guess.type if order.field == order.name else _typed(order)
        by = f"[{_scalar(order.name)}]" if is_column else f"{{{_scalar(order.name)}: {typed}}}"
        yield f"order: {{by: {by}}} # by its name; of the records of a row the highest one wins"


def _deletes(feed: _Feed) -> Iterator[str]:
    if not feed.is_plain:
        return
    if feed.marker is None:
        yield "delete: none # QUESTION: does the feed mark deletes? Then {column: op, values: [D]}"
        return
    field = (feed.detected.prefix or "") + feed.marker
    values = [value_at(each.row, field.split(".")) for each in feed.rows]
    texts = sorted({json.dumps(v) if isinstance(v, bool | int) else str(v) for v in values if v is not None})
    found = [text for text in texts if text.lower() in _DELETES]
    seen = f"found {_one_line(', '.join(texts[:8]))}"
    if not found:
        found, seen = (["true"] if "deleted" in feed.marker else ["D"]), f"QUESTION: {seen}; what marks a delete?"
    listed = ", ".join(json.dumps(text) for text in found)
    yield f"delete: {{column: {_scalar(field)}, values: [{listed}]}} # {seen}"


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200].encode("unicode_escape").decode() if not text.isprintable() else text[:200]
