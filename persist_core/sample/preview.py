"""`persist preview`: what a run would make of a sample of the real input. Nothing is written to the user's location.

    config, location --next_run--> the files that the next run takes --take--> Sample
    Sample --copied--> a folder --mint, job, append, in a location beside it--> rows, counts, decoded records
    Sample --raw_rows--> fields that no column takes, types that would fit better

The rows are as a real run would write them to a new shard from the sample alone.
"""

from __future__ import annotations

import base64
import functools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from persist_core.config.collection import FILES, CollectionConfig
from persist_core.config.limits import reached_limit
from persist_core.contents.err_groups import grouped
from persist_core.contents.stats import BatchWarning
from persist_core.errors import PersistError
from persist_core.handles.client import PersistClient
from persist_core.inspection.rows import in_key_order
from persist_core.inspection.values import json_rows
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.sample.fields import hints_of, named_fields, rows_of
from persist_core.sample.files import RawRow, SampledFile, copied, take
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION
from persist_core.shard.state import Committed, ShardState
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource
from persist_core.spark_job.launch import Start, run_job
from persist_core.spark_job.spec import RECORDS, JobSpec
from persist_core.time_text import show_interval, show_time

MAX_EXAMPLES = 5
MAX_GROUPS = 20
_MAX_ZEROS = 40  # of a number: one with more has an exponent
_BAD_FILE = {
    "quarantine": "a run takes no record of it, and keeps it as one err",
    "fail": "a run would stop at it (source.on_bad_file)",
}
OPERATIONS = {"u": "upserts", "d": "deletes", "t": "truncates", "s": "skipped"}


@dataclass(frozen=True)
class NextRun:
    """The input that mint would freeze now. `stops`: why it would not."""

    lower: int
    upper: int | None
    files: int = 0
    size_bytes: int = 0
    not_due: int = 0
    notices: tuple[str, ...] = ()
    stops: str | None = None

    @property
    def text(self) -> str:
        if self.stops is not None:
            return self.stops
        later = f"; {self.not_due} are dated later" if self.not_due else ""
        interval = show_interval(self.lower, self.upper)
        return f"{self.files} files, {self.size_bytes} bytes, for {interval}{later}"


@dataclass(frozen=True)
class Preview:
    """The findings. `stops`: why a run of the sample would commit nothing; after an error there are no rows."""

    shard: str
    next_run: NextRun
    files: tuple[SampledFile, ...]
    stops: str | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    row_count: int = 0
    stats: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[BatchWarning, ...] = ()
    records: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[Mapping[str, Any], ...] = ()
    hints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in ("files", "records", "unread")}
        sample = [
            {"path": each.file.path, "records": each.records, "is_whole": each.is_whole, "problem": each.problem}
            for each in self.files
        ]
        return {
            **plain,
            "warnings": [asdict(each) for each in self.warnings],
            "next_run": asdict(self.next_run),
            "sample": sample,
            **self.records,
            "unread_fields": self.unread,
        }


def preview(
    client: PersistClient,
    config: CollectionConfig,
    start: Callable[[PersistLocation], Start],
    *,
    limit: int,
    rows: int,
    is_other_input: bool = False,
) -> Preview:
    """A look at `limit` records of the input. `start` makes the starter of a local Spark job, for a location.

    `is_other_input`: the shard consumes other files, so it is treated as a new one.

    Raises `InvalidInput` for a folder that is not there, and `StorageError` if the files cannot be listed.
    """
    state = None if is_other_input else client.machine.fetch(config.name)
    source = FileSource(config, client.blob, feed := feed_of(client.location, config))
    until = config.default_until(client.clock.now_ms())
    run, files = _next_run(source, config, state, until)
    found = take(feed, files, limit, config.source)
    told = _BAD_FILE[config.source.on_bad_file]
    shown = tuple(replace(each, problem=each.problem and f"{each.problem}; {told}") for each in found)
    found = tuple(each for each in found if each.records and each.problem is None)  # as a run takes them
    raw = rows_of(config, found)
    empty = Preview(config.name, run, shown, unread=_unread(config, raw), hints=hints_of(config, raw))
    if not found:
        return empty
    with tempfile.TemporaryDirectory(prefix="persist-preview-") as scratch:
        sampled = copied(config, found, Path(scratch, "in"))
        location = PersistLocation.in_folder(Path(scratch))
        with open_location(location) as opened:
            tried = _tried(PersistClient(opened, client.clock), sampled, start(location), until, empty, rows)
            return replace(tried, stops=tried.stops or _refusal(config, tried))


