"""Find out about files: the glob that names them, their format, and the types that Debezium's schema states."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import PurePosixPath
from typing import Any

from persist_core.config.collection import Format
from persist_core.config.column import Unit
from persist_core.errors import InvalidInput
from persist_core.sample.csv_records import csv_rows
from persist_core.sample.files import CODECS, DMS_OP, DMS_OPS, SampledFile, is_flat, messages, payload_of, without_key
from persist_core.sample.guess import Guess

_DATES = tuple(
    (re.compile(found), text)
    for found, text in (
        (r"year=20\d\d/month=\d\d/day=\d\d/hour=\d\d", "year=%Y/month=%m/day=%d/hour=%H"),
        (r"year=20\d\d/month=\d\d/day=\d\d", "year=%Y/month=%m/day=%d"),
        (r"20\d\d/\d\d/\d\d/\d\d(?=/)", "%Y/%m/%d/%H"),
        (r"20\d\d/\d\d/\d\d", "%Y/%m/%d"),
        (r"20\d\d-\d\d-\d\d", "%Y-%m-%d"),
        (r"(?<!\d)20\d\d[01]\d[0-3]\d(?!\d)", "%Y%m%d"),
        (r"(?<![\d-])20\d\d-\d\d(?![\d-])", "%Y-%m"),
    )
)
_DATE = "\0"  # in place of a date
_OPS = ("c", "u", "d", "r", "t", "m")
_NAME = re.compile(r"[^\W\d][\w .$()/%#&+-]*")
_NOT_CSV = re.compile(r"\s*[\[{<]|.*[\0-\x08\r]")  # an array, an object over several lines, XML, bytes, CR as line end
_NAMED_BY_DMS = ", one with the name of a full load of DMS"
_SHOWN_CHARS = 80  # of a first line, in an error
_CONNECT: dict[str, str] = {
    "boolean": "boolean",
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "bigint",
    **dict.fromkeys(("float", "float32"), "float"),
    **dict.fromkeys(("double", "float64"), "double"),
    "string": "string",
    "bytes": "binary",
}
_LOGICAL: dict[str, tuple[str, Unit | None]] = {
    "io.debezium.data.Json": ("json", None),
    "io.debezium.data.Bits": ("bigint", None),
    "io.debezium.time.Date": ("date", "days"),
    "io.debezium.time.Timestamp": ("timestamp", "ms"),
    "io.debezium.time.MicroTimestamp": ("timestamp", "us"),
    "io.debezium.time.NanoTimestamp": ("timestamp", "ns"),
    "io.debezium.time.ZonedTimestamp": ("timestamp", None),
    "io.debezium.time.IsoDate": ("date", None),
    "io.debezium.time.IsoTimestamp": ("timestamp", None),
    "org.apache.kafka.connect.data.Date": ("date", "days"),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp", "ms"),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_PARAMETER = re.compile(r"-?\d{1,9}", re.ASCII)


def path_of(paths: Sequence[str], globs: Sequence[str] = ()) -> str:
    """A `source.path` for these absolute paths: dates as `{date:...}`, what differs as `*`.

    So is a folder that the `globs` by which they were found leave open: another one may come tomorrow. Globs with `**`
    are absolute.
    """
    below = len("/".join(_shared([path.split("/")[:-1] for path in paths])))
    dated, text = _dated(paths, below) or _dated(paths, 0) or (list(paths), "")
    folders = _folders(dated, text, globs)
    if folders is None:
        dated, text = list(paths), ""
        folders = _folders(dated, text, globs) or []
    names = [path.rpartition("/")[2] for path in dated]
    return "/".join([*folders, _name(names, globs)]).replace(_DATE, f"{{date:{text}}}")


def _name(names: Sequence[str], globs: Sequence[str]) -> str:
    """As `_differing`, without files whose names the globs do not allow: they may be another table's."""
    name, lasts = _differing(names), sorted({glob.rpartition("/")[2] for glob in globs})
    if not globs or not all(is_glob(glob) or "{date:" in glob for glob in globs):
        return name
    if _DATE not in name and len(lasts) == 1 and lasts[0].strip("*") and "}" not in lasts[0]:
        return lasts[0]
    starts = [each.partition(_DATE)[0].removesuffix(_ending(each)) for each in names]
    start = _shared([*(re.split(r"[*?\[{]", last)[0] for last in lasts), *starts])
    return "".join([*start, name]) if name[0] == "*" else name


def _folders(dated: Sequence[str], text: str, globs: Sequence[str]) -> list[str] | None:
    """The parts of a `source.path` before the name of a file; `None` if they have no place for the date."""
    split = [path.split("/")[:-1] for path in dated]
    if any("**" in glob.split("/") for glob in globs):
        return _deep_folders(split, text, [glob.split("/") for glob in globs])
    if len({len(parts) for parts in split}) > 1:
        common = _shared(split)
        return None if text and _DATE not in "".join(common) else [*map(escaped, common), "**"]
    is_open = _left_open(globs, dated[0].split("/"), text.count("/"))
    return [_level(each, is_open=may) for each, may in zip(zip(*split, strict=True), is_open, strict=True)]


