"""Random histories for the Spark upsert, and the way from the oracle's records and updates to frames and back.

Starting a Spark job costs far more than the work in it, so many independent cases share one: a case is a `world`, whose
slots no other world uses, and all worlds go through the same batches together.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import STASH_OPERATOR
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.keys import PART
from persist_core.schema import (
    DIFF,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    INHERITED,
    TIME,
    CollectionSchema,
    Column,
)
from persist_spark.frame import BAD_KEY, OP, ORDER, inherited_fields, order_type, part_type, records_type
from persist_spark.stage import MAX_PLANS
from persist_spark.upsert.hot_keys import find_beaten, take_sample
from persist_spark.upsert.outcome import Outcome
from tests.core.protocol import log_source
from tests.oracle.consolidate import NOT_SENT, Err, Slot, UpsertDiff, Value, canonical_bytes, canonical_key
from tests.oracle.upsert import (
    SKIP,
    TOMBSTONE,
    TRUNCATE,
    Mark,
    Record,
)

_ERR_FIELDS = (ERR_KIND, ERR_MESSAGE, ERR_KEY, ERR_PAYLOAD, ERR_POSITION)

ONE_KEY = CollectionSchema(
    key=(Column("id", "bigint", nullable=False),),
    values=(Column("name", "string"), Column("amount", "bigint"), Column("rate", "double")),
    position=FILE_POSITION,
)
INHERITING = SchemaVersions().placed(
    replace(ONE_KEY, values=tuple(replace(c, inherits=c.name in ("name", "amount")) for c in ONE_KEY.values))
)
MANY_KEYS = CollectionSchema(
    key=(
        Column("region", "string", nullable=False),
        Column("amount", "decimal(20,2)", nullable=False),
        Column("day", "date", nullable=False),
        Column("raw", "binary", nullable=False),
        Column("at", "timestamp", nullable=False),
        Column("flag", "boolean", nullable=False),
    ),
    values=(Column("price", "decimal(10,3)"), Column("seen", "timestamp"), Column("half", "float")),
    position=log_source.POSITION,
)

# Keys of each type, some of which sort in an unexpected way.
KEYS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-5, 7],
    "bigint": [-(2**63), 2**63 - 1],
    "string": ["", "\U0001f600", "\uffff", "z" * 5000],
    "binary": [b"\xff", b"", b"\x7f"],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)],
    "decimal(9,2)": [Decimal("-1.50"), Decimal("3")],
    "decimal(38,2)": [Decimal("-1.50"), Decimal(10**35)],
}


@dataclass(frozen=True)
class Domain:
    """The possible slots and values of a schema. `slots(world)` are that world's own."""

    schema: CollectionSchema
    slots: Callable[[int], Sequence[Slot]]
    values: Sequence[tuple[Any, ...]]


ONE_KEY_DOMAIN = Domain(
    schema=ONE_KEY,
    slots=lambda world: [(world * 10,), (-(world * 10) - 1,), f"bad {world}".encode(), b"\xff" + bytes([world % 256])],
    values=[
        ("a", 1, 0.5),
        ("a", 1, float("nan")),
        ("", None, None),
        (None, 1, 0.0),
        (None, None, 1.0),
        ("é", -(2**63), 0.25),
    ],
)
INHERITING_DOMAIN = Domain(
    schema=INHERITING,
    slots=ONE_KEY_DOMAIN.slots,
    values=[
        ("a", 1, 0.5),
        ('é"', None, 1.0),
        (None, -(2**63), float("nan")),
        (NOT_SENT, 2, 0.25),
        (NOT_SENT, NOT_SENT, 0.5),
        ("b", NOT_SENT, None),
    ],
)
WHOLE_DOMAIN = replace(INHERITING_DOMAIN, values=INHERITING_DOMAIN.values[:3])  # of which nothing is left out
_DAY, _AT = date(1582, 10, 4), datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
MANY_KEYS_DOMAIN = Domain(
    schema=MANY_KEYS,
    slots=lambda world: [
        ("", Decimal(f"{world}.00"), _DAY, b"", _AT, True),
        ("", Decimal(f"{world}.00"), _DAY, b"\x00", _AT, True),
        ("ü", Decimal(f"-{world}.01"), date(9999, 12, 31), b"\xff", _AT, False),
        f"bad {world}".encode(),
    ],
    values=[
        (Decimal("1.000"), None, 0.5),
        (Decimal("-1.500"), datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC), None),
        (None, None, float("nan")),
    ],
)