def _next_run(source: FileSource, config: CollectionConfig, state: ShardState | None, until: int | None) -> Any:
    """The next run, and the files to sample: its own, else all."""
    state = state or ShardState(config.name)
    lower, consumed = state.upper.time or 0, state.sources.get(FILES)
    stops, look = None, functools.partial(source.freeze, is_look=True)
    try:
        if state.is_dropped or state.upper.is_closed:
            stops = f"shard {config.name} is {'dropped' if state.is_dropped else 'closed'}: it takes no input"
        elif until is not None and until <= lower:
            stops = f"nothing before {show_time(lower)}, which is the upper of shard {config.name}"
        state.schemas.placed(config.collection_schema())
        freeze = look(consumed, until=until, lower=lower)
    except PersistError as error:
        if consumed is None:
            raise
        stops, freeze = f"a run would stop: {error}", look(None, until=until)
    files = freeze.frozen.files or look(None, until=None).frozen.files
    size_bytes = freeze.frozen.size_bytes
    run = NextRun(lower, freeze.upper, len(freeze.frozen.files), size_bytes, freeze.not_due, freeze.notices(), stops)
    return run, files


def _tried(
    client: PersistClient, config: CollectionConfig, start: Start, until: int | None, empty: Preview, rows: int
) -> Preview:
    minted = stages.mint(client, config, until=until, writer="preview", is_forced=True)
    if not isinstance(minted, stages.Minted) or minted.description.input_key is None:
        return replace(empty, stops="none of the files is due yet")
    spec = JobSpec(minted.description, config, client.ids.uuid7(), is_sample=True)
    stops, table = None, None
    stats: Mapping[str, int] = {}
    warnings: tuple[BatchWarning, ...] = ()
    try:
        run_job(client, spec, start)
        result = stages.append(client, minted.description, spec.answer_key)
        assert isinstance(result, Committed)  # this process is the only writer
        manifest = client.manifest(result.commit)
        stats, warnings = manifest.stats, manifest.warnings
        table = in_key_order(client.state(config.name), client.open_reader(config.name).snapshot())
    except PersistError as error:
        stops = str(error)
    lines = client.blob.get(spec.key_of(RECORDS)) or b""
    position = tuple(column.name for column in config.collection_schema().position)
    return replace(
        empty,
        stops=stops,
        stats=stats,
        warnings=warnings,
        rows=() if table is None else tuple(json_rows(table.slice(0, rows))),
        row_count=0 if table is None else len(table),
        records=_findings([json.loads(line) for line in lines.splitlines()], position),
    )


def _refusal(config: CollectionConfig, tried: Preview) -> str | None:
    """The reason why a run would refuse rows that can be shown: limits of errors, and checks that no row may fail."""
    fatal = {f"check {name}" for name, check in config.checks.items() if check.on_fail == "fail"}
    failed = [str(each) for each in tried.warnings if each.name in fatal]
    if failed:
        return f"{'; '.join(failed)} (on_fail: fail)"
    errors, eligible = (tried.stats.get(name, 0) for name in ("errors", "eligible"))
    limit = reached_limit(config.limits.max_errors, errors=errors, bad_records=errors, records=eligible)
    return limit and f"{errors} of {eligible} processed records of the sample are errors; {limit} (limits.max_errors)"


def _findings(records: list[dict[str, Any]], position: Sequence[str]) -> dict[str, Any]:
    """Counts over the decoded records, in the order in which they lie in the files."""
    records.sort(key=lambda each: [each["order"][name] for name in position])
    keys = Counter(json.dumps(each["key"]) for each in records if each["op"] in "ud" and _has_key(each))
    repeated = [(key, count) for key, count in keys.most_common() if count > 1]
    return {
        "operations": {name: sum(each["op"] == op for each in records) for op, name in OPERATIONS.items()},
        "errors": _grouped([each for each in records if each["kind"] is not None]),
        "keys": {
            "distinct": len(keys),
            "repeated": len(repeated),
            "most": [{"key": json.loads(key), "records": count} for key, count in repeated[:MAX_EXAMPLES]],
        },
        "times": _times([each["time"] for each in records if each["time"] is not None]),
        "orders": _orders(records, position),
    }


def _has_key(record: Mapping[str, Any]) -> bool:
    return None not in record["key"].values()