def _deep_folders(split: Sequence[Sequence[str]], text: str, globs: Sequence[Sequence[str]]) -> list[str] | None:
    """As `_folders`, found by globs with `**`: the parts from there on are the globs' own, if these agree."""
    deep = [parts for parts in globs if "**" in parts]
    at = min(parts.index("**") for parts in deep)
    rests = {tuple(parts[parts.index("**") : -1]) if parts in deep else ("**",) for parts in globs}
    rest = rests.pop() if len(rests) == 1 else ("**",)
    days = {next((place for place, part in enumerate(parts) if _DATE in part), -1) for parts in split}
    day, more = max(days), text.count("/")
    begin = max(at - (more if -1 < day < at else 0), day + 1)
    is_short = min(map(len, split)) - begin < sum(part != "**" for part in rest)
    if day != -1 and (len(days) > 1 or day > at or is_short):
        return None
    closed = [parts[: parts.index("**")] for parts in deep]
    places = (place + (more if -1 < day < place else 0) for place in range(begin))
    is_open = [any(is_glob("".join(parts[place : place + 1])) for parts in closed) for place in places]
    return [*(_level(each, is_open=may) for each, may in zip(zip(*split, strict=False), is_open, strict=False)), *rest]


def _level(parts: Sequence[str], *, is_open: bool) -> str:
    return escaped(parts[0]) if len({*parts}) == 1 and not is_open else _differing(parts)


def _left_open(globs: Sequence[str], parts: Sequence[str], more: int) -> list[bool]:
    """Say of each folder of a path if a glob leaves it open. A date counts for `more` parts than its own."""
    named = [[*map(is_glob, reversed(glob.split("/")))] for glob in globs if "**" not in glob]
    is_open = [any(each) for each in itertools.zip_longest(*named, fillvalue=False)]
    found: list[bool] = []
    for part in reversed(parts):
        found.append(any(is_open[:1]))
        is_open = is_open[1 + (more if _DATE in part else 0) :]
    return [*reversed(found)][:-1]


def _shared(texts: Sequence[Sequence[str]]) -> list[str]:
    return [parts[0] for parts in itertools.takewhile(lambda parts: len({*parts}) == 1, zip(*texts, strict=False))]


def _dated(paths: Sequence[str], start: int) -> tuple[list[str], str] | None:
    """The paths with a mark in place of the first date behind `start`, and its format."""
    for regex, text in _DATES:
        found = [regex.search(path, start) for path in paths]
        if all(found):
            pairs = zip(paths, found, strict=True)
            return [f"{path[: date.start()]}{_DATE}{path[date.end() :]}" for path, date in pairs if date], text
    return None


def _differing(names: Sequence[str]) -> str:
    """`*`, with the ending and the date that all of the names have."""
    if all(_DATE in name for name in names):
        before, after = zip(*(name.split(_DATE, 1) for name in names), strict=True)
        start = escaped(before[0]) if _is_fixed(before) else "*"
        return f"{start}{_DATE}{escaped(after[0]) if _is_fixed(after) else _differing(after)}"
    endings = {_ending(name) for name in names}
    ending = "".join(_shared(sorted(endings)))
    return f"*{escaped(ending)}{'*' if len(endings) > 1 and ending else ''}"


def _is_fixed(texts: Sequence[str]) -> bool:
    """True if all are equal. Of a lone one the digits, such as an hour, may be others in the next file."""
    return len({*texts}) == 1 and not (len(texts) == 1 and re.search(r"\d", texts[0].removesuffix(_ending(texts[0]))))


def is_glob(part: str) -> bool:
    """True if a part of a glob can name several files or folders, as one that `escaped` has made cannot."""
    return has_magic(re.sub(r"\[[*?\[{}]\]", "", part))


def _ending(name: str) -> str:
    suffixes = PurePosixPath(name).suffixes
    return "".join(suffixes[-2:] if suffixes and suffixes[-1].lower() in CODECS else suffixes[-1:])


def escaped(name: str) -> str:
    """A glob that names this file or folder alone."""
    return re.sub(r"[*?\[{}]", lambda found: f"[{found[0]}]", name)


@dataclass(frozen=True)
class Detected:
    """A format, why, and the settings of `source:` that it needs. `prefix`: where a JSON record has its row."""

    format: Format
    reason: str
    delimiter: str = ","
    header: bool = True
    prefix: str = ""


