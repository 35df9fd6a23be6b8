"""`persist fill`. The oracle is the decoder: a table of the same files that has had the columns from the start."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from tests.sampling import sample
from tests.spark.test_rest import exact

IDS = 40
COLUMNS: dict[str, Any] = {
    "i": "int",
    "n": {"type": "bigint", "on_error": "null"},
    "d": "decimal(9,2)",
    "at": {"type": "timestamp", "field": "when"},
    "ms": {"type": "timestamp", "unit": "ms"},
    "day": {"type": "date", "unit": "days"},
    "text": "string",
    "doc": "json",
    "yes": "boolean",
    "f": "double",
    "data": {"type": "binary", "binary": "base64"},
    "hex": {"type": "binary", "on_error": "null"},
    "part": {"type": "int", "field": "o.part"},
}
GOOD: dict[str, list[Any]] = {
    "i": [5, -3, "12", 1.0, None],
    "n": [1, 2**62, "7", "x", 2**70, 1.5],
    "d": [1, "2.25", 1.50, -0.01],
    "when": ["2026-03-01T10:00:00", "2026-03-01 10:00:00.123456Z", "2026-07-01T10:00:00+05:30"],
    "ms": [1_700_000_000_000, "1700000000001", "2026-03-01"],
    "day": [19_000, "2026-03-01"],
    "text": ["", "a", 'q"u\\o', "ü😀\n", 5, "true", "null", "1.10"],
    "doc": ["a", 1, "{}", '{"a": 1}'],
    "yes": ["true", "false"],
    "f": [0.1, "NaN", -0.0, 1e300],
    "data": ["q83v", "", "AAAA"],
    "hex": ["q83vQQ==", "abcd", "zz"],
    "o": [{"part": 1, "other": [1.50, "x"]}, {"other": {}}, None],
    "new": [1, "x", None],
}
BAD: dict[str, list[Any]] = {
    "i": ["x", 2**40], "d": [1.005, "1e9"], "when": ["2026-03-29T02:30:00", 5], "ms": ["soon"], "day": ["x"],
    "yes": ["yes!"], "f": ["x"], "data": ["a", 5], "o": [{"part": "x"}],
}  # fmt: skip
NESTED: dict[str, list[Any]] = {
    "text": [True, {"x": 1.50}, [1, None]], "doc": [True, {"x": [1.50, "a"]}, []], "yes": [True, False], "o": [5],
}  # fmt: skip
CELLS: dict[str, tuple[pa.DataType, list[Any]]] = {  # of Parquet
    "i": (pa.int32(), [5, -(2**31)]),
    "n": (pa.int64(), [2**62, 7]),
    "d": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-0.01")]),
    "f": (pa.float32(), [0.1, float("nan"), -0.0, 3.4e38]),
    "when": (pa.timestamp("us"), [datetime(2026, 7, 1, 10, 0, 0, 5), datetime(2026, 3, 29, 2, 30)]),
    "ms": (pa.timestamp("us", "UTC"), [datetime(2026, 3, 1, 10, 0, 0, 123456, UTC)]),
    "nanos": (pa.timestamp("ns", "UTC"), [1_700_000_000_000_000_000, 1_700_000_000_000_001_000]),
    "day": (pa.date32(), [date(2026, 3, 1), date(1, 1, 1)]),
    "text": (pa.string(), ["", "ü😀\n", '{"a": 1}', "null"]),
    "yes": (pa.bool_(), [True, False]),
    "doc": (
        pa.struct([("x", pa.int32()), ("at", pa.timestamp("us", "UTC"))]),
        [{"x": None, "at": datetime(2026, 3, 1, 10, 0, 0, 123456, UTC)}, {"x": 1, "at": None}, {"x": None, "at": None}],
    ),
    "list": (pa.list_(pa.float64()), [[1.5, None], []]),
    "o": (pa.struct([("part", pa.int64())]), [{"part": 1}, {"part": 2**40}, {"part": None}]),
    "new": (pa.string(), ["x"]),
}
PARQUET: dict[str, Any] = {
    **{name: COLUMNS[name] for name in ("i", "n", "d", "f", "at", "day", "text", "doc", "yes", "part")},
    "ms": "timestamp",
    "nanos": "timestamp",
    "wide": {"type": "decimal(18,4)", "field": "d"},
    "list": "json",
}


class Table:
    """A collection of the files in `in`, in a location of its own, with a file of its own."""

    def __init__(self, folder: Path, name: str, source: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self.folder, self.name, self.source, self.more = folder, name, source, more
        where = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        self.client = PersistClient(open_location(where))
        self.there = ["--collections", str(folder), "--blob-uri", where.blob_uri]
        self.there += ["--consensus-uri", where.consensus_uri]

    def define(self, columns: Mapping[str, Any]) -> None:
        body = {"source": self.source, "key": "id", "columns": {"id": "bigint", **columns, "more": "json"}, **self.more}
        (self.folder / f"{self.name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False))

    def persist(self, *words: str) -> None:
        assert run_command([words[0], self.name, *words[1:], *self.there]) == 0

    def rows(self) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in self.client.open_reader(self.name).snapshot().to_pylist()}

    def errs(self) -> set[int]:
        return set(self.client.open_reader(self.name).errors()["id"].to_pylist())


def quoted(value: Any) -> str:
    """A cell of CSV: empty for null, in quotes otherwise."""
    return "" if value is None else '"' + str(value).replace('"', '""') + '"'


def write(path: Path, kind: str, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        types = [("id", pa.int64()), *((name, each) for name, (each, _) in CELLS.items())]
        pq.write_table(pa.Table.from_pylist(records, pa.schema(types)), path)
        return
    if kind == "csv":
        names = sorted({name for each in records for name in each})
        rows: list[list[Any]] = [names, *([each.get(name) for name in names] for each in records)]
        path.write_text("".join(",".join([quoted(cell) for cell in row]) + "\n" for row in rows))
        return
    envelope = {"json": "%s", "debezium-json": '{"op": "c", "before": null, "after": %s, "ts_ms": 5}'}[kind]
    path.write_text("".join(envelope % json.dumps(each) + "\n" for each in records))


def drawn(chance: random.Random, kind: str, number: int) -> dict[str, Any]:
    """A record: fields that come and go, and in every third record bad values."""
    if kind == "parquet":
        return {"id": number} | {
            name: chance.choice(each) for name, (_, each) in CELLS.items() if chance.random() < 0.8
        }
    fields = {name: chance.choice(values) for name, values in GOOD.items() if chance.random() < 0.6}
    if chance.random() < 0.3:
        name = chance.choice(sorted(BAD))
        fields[name] = chance.choice(BAD[name])
    if kind != "csv" and chance.random() < 0.5:
        name = chance.choice(sorted(NESTED))
        fields[name] = chance.choice(NESTED[name])
    if kind == "csv":
        fields["o.part"] = chance.choice(["1", "x", "2"]) if isinstance(fields.pop("o", None), dict) else None
        fields = {name: "\\n" if value == "ü😀\n" else value for name, value in fields.items()}
    return {"id": number, **fields}


def without_object(row: dict[str, Any]) -> dict[str, Any]:
    """The row, its `more` as values, without the object of which a column takes a part."""
    more = exact(row["more"]) or {}
    return {**row, "more": {name: value for name, value in more.items() if name != "o"}, "f": repr(row.get("f"))}


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("kind", sample(["json", "csv", "debezium-json", "parquet"], 1, "fill"))
@pytest.mark.family("decoders")
def test_a_filled_row_is_what_the_decoder_makes(tmp_path: Path, kind: str) -> None:
    chance = random.Random(kind)
    source = {"path": str(tmp_path / "in" / "*"), "format": kind, "rest": "more"}
    more: dict[str, Any] = {"timezone": "Europe/Berlin", "limits": {"max_errors": None}}
    if kind == "debezium-json":
        source["decimals"] = "string"
        more["order"] = {"mode": "sequence", "by": {"at_ms": {"type": "bigint", "field": "ts_ms"}}}
    else:
        more["delete"] = "none"
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = Table(tmp_path / "old", "t", source, more), Table(tmp_path / "new", "t", source, more)
    columns = PARQUET if kind == "parquet" else COLUMNS
    old.define({name: columns[name] for name in chance.sample(sorted(columns), 3)})
    new.define(columns)
    write(tmp_path / "in" / "a", kind, [drawn(chance, kind, number) for number in range(IDS)])
    old.persist("run")
    new.persist("run")
    write(tmp_path / "in" / "b", kind, [drawn(chance, kind, number) for number in range(0, IDS, 4)])
    old.define(columns)
    old.persist("run")
    new.persist("run")
    before, files = old.rows(), [path.rename(tmp_path / path.name) for path in (tmp_path / "in").iterdir()]
    old.persist("fill", "--yes")
    found, expected, errs = old.rows(), new.rows(), new.errs()
    assert found.keys() >= expected.keys()
    assert found.keys() - expected.keys() <= errs
    for number, row in found.items():
        if number in errs:
            assert without_object(row) == without_object(before[number])
        else:
            assert without_object(row) == without_object(expected[number])
    assert found != before
    upper = old.client.state("t").upper
    old.persist("fill")
    assert old.client.state("t").upper == upper, "nothing is left to do"
    for path in files:
        path.rename(tmp_path / "in" / path.name)
    report = fsck(old.client, "t")
    assert report.is_clean, report.violations


ROWS = [
    {"id": 1, "row": "a", "v0": "b", "typed_v0": 1.50, "gone": "c", "price": 2},
    {"id": 2, "row": "a", "price": -1},
    {"id": 3, "price": 0, "found": "d"},
]
OURS = {"row": "string", "v0": "string", "typed_v0": "decimal(9,2)", "gone": "string", "found": "string"}


@pytest.mark.usefixtures("there")
def test_a_row_that_would_fail_a_check_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the columns are called. First, a table that has no column but `rest`."""
    source = {"path": str(tmp_path / "in" / "*"), "format": "json", "rest": "more"}
    more: dict[str, Any] = {"delete": "none"}
    table = Table(tmp_path, "t", source, more)
    table.define({})
    write(tmp_path / "in" / "a", "json", ROWS)
    table.persist("run")
    table.persist("fill")
    before = table.rows()
    more["checks"] = {
        "positive": "price >= 0 AND coalesce(row, '') != 'x'",
        "even": {"sql": "price < 1", "on_fail": "warn"},
    }
    table.define({**OURS, "price": "int"})
    table.persist("run")
    capsys.readouterr()
    table.persist("fill", "--yes")
    said = capsys.readouterr().out
    assert "of 3 rows: 2 changed (found 1, gone 1, price 2, row 1, typed_v0 1, v0 1)" in said
    assert "{\"id\":2}: check 'positive' is not true" in said
    filled = {row["id"]: {**dict.fromkeys((*OURS, "price")), **row, "more": None} for row in ROWS}
    filled[1]["typed_v0"] = Decimal("1.50")
    assert table.rows() == {**filled, 2: {**filled[2], "row": None, "price": None, "more": before[2]["more"]}}