def until_kept(drain: Callable[[bool, bool], Outcome]) -> Outcome:
    """Drain a batch as the write stage does: `drain(is_thorough, inherits)` until its output is not discarded."""
    outcome = drain(False, False)
    for _ in range(MAX_PLANS - 1):
        if outcome.is_discarded:
            is_thorough = outcome.is_thorough or outcome.needs_thorough_plan
            outcome = drain(is_thorough, outcome.counted.get("unsent") != 0)
    assert not outcome.is_discarded
    return outcome


def without_beaten(frame: DataFrame, schema: CollectionSchema, *, leaves_out: bool) -> tuple[DataFrame, int]:
    """The records of a batch as the normal plan of the write stage takes them, and how many it leaves out."""
    found = find_beaten(take_sample(frame, schema, None)) if leaves_out else None
    if found is None:
        return frame, 0
    left = found.left_out(frame)
    assert frame.count() - left.count() == found.count > 0
    return left, found.count


@dataclass
class Feed:
    """Makes records, each at its own place in the source."""

    domain: Domain
    rng: random.Random
    worlds: int
    has_errs: bool = True
    has_ties: bool = False
    _row: int = field(default=0, init=False)

    def records(self, count: int, lower: int, upper: int, *, truncates: int = 0, strays: bool = True) -> list[Record]:
        """`count` records around `[lower, upper)`, in random worlds; then so many truncates."""
        found = [self._record(lower, upper, strays=strays) for _ in range(count)]
        for _ in range(truncates):
            found.append(Record(None, TRUNCATE, self._time(lower, upper, strays=strays), self._order()))
        return found

    def _record(self, lower: int, upper: int, *, strays: bool) -> Record:
        slot = self.rng.choice(list(self.domain.slots(self.rng.randrange(self.worlds))))
        kind = self.rng.choices(["ok", "tombstone", "err", "skip"], [6, 2, 2 if self.has_errs else 0, 1])[0]
        time = self._time(lower, upper, strays=strays)
        if kind == "skip":
            return Record(None, SKIP, time, self._order())
        is_tied = self.has_ties and self.rng.random() < 0.3
        order = self._tied_order(time) if is_tied else self._order()
        if kind == "tombstone":
            return Record(slot, TOMBSTONE, time, order)
        if kind == "err" or isinstance(slot, bytes):
            return Record(slot, self._err(slot, is_tied=is_tied), time, order)
        return Record(slot, self.rng.choice(list(self.domain.values)), time, order)

    def _err(self, slot: Slot, *, is_tied: bool) -> Err:
        """Equal bytes at one position are decoded alike: if `is_tied`, the payload says what kind of error it is."""
        message, payload = self.rng.choice(["one", "two"]), self.rng.choice([b"", b"p", b"\xff"])
        if isinstance(slot, bytes):
            return Err("key", slot, payload, message) if self.rng.random() < 0.8 else Err("key", None, slot, message)
        key = canonical_key(slot)
        kind = self.rng.choice(["value", "time"])
        return Err("value" if is_tied else kind, key, payload, message)

    def _time(self, lower: int, upper: int, *, strays: bool) -> int | None:
        if self.rng.random() < 0.2:
            return None
        stray = 3 if strays else 0
        return self.rng.randint(max(0, lower - stray), upper - 1 + stray)

    def _order(self) -> tuple[Any, ...]:
        self._row += 1
        return self._placed(self.rng.randrange(3), self._row)

    def _placed(self, file: int, row: int) -> tuple[Any, ...]:
        """At a place in a source of the schema: of files, or of partitions."""
        place = (f"day-{file}", 0, row) if self.domain.schema.position == FILE_POSITION else (file, row)
        return (self.rng.choice([None, 0, 1]), *place)

    def _tied_order(self, time: int | None) -> tuple[Any, ...]:
        """An order that other records have too. A position belongs to one record, so it has one time: with two, it
        would be chance which of two equal records wins, and whether the winner is counted as late."""
        self._row += 1
        return self._placed(9, -1 if time is None else time)