def detect(files: Sequence[SampledFile], format: Format | None) -> Detected:
    """The format of a sample that has records; `format` if it is known. Raises `InvalidInput` for another one."""
    tables = [each.table for each in files if each.table is not None]
    is_loaded = any(each.is_full_load for each in files)
    lines = [line for each in files for line in each.lines if line.strip()]
    if tables:
        is_dms = any(table.column_names[:1] == [DMS_OP] for table in tables)
        told = ", with a first column Op" if is_dms else _NAMED_BY_DMS * is_loaded
        found = Detected("dms-parquet" if is_dms or is_loaded else "parquet", f"Parquet files{told}")
    elif sample := list(messages(lines[:100])):
        found = _of_json(sample)
    else:
        texts = [line.decode("utf-8-sig", "replace").rstrip("\r\n") for line in lines[:100]]
        if format is None and _NOT_CSV.match(texts[0]):
            raise InvalidInput(
                f"--from: found neither JSON lines, nor CSV, nor Parquet, but {texts[0][:_SHOWN_CHARS]!r}; write each"
                " JSON object on a line of its own (jq -c), end lines in LF or CRLF, or say --format"
            )
        found = _of_csv(texts, is_loaded=is_loaded)
    if format is None or format == found.format:
        return found
    return Detected(format, "as --format says", found.delimiter, found.header)


def _of_json(sample: Sequence[Mapping[str, Any]]) -> Detected:
    payloads = [payload_of(without_key(each)) for each in sample]
    if any(each.get("op") in _OPS and {"before", "after", "source"} & {*each} for each in payloads):
        return Detected("debezium-json", "messages with op, before and after")
    if any(map(is_flat, payloads)):
        return Detected("debezium-json", "rows unwrapped by ExtractNewRecordState")
    if any("data" in each and isinstance(each.get("metadata"), dict) for each in sample):
        return Detected("dms-json", "messages with data and metadata")
    if all({*each} == {"schema", "payload"} and isinstance(each["payload"], dict) for each in sample):
        return Detected("json", "JSON objects with their rows in payload", prefix="payload.")
    return Detected("json", "one JSON object a line")


def _of_csv(lines: Sequence[str], *, is_loaded: bool) -> Detected:
    first = lines[0] if lines else ""
    delimiter = max(",;\t|", key=re.sub('"[^"]*"', "", first).count)
    rows = list(csv_rows(lines, delimiter))
    names = rows[0] if rows else []
    named = names[1:] if names[:1] == [""] else names  # the index of pandas has no name
    header = (
        all(_NAME.fullmatch(name.strip()) for name in named)
        and len({*names}) == len(names) > 0
        and names[0] not in DMS_OPS
    )
    is_dms = names[:1] == [DMS_OP] if header else {row[0] for row in rows if row} <= {*DMS_OPS}
    told = "a header line" if header else "no header line"
    if is_loaded and not is_dms:
        return Detected("dms-csv", f"CSV{_NAMED_BY_DMS}; {told}", delimiter, header)
    if is_dms:
        return Detected("dms-csv", f"CSV with an operation (I, U, D) first; {told}", delimiter, header)
    return Detected("csv", f"no JSON and no Parquet; {told}", delimiter, header)


def stated_types(message: Mapping[str, Any], at: str | None) -> dict[str, Guess]:
    """The types of a row's fields, as the schema in a message states them. `at`: the part of it that is the row."""
    fields = _fields(message.get("schema"))
    if at is not None:
        fields = _fields(fields.get(at))
    return {name: _stated(each) for name, each in fields.items()}


def _fields(schema: Any) -> dict[str, Mapping[str, Any]]:
    """The fields of a schema by name; a feed may send anything in its place."""
    found = schema.get("fields") if isinstance(schema, dict) else None
    objects = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return {each["field"]: each for each in objects if isinstance(each.get("field"), str)}


def _parameter(field: Mapping[str, Any], name: str) -> int | None:
    parameters = field.get("parameters")
    text = str(parameters.get(name)) if isinstance(parameters, dict) else ""
    return int(text) if _PARAMETER.fullmatch(text) else None


def _stated(field: Mapping[str, Any]) -> Guess:
    name, type_, scale = field.get("name"), str(field.get("type")), _parameter(field, "scale")
    reason = f"the messages' schema: {name or type_}"
    if name == _DECIMAL and scale is not None:
        precision = _parameter(field, "connect.decimal.precision")
        scale, digits = max(scale, 0), 38 if precision is None else precision - min(scale, 0)  # below 0: zeros follow
        return Guess(f"decimal({min(max(digits, scale, 1), 38)},{min(scale, 38)})", reason)
    if name == "io.debezium.data.VariableScaleDecimal":
        return Guess("decimal(38,9)", reason)
    if name == "io.debezium.data.Bits" and (_parameter(field, "length") or 64) > 63:
        return Guess("binary", reason)
    found, unit = _LOGICAL.get(str(name)) or (_CONNECT.get(type_, "json"), None)
    return Guess(found, reason, unit)
