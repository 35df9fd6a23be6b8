"""Makes the bundled demo feed: `python -m tests.core.make_feed` writes `dags/feed/customers/` again.

Seven days of one Postgres table as Debezium's connector would have dropped them into folders: our own invented data,
the same for the same seed. A test holds the bundle to this script's output. What a reader should look out for:

    day 1  a snapshot (`op` r, one LSN for all rows), then the first changes
    day 2  deletes, each followed by its tombstone; a heartbeat message
    day 3  starts with a redelivery of day 2's tail; one file has the schema in each message; its last line is cut off
    day 4  a gzip file; customer 17's balance cannot be decoded (its old row goes, an err comes); an empty file
    day 5  a record without a key; an event of day 3 that comes late; an extra field appears in the records
    day 6  customer 17 is corrected; customer 23's balance has too many digits, and stays an err
    day 7  only a few changes, and a deleted customer who comes back
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SEED = 20260101
DAYS = 7
FOLDER = Path(__file__).resolve().parents[2] / "dags" / "feed" / "customers"
HEALED, STAYS_BAD, COMES_BACK, LATE = 17, 23, 12, 31  # customers with a part of their own; nothing random touches them

_START = datetime(2026, 1, 1, tzinfo=UTC)
_FIRST = [
    "Ada", "Bo", "Chidi", "Dilnoza", "Emil", "Farah", "Goran", "Hana", "Ingrid", "Jun", "Kofi", "Lía", "Mina",
    "Nils", "Oluwa", "Priya", "Quang", "Rosa", "Søren", "Tove",
]  # fmt: skip
_LAST = [
    "Abara", "Brandt", "Castillo", "Dvořák", "Eze", "Fjord", "Grünwald", "Hosseini", "Ito", "Jansen",
    "Kowalczyk", "Lindqvist", "Mbeki", "Nguyễn",
]  # fmt: skip
_CITIES = ["Łódź", "Recife", "Tromsø", "Kraków", "Nagoya", "Accra", "Graz", "Cork", "Hội An", "Québec", "Pune", "Oulu"]
_TIERS = ("basic", "silver", "gold", None)

Row = dict[str, Any]


class _Table:
    """The invented table: makes events and keeps the rows that they lead to."""

    def __init__(self, seed: int) -> None:
        # only `random()` of a seeded generator is promised to stay the same over Python's releases
        self._random = random.Random(seed).random
        self.rows: dict[int, Row] = {}
        self._next_id = 1
        self._lsn = 24_023_000
        self._transaction = 700
        self.now = _START

    def below(self, limit: int) -> int:
        return int(self._random() * limit)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def wait(self) -> None:
        self.now += timedelta(seconds=60 + self.below(900), microseconds=self.below(1_000_000))

    def new_row(self) -> Row:
        first, last, key = self.pick(_FIRST), self.pick(_LAST), self._next_id
        self._next_id += 1
        return {
            "id": key,
            "name": f"{first} {last}",
            "email": f"{first.lower()}.{key}@example.com",
            "city": self.pick(_CITIES),
            "balance": decimal_bytes(self.below(900_000) - 50_000),
            "tier": self.pick(_TIERS),
            "updated_at": zoned(self.now),
        }

    def event(self, op: str, before: Row | None, after: Row | None, *, snapshot: str = "false") -> Row:
        """One change event, as the connector's JSON converter writes it without schemas."""
        if snapshot == "false":
            self._lsn += 56 + 8 * self.below(40)
            self._transaction += 1
        source = {
            "version": "3.0.0.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": _milliseconds(self.now),
            "snapshot": snapshot,
            "db": "shop",
            "sequence": f'["{self._lsn - 56}","{self._lsn}"]',
            "schema": "public",
            "table": "customers",
            "txId": self._transaction,
            "lsn": self._lsn,
            "xmin": None,
        }
        ts_ms = _milliseconds(self.now) + 300 + self.below(400)
        return {"before": before, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": ts_ms}

    def insert(self, op: str = "c", *, snapshot: str = "false", row: Row | None = None) -> Row:
        self.wait()
        row = row or self.new_row()
        self.rows[row["id"]] = row
        return self.event(op, None, row, snapshot=snapshot)

    def update(self, key: int, **changes: Any) -> Row:
        self.wait()
        self.rows[key] = {**self.rows[key], **changes, "updated_at": zoned(self.now)}
        return self.event("u", None, self.rows[key])

    def delete(self, key: int) -> list[Row]:
        """The delete (with the default replica identity: the key alone is known) and the tombstone after it."""
        self.wait()
        before = {name: (key if name == "id" else None) for name in self.rows.pop(key)}
        return [self.event("d", before, None), {"key": {"id": key}, "value": None}]

    def any_key(self) -> int:
        special = (HEALED, STAYS_BAD, COMES_BACK, LATE)
        return int(self.pick([key for key in sorted(self.rows) if key not in special]))

    def changes(self, updates: int, inserts: int, deletes: int) -> list[Row]:
        """`count` changes of customers without a part of their own, mixed."""
        wanted = ["u"] * updates + ["c"] * inserts + ["d"] * deletes
        events: list[Row] = []
        while wanted:
            op = wanted.pop(self.below(len(wanted)))
            if op == "c":
                events.append(self.insert())
            elif op == "d":
                events += self.delete(self.any_key())
            else:
                field, value = self.pick(
                    [("balance", decimal_bytes(self.below(900_000))), ("city", self.pick(_CITIES)),
                     ("tier", self.pick(_TIERS))]
                )  # fmt: skip
                events.append(self.update(self.any_key(), **{field: value}))
        return events


def make_feed(seed: int = SEED) -> dict[str, bytes]:
    """Relative path -> contents, `.gz` files not yet compressed."""
    table = _Table(seed)
    files: dict[str, bytes] = {}

    def drop(day: int, name: str, events: Sequence[Row | bytes]) -> None:
        lines = [event if isinstance(event, bytes) else _line(event) for event in events]
        files[f"date={_date(day)}/{name}"] = b"".join(lines)

    def start(day: int) -> None:
        table.now = _START + timedelta(days=day - 1, minutes=5)

    start(1)
    drop(1, "part-1.jsonl", [table.insert("r", snapshot="true") for _ in range(40)])
    drop(1, "part-2.jsonl", table.changes(10, 2, 0))

    start(2)
    drop(2, "part-1.jsonl", table.changes(18, 3, 1))
    heartbeat = {"op": "m", "ts_ms": _milliseconds(table.now), "message": {"prefix": "heartbeat", "content": ""}}
    tail = [*table.changes(8, 2, 1), *table.delete(COMES_BACK)]
    drop(2, "part-2.jsonl", [*tail[:4], {**table.event("m", None, None), **heartbeat}, *tail[4:]])

    start(3)
    drop(3, "part-1.jsonl", [*tail[-6:], *table.changes(14, 2, 1)])
    late = table.update(LATE, city="Tromsø")
    drop(3, "part-2.jsonl", [_with_schema(event) for event in table.changes(6, 1, 0)])
    cut_off = table.changes(1, 0, 0)
    drop(3, "part-10.jsonl", [*table.changes(5, 0, 0), _line(cut_off[0])[:-120]])

    start(4)
    drop(4, "part-1.jsonl.gz", [*cut_off, *table.changes(16, 2, 1)])
    drop(4, "part-2.jsonl", [*table.changes(6, 1, 0), table.update(HEALED, balance="12,50"), *table.changes(3, 0, 1)])
    drop(4, "part-3.jsonl", [])

    start(5)
    table.rows = {key: {**row, "phone": None} for key, row in table.rows.items()}
    keyless = table.event("c", None, {name: value for name, value in table.new_row().items() if name != "id"})
    drop(5, "part-1.jsonl", [*table.changes(9, 1, 1), keyless, *table.changes(5, 0, 0)])
    drop(5, "part-2.jsonl", [late, *table.changes(7, 2, 0)])

    start(6)
    healed = table.update(HEALED, balance=decimal_bytes(123_456), tier="gold", phone="+31 20 555 0117")
    too_long = table.update(STAYS_BAD, balance=decimal_bytes(99_999_999_999_999))
    drop(6, "part-1.jsonl", [*table.changes(12, 2, 1), healed, *table.changes(6, 0, 0), too_long])

    start(7)
    back = {**table.new_row(), "id": COMES_BACK, "phone": None}
    drop(7, "part-1.jsonl", [*table.changes(4, 1, 1), table.insert(row=back)])
    return files


def decimal_bytes(unscaled: int) -> str:
    """A decimal as Debezium's `decimal.handling.mode=precise` has it: base64 of the big-endian two's complement."""
    length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return base64.b64encode(unscaled.to_bytes(length, "big", signed=True)).decode()


def zoned(moment: datetime) -> str:
    """A `timestamptz` in Debezium's form (`io.debezium.time.ZonedTimestamp`)."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _with_schema(value: Row) -> Row:
    """The message as the converter writes it with `schemas.enable`; the fields that matter for decoding."""
    fields = [
        {"type": "int64", "optional": False, "field": "id"},
        {"type": "string", "optional": False, "field": "name"},
        {"type": "string", "optional": True, "field": "email"},
        {"type": "string", "optional": True, "field": "city"},
        {
            "type": "bytes",
            "optional": True,
            "name": "org.apache.kafka.connect.data.Decimal",
            "version": 1,
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
            "field": "balance",
        },
        {"type": "string", "optional": True, "field": "tier"},
        {"type": "string", "optional": True, "name": "io.debezium.time.ZonedTimestamp", "version": 1,
         "field": "updated_at"},
    ]  # fmt: skip
    row = {"type": "struct", "optional": True, "name": "shop.public.customers.Value", "fields": fields}
    schema = {
        "type": "struct",
        "optional": False,
        "name": "shop.public.customers.Envelope",
        "version": 2,
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
    }
    return {"schema": schema, "payload": value}


def _line(event: Row) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _date(day: int) -> str:
    return (_START + timedelta(days=day - 1)).date().isoformat()


def write_feed(folder: Path = FOLDER) -> None:
    """Write the feed below `folder`."""
    for name, data in make_feed().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)


if __name__ == "__main__":
    write_feed()
