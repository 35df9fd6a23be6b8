"""Checks of single values in a collection file: names, types, schedules, dates. Each raises through `refuse`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from persist_core.config.path_pattern import MAX_PATTERN_CHARS, BadPattern, PathPattern, parse_pattern
from persist_core.config.problems import nearest, refuse
from persist_core.errors import InvalidName, InvalidTime
from persist_core.schema import MAX_NAME_CHARS, RESERVED_PREFIX, SIMPLE_TYPES, arrow_type, folded
from persist_core.time_text import DAY_MS, UNITS, parse_duration, parse_time, zones

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode categories that are not visible in a name
_PATH_VARIABLES = "PERSIST_PATH_"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")
_OTHER_TYPE_NAMES = {
    "bool": "boolean", "integer": "int", "int32": "int", "smallint": "int", "long": "bigint", "int64": "bigint",
    "real": "float", "numeric": "decimal(12,2)", "decimal": "decimal(12,2)", "text": "string",
    "varchar": "string", "char": "string", "uuid": "string", "time": "string", "bytes": "binary", "bytea": "binary",
    "datetime": "timestamp", "timestamptz": "timestamp", "jsonb": "json", "map": "json", "struct": "json",
    "array": "json",
}  # fmt: skip


def column_name(name: str, *, at: Sequence[str | int]) -> None:
    """Check a column's name: visible, in NFC, not reserved, no dot first. SQL keywords and inner spaces are allowed."""
    field_name(name, at=at)
    if name != name.strip():
        raise refuse(name, "a name without spaces around it", "remove them; use field: for the record's name", at=at)
    if (start := next((each for each in (RESERVED_PREFIX, ".") if folded(name).startswith(each)), None)) is not None:
        raise refuse(name, f"a name that does not start with {start}", "rename it; use field: for the"
                     " record's name", at=at)  # fmt: skip
    normal = unicodedata.normalize("NFC", name)
    if normal != name:
        raise refuse(name, f"the composed Unicode form {normal!a}, not {name!a}", "write that form; use field:"
                     " for the record's name", at=at)  # fmt: skip


def field_name(name: str, *, at: Sequence[str | int] = ()) -> str:
    """Check the name of a field in a record: visible, as the feed writes it, with the spaces around it."""
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise refuse(name, f"a name of 1 to {MAX_NAME_CHARS} characters, not {len(name)}", "shorten it", at=at)
    odd = next((c for c in name if unicodedata.category(c) in _INVISIBLE), None)
    if odd is not None:
        raise refuse(name, f"a name without the invisible character U+{ord(odd):04X}", "remove it", at=at)
    return name


def placeholder(text: str) -> str:
    """Debezium's text for a value that it does not know, or `hex:` and the digits of its bytes."""
    with suppress(ValueError):
        if text and (not text.startswith("hex:") or bytes.fromhex(text[4:])):
            return text
    raise refuse(text, "a text, or hex: and pairs of digits", "copy it from the connector's settings")


def distinct(names: Sequence[str], *, at: Sequence[str | int]) -> None:
    """Refuse a name that is in the list twice."""
    for index, name in enumerate(names):
        if name in names[:index]:
            raise refuse(name, "each name once", "remove one", at=[*at, index])


def type_name(text: str) -> str:
    """`text` in its canonical spelling (`DECIMAL(12, 2)` -> `decimal(12,2)`)."""
    name = re.sub(r"\s+", "", text[:MAX_NAME_CHARS]).lower()
    try:
        arrow_type(name)
    except InvalidName:
        short, bracket, digits = name.partition("(")
        other = _OTHER_TYPE_NAMES.get(short)
        if short == "numeric" and bracket:
            other = f"decimal({digits}"
        if name.startswith("decimal("):
            remedy = "the precision is 1 to 38, the scale 0 to the precision"
        else:
            remedy = f"write {other}" if other else nearest(name, SIMPLE_TYPES) or "choose one of them"
        raise refuse(text, f"one of {', '.join(SIMPLE_TYPES)}, decimal(p,s)", remedy) from None
    return name