def _grouped(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The most frequent errors by kind and message, each with one record. The message is the first record's."""
    cells = {ERR_KIND: "kind", ERR_MESSAGE: "message", ERR_POSITION: "position", ERR_PAYLOAD: "payload"}
    rows = ({name: each[cell] for name, cell in cells.items()} for each in errors)
    groups = grouped(({**row, ERR_PAYLOAD: base64.b64decode(row[ERR_PAYLOAD] or "")} for row in rows), MAX_GROUPS)
    return [{**asdict(group), "message": group.first, "records": group.count} for group in groups]


def _times(times: Sequence[int]) -> dict[str, Any]:
    newest = late = 0
    for time in times:
        late += time < newest
        newest = max(newest, time)
    return {"first": min(times, default=None), "last": max(times, default=None), "late": late, "of": len(times)}


def _orders(records: Sequence[Mapping[str, Any]], position: Sequence[str]) -> dict[str, Any]:
    """First and last order, and how many records have a lower one than a record of the same key before them."""
    newest: dict[str, list[Any]] = {}
    found: list[list[Any]] = []
    backwards, names = 0, list[str]()
    for each in records:
        cells = list(each["order"].items())
        deciding = cells[: [name for name, _ in cells].index(position[0])]
        order, names = [(value is not None, value) for _, value in deciding], [name for name, _ in deciding]
        if not order or each["op"] not in "ud" or not _has_key(each):
            continue
        found.append(order)
        key = json.dumps(each["key"])
        backwards += order < newest.get(key, order)
        newest[key] = max(order, newest.get(key, order))
    first, last = (
        [_shown(name, value) for name, (_, value) in zip(names, end(found), strict=True)] if found else None
        for end in (min, max)
    )
    return {"first": first, "last": last, "out_of_order": backwards, "of": len(found)}


def _shown(name: str, value: Any) -> Any:
    """A cell of an order for people: the number behind the text of `persist_spark.decode.exact.number_order`."""
    if value is None or not name.endswith("_number"):
        return value
    sign, size = value[0], value[1:]
    if sign == "0":
        size = size[:-1].translate(str.maketrans("0123456789", "9876543210"))
    power = int(size[:10] or 0) - 5_000_000_000
    number = Decimal(f"{'-' if sign == '0' else ''}0.{size[10:]}e{power}") if size else Decimal(0)
    return f"{number:f}" if abs(power) < _MAX_ZEROS else str(number)


def _unread(config: CollectionConfig, raw: Sequence[RawRow]) -> tuple[Mapping[str, Any], ...]:
    known = named_fields(config)
    counts = Counter(name for each in raw for name in each.row if name not in known)
    example = {name: str(value)[:80] for each in raw for name, value in each.row.items() if value is not None}
    return tuple({"field": name, "records": count, "example": example.get(name)} for name, count in counts.items())


def lines_of(found: Preview) -> list[str]:
    """All but the rows."""
    return [*_of_sample(found), *(_of_records(found) if found.records else ()), *_of_fields(found)]


def _of_sample(found: Preview) -> Iterator[str]:
    yield f"next run: {found.next_run.text}"
    yield from found.next_run.notices
    for each in found.files:
        part = "all" if each.is_whole else "the first"
        yield f"sample: {part} {each.records} records of {each.file.relative}"
        if each.problem is not None:
            yield f"problem: {each.file.relative}: {each.problem}"
    if not found.files:
        yield "sample: no file matches source.path"
    if found.stops is not None:
        yield f"a run would stop: {found.stops}"


def _of_records(found: Preview) -> Iterator[str]:
    records = found.records
    yield f"records: {_counts(records['operations']) or 'none'}"
    if found.stats:
        yield f"a run would report: {_counts(found.stats)}"
    yield from (f"warning {each}" for each in found.warnings)
    keys = records["keys"]
    most = ", ".join(f"{show_key(each['key'])} in {each['records']}" for each in keys["most"])
    yield f"keys: {keys['distinct']} distinct, {keys['repeated']} in several records{': ' if most else ''}{most}"
    times, orders = records["times"], records["orders"]
    if times["of"]:
        late = f"; {times['late']} of {times['of']} are earlier than one before them" if times["late"] else ""
        yield f"times: {show_time(times['first'])} to {show_time(times['last'])}{late}"
    if orders["of"]:
        first, last = (json.dumps([v for v in orders[name] if v is not None]) for name in ("first", "last"))
        backwards = f"{orders['out_of_order']} of {orders['of']} are lower than one of their key before them"
        yield f"orders: {first} to {last}; {backwards}"
    for each in records["errors"]:
        yield f"error {each['kind']}, {each['records']} records: {each['message']} (the first: {each['position']})"


def _of_fields(found: Preview) -> Iterator[str]:
    for each in found.unread:
        example = f", such as {each['example']}" if each["example"] is not None else ", always null"
        yield f"no column takes field {each['field']}: {each['records']} records have it{example}"
    for hint in found.hints:
        yield f"hint: {hint}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def show_key(key: Mapping[str, Any]) -> str:
    """`id=1, day="2026-01-01"`."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in key.items())