def needed_of(
    stash: Sequence[Record], records: Iterable[Record], upper: int | None, *, all_meet: bool = False
) -> list[Record]:
    """The stash that a batch needs: what is due, and what its records that wait (or `all_meet`: all) meet there."""
    end = float("inf") if upper is None else upper
    meeting = {
        r.slot for r in records if r.value is not SKIP and (all_meet or (-1 if r.time is None else r.time) >= end)
    }
    return [record for record in stash if (record.time or 0) < end or record.slot in meeting]


def order_struct(schema: CollectionSchema) -> T.StructType:
    """The type of `Record.order`. In `log` order a format has fields of its own before the position: here `seq`."""
    own = [T.StructField("seq", T.LongType())] if schema.order is None else []
    return T.StructType([*own, *order_type(schema).fields])


def to_records(spark: SparkSession, schema: CollectionSchema, records: Iterable[Record]) -> DataFrame:
    """The records frame of these records."""
    frame = records_type(schema, order_struct(schema))
    rows = [_record_row(schema, record) for record in records]
    return spark.createDataFrame([tuple(row[name] for name in frame.names) for row in rows], frame)


def _record_row(schema: CollectionSchema, record: Record) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(records_type(schema, order_struct(schema)).names)
    row[TIME], row[ORDER] = record.time, record.order
    row[OP] = record.value.value if isinstance(record.value, Mark) else "u"
    row |= _slot_cells(schema, record.slot)
    if isinstance(record.slot, bytes):
        row[BAD_KEY] = record.slot
    sent = record.value if isinstance(record.value, tuple) else (None,) * len(schema.values)
    row[ERR_PAYLOAD] = canonical_bytes(sent, [column.name for column in schema.values])  # what is shown if it is late
    if not isinstance(record.value, Mark):
        row |= _value_cells(schema, record.value)
    return row | _inherited_cells(schema, record.value)


def to_state(spark: SparkSession, schema: CollectionSchema, updates: Iterable[UpsertDiff]) -> DataFrame:
    """Committed updates, as `persist_spark.read.parts` gives them: values of retracted oks are not read."""
    more = [T.StructField(BAD_KEY, T.BinaryType()), *inherited_fields(schema)]
    frame = T.StructType([*part_type(schema).fields, *more])
    rows = []
    for update in updates:
        row: dict[str, Any] = dict.fromkeys(frame.names) | _slot_cells(schema, update.slot)
        row |= {TIME: update.time, DIFF: update.diff}
        row[BAD_KEY] = update.slot if isinstance(update.slot, bytes) else None
        if update.diff > 0 or isinstance(update.value, Err):
            row |= _value_cells(schema, update.value) | _inherited_cells(schema, update.value)
        rows.append(tuple(row[name] for name in frame.names))
    return spark.createDataFrame(rows, frame)


def _slot_cells(schema: CollectionSchema, slot: Slot | None) -> dict[str, Any]:
    return dict(zip(schema.key_names, slot, strict=True)) if isinstance(slot, tuple) else {}


def _value_cells(schema: CollectionSchema, value: Value) -> dict[str, Any]:
    if isinstance(value, Err):
        cells = (value.kind, value.message, value.key_bytes, value.payload, value.position)
        return dict(zip(_ERR_FIELDS, cells, strict=True))
    names = [column.name for column in schema.values]
    return {name: None if cell is NOT_SENT else cell for name, cell in zip(names, value, strict=True)}