def source_path(path: str) -> str:
    """Check that a `source.path` can be parsed."""
    _parsed(path, path, "path")
    return path


def source_folder(path: str) -> str:
    """Check a folder that a `source.path` may have started at: no wildcards and no dates."""
    if not path or len(_parsed(f"{path.rstrip('/')}/*", path, "folder").segments) != 1:
        raise refuse(path, "a folder without wildcards", "write the folder that source.path started at before")
    return path


def _parsed(pattern: str, given: str, what: str) -> PathPattern:
    try:
        return parse_pattern(pattern, "/")
    except BadPattern as error:
        expected, _, remedy = str(error).partition("; ")
        raise refuse(given, expected.removeprefix("expected "), remedy or f"correct the {what}") from None


def folder(path: str) -> str:
    """Check a folder's name: the file system must accept it."""
    if not path or len(path) > MAX_PATTERN_CHARS or any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in path):
        raise refuse(path, f"1 to {MAX_PATTERN_CHARS} printable characters", "correct the folder's name")
    return path


def rule_of(error: InvalidName) -> str:
    """The rule in the message `... name 'x': expected <rule>`."""
    return str(error).rpartition(": ")[2].partition(" ")[2]


def listed(data: Any) -> Any:
    """A text as the list that it stands for; any other value unchanged."""
    return [data] if isinstance(data, str) else data


def scalar_text(value: Any) -> Any:
    """A number or boolean as the text that records are compared with; any other value unchanged."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def spark_conf(settings: dict[str, str]) -> dict[str, str]:
    """Return `settings`. Raises a problem for the first one that a file may not have."""
    groups = tuple(name for name in SPARK_CONF if name.endswith("."))
    for name in settings:
        if name not in SPARK_CONF and not (name.startswith(groups) and not name.endswith("Class")):
            remedy = "set it where Spark is set up: its connection, spark-defaults.conf, or `spark` of the DAG factory"
            if hint := nearest(name, SPARK_CONF):
                remedy = f"{hint} If not, {remedy}"
            raise refuse(name, "a setting of sizes, numbers or scheduling (docs/reference/collections.md)", remedy)
        if not _SPARK_VALUE.fullmatch(settings[name]):
            raise refuse(settings[name], f"a size, number or name for {name}", "for example 2g, 4 or true")
    return settings


def start_date(text: str, zone: str) -> None:
    """Check an ISO date or datetime. A number without dashes is not a date.

    For the last years that a date can have Airflow fails to find the next run, and keeps nothing of the whole DAG file.
    """
    try:
        if "-" not in text or parse_time(text, zone=zone) >= parse_time("9000-01-01", zone=zone):
            raise InvalidTime("a number, or too late")
    except InvalidTime:
        raise refuse(text, "an ISO date or datetime from 1970 to 8999", "for example 2026-01-31",
                     at=["start_date"]) from None  # fmt: skip


def expand_variables(text: str, environment: Mapping[str, str]) -> str:
    """`${VAR}` and `${VAR:-default}` from the environment. An unknown variable without a default is an error.

    As in a shell, the default also applies if the variable is empty.
    Only `HOME` and `PERSIST_PATH_*`: paths are in messages, logs and states, and other variables may hold secrets.
    """
    for name, default in _VARIABLE.findall(text):
        if name != "HOME" and not name.startswith(_PATH_VARIABLES):
            remedy = f"name the variable {_PATH_VARIABLES}{name.removeprefix('PERSIST_')}"
            raise refuse(text, f"variables named HOME or {_PATH_VARIABLES}*", remedy)
        if name not in environment and f"${{{name}:-{default}}}" not in text:
            raise refuse(text, f"the environment variable {name}", f"set it, or write ${{{name}:-default}}")
    expanded = _VARIABLE.sub(lambda found: environment.get(found[1]) or found[2] or "", text)
    if "${" in _VARIABLE.sub("", text):
        raise refuse(text, "variables as ${NAME} or ${NAME:-default}", "correct the braces")
    return expanded


# What a file may say of Spark: sizes, numbers and scheduling. Everything else can name classes, jars, files or options
# of the JVM, switch off a secret, or change a result: it belongs to Spark's operators. A name that ends in a dot
# stands for its group.
SPARK_CONF = (
    "spark.cores.max",
    "spark.default.parallelism",
    "spark.driver.cores",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.driver.memoryOverheadFactor",
    "spark.dynamicAllocation.",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.executor.memoryOverheadFactor",
    "spark.kubernetes.driver.limit.cores",
    "spark.kubernetes.driver.request.cores",
    "spark.kubernetes.executor.limit.cores",
    "spark.kubernetes.executor.request.cores",
    "spark.locality.wait",
    "spark.memory.fraction",
    "spark.memory.storageFraction",
    "spark.network.timeout",
    "spark.scheduler.mode",
    "spark.scheduler.pool",
    "spark.speculation",
    "spark.speculation.",
    "spark.sql.adaptive.",
    "spark.sql.broadcastTimeout",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxRecordsPerFile",
    "spark.sql.files.openCostInBytes",
    "spark.sql.maxBroadcastTableSize",
    "spark.sql.shuffle.partitions",
    "spark.task.cpus",
    "spark.task.maxFailures",
    "spark.yarn.queue",
)
_SPARK_VALUE = re.compile(r"[A-Za-z0-9_.,:%-]{1,64}")
ALL_HISTORY = "all"
_DURATIONS = "a number of weeks, days, hours or minutes"
MAX_DURATION_MS = 1_000 * 366 * DAY_MS


def duration(value: object, *, expected: str = _DURATIONS, example: str = "2h",
             others: Sequence[str] = ()) -> tuple[str, int]:  # fmt: skip
    """A duration as users write it (`30 days`, `2h`, `90 min`), in its plain form (`2 hours`), and its milliseconds."""
    found = parse_duration(value) if isinstance(value, str) else None
    if found is None:
        word = value.strip(" 0123456789") if isinstance(value, str) else value
        raise refuse(value, expected, nearest(word, (*others, *UNITS)) or f"for example {example}")
    if found[1] > MAX_DURATION_MS:
        raise refuse(value, "at most 1000 years", f"write {others[0]}" if others else "write less")
    return found


MAX_COUNT = 10**12


def count(value: object) -> tuple[str, int]:
    """A whole number from 1 on, as text and as a number."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= MAX_COUNT):
        raise refuse(value, f"a whole number from 1 to {MAX_COUNT}, or off", "write digits only")
    return str(int(text)), int(text)


def history(value: object, *, field: str = "history") -> str:
    """Check how long something is kept: `all`, `0`, or a duration. Returns its plain form."""
    text = " ".join(value.lower().split()) if isinstance(value, str) else value
    if text in (ALL_HISTORY, "0") or (text == 0 and isinstance(text, int) and not isinstance(text, bool)):
        return str(text)
    return duration(value, expected=f"all, 0, or {_DURATIONS}", example=f"{field}: 30 days", others=(ALL_HISTORY,))[0]


def history_ms(text: str) -> int | None:
    """The milliseconds in what `history` has returned; `None` for all."""
    if text == ALL_HISTORY:
        return None
    return 0 if text == "0" else duration(text)[1]


def timezone(name: str) -> str:
    """Check the name of a time zone: one that means the same in Python and in Java."""
    if name not in zones():
        remedy = nearest(name, zones()) or "for example Europe/Berlin: abbreviations mean different zones"
        raise refuse(name, "a time zone as Area/Place, or UTC", remedy)
    return name


CRON_FIELDS = 5  # Airflow does not support seconds or years
_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


def schedule(text: str) -> str:
    """Check a cron preset or five fields. Airflow's own parser checks the fields when it builds the DAG."""
    if text.startswith("@"):
        if text not in _PRESETS:
            remedy = nearest(text, _PRESETS) or "write null for manual runs only"
            raise refuse(text, f"one of {', '.join(_PRESETS)} or five cron fields", remedy)
        return text
    fields = text.split()
    if len(fields) != CRON_FIELDS:
        raise refuse(text, f"five cron fields, not {len(fields)}", 'write "0 6 * * *", @daily or null')
    return text