def _inherited_cells(schema: CollectionSchema, value: Value | Mark) -> dict[str, Any]:
    """`INHERITED` of a record, or of an err in `log` order."""
    cells = value.cells if isinstance(value, Err) else value if isinstance(value, tuple) else None
    known = False if isinstance(value, Err) else None
    pairs = zip(schema.values, cells or (), strict=False)
    ordered = () if schema.order is None else (None,)
    entries = [(column.id, known, *ordered) for column, cell in pairs if cell is NOT_SENT]
    return {INHERITED: entries or None} if schema.inherits else {}


@dataclass(frozen=True)
class Written:
    """The output of a drain, in the oracle's form."""

    updates: list[UpsertDiff]
    stash: list[Record]


def collected(schema: CollectionSchema, rows: Iterable[Row]) -> Written:
    """The updates and the stash in the rows of `PlannedUpsert.updates`; checks that each is in its part."""
    written = Written([], [])
    for row in rows:
        slot = _slot_of(schema, row)
        if row[PART] == STASH_OPERATOR:
            mark = {"d": TOMBSTONE, "t": TRUNCATE}.get(row[OP])
            kept = None if mark is TRUNCATE else slot
            written.stash.append(Record(kept, mark or _value_of(schema, row), row[TIME], tuple(row[ORDER])))
            continue
        value = _value_of(schema, row)
        part = "errs" if isinstance(value, Err) else "insertions" if row[DIFF] == 1 else "retractions"
        assert row[PART] == part
        written.updates.append(UpsertDiff(slot, value, row[TIME], row[DIFF]))
    return written


def _slot_of(schema: CollectionSchema, row: Row) -> Slot:
    key = tuple(_python(row[name]) for name in schema.key_names)
    if None not in key:
        return key
    bad_key = row[BAD_KEY] if row[PART] == STASH_OPERATOR else None
    found = bad_key if bad_key is not None else row[ERR_KEY] if row[ERR_KEY] is not None else row[ERR_PAYLOAD]
    return bytes(found) if found is not None else b"no slot"


def _value_of(schema: CollectionSchema, row: Row) -> Value:
    unsent = {entry["id"] for entry in (row[INHERITED] or ())} if schema.inherits and INHERITED in row else set()
    if row[ERR_KIND] is not None:
        key_bytes = None if row[ERR_KEY] is None else bytes(row[ERR_KEY])
        cells = _known(schema, bytes(row[ERR_PAYLOAD])) if unsent else None
        return Err(row[ERR_KIND], key_bytes, bytes(row[ERR_PAYLOAD]), row[ERR_MESSAGE], cells, row[ERR_POSITION])
    is_record = row[PART] == STASH_OPERATOR
    return tuple(NOT_SENT if is_record and c.id in unsent else _python(row[c.name]) for c in schema.values)


def _known(schema: CollectionSchema, payload: bytes) -> tuple[Any, ...]:
    """The values that an err shows: texts, whole numbers and floats."""
    found, types = json.loads(payload), {"bigint": int, "double": float, "string": str}
    return tuple(
        NOT_SENT if c.name not in found else None if found[c.name] is None else types[c.type](found[c.name])
        for c in schema.values
    )


def _python(cell: Any) -> Any:
    if isinstance(cell, bytearray):
        return bytes(cell)
    return cell.astimezone(UTC) if isinstance(cell, datetime) else cell


def comparable(items: Iterable[UpsertDiff | Record]) -> list[str]:
    """Updates or stashed records as sorted texts; an err's message does not count, NaN equals NaN."""
    return sorted(_text(item) for item in items)


def _text(item: UpsertDiff | Record) -> str:
    value = item.value
    if isinstance(value, tuple):
        shown = canonical_bytes(value, [str(i) for i in range(len(value))]).decode()
    else:
        shown = repr(value) if isinstance(value, Mark) else repr((value.kind, value.key_bytes, value.payload))
    rest = (item.diff,) if isinstance(item, UpsertDiff) else item.order
    return f"{item.slot!r} at {item.time}: {shown} {rest!r}"
