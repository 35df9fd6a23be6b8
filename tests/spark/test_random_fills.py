"""`persist fill` among other changes of a table, by random steps."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.config.collection import UNAVAILABLE_VALUE
from persist_core.maintenance.fsck import fsck
from tests.sampling import is_long, sample
from tests.spark.test_fill import Table, write

FIELDS = ("a", "b", "c", "d", "e")
STEPS = 6


class Changes:
    """A table that changes by random steps. `records` of each day, by key."""

    def __init__(self, folder: Path, mode: str, chance: random.Random) -> None:
        self.folder, self.mode, self.chance = folder, mode, chance
        kind = "debezium-json" if mode == "debezium" else "json"
        source = {"path": str(folder / "in" / "date={date:%Y-%m-%d}" / "*"), "format": kind, "rest": "more"}
        by: Any = {"at": {"type": "bigint", "field": "ts_ms"}} if mode == "debezium" else ["seq"]
        order = {"mode": "log"} if mode == "log" else {"mode": "sequence", "by": by}
        deletes = {} if mode == "debezium" else {"delete": {"column": "op", "values": ["D"]}}
        more: dict[str, Any] = {"time": "path", "order": order, "limits": {"max_errors": None}, **deletes}
        self.table = Table(folder, "t", source, more)
        self.fields = {"op": "op", "seq": "seq", "a": "a"}  # of each column
        self.records: list[dict[int, dict[str, Any]]] = []
        self.erased: dict[int, tuple[int, int]] = {}  # of each key, the days and the order that were there
        self.seq = 0
        (folder / "views").mkdir()
        (folder / "views" / "shown.yaml").write_text("query: SELECT to_json(struct(*)) AS row FROM t\n")
        self.define()

    def define(self, renamed: Mapping[str, str] | None = None) -> None:
        old = renamed or {}
        columns = {
            name: {
                "type": "bigint" if name == "seq" else "string",
                "field": field,
                **({"renamed_from": old[name]} if name in old else {}),
            }
            for name, field in self.fields.items()
        }
        self.table.define(columns)

    def drop(self, day: int) -> None:
        records = {}
        for number in self.chance.sample(range(8), 4):
            self.seq += 1
            fields = {name: f"{name}{self.seq}" for name in FIELDS if self.chance.random() < 0.6}
            if self.mode == "debezium":  # of fields without a column such a value would be lost
                left_out = [name for name in FIELDS if name in self.fields.values() and self.chance.random() < 0.3]
                fields |= dict.fromkeys(left_out, UNAVAILABLE_VALUE)
            records[number] = {"id": number, "seq": self.seq, "op": self.chance.choice("DUUUU"), **fields}
        self.records[day:] = [records, *self.records[day + 1 :]]
        path = self.folder / "in" / f"date=2026-01-{day + 1:02}" / "x"
        lines: list[dict[str, Any]] = list(records.values())
        if self.mode == "debezium":
            sides = {"U": ("u", "after"), "D": ("d", "before")}
            cells = [(*sides[each["op"]], each) for each in lines]
            lines = [{"op": op, side: each, "ts_ms": each["seq"]} for op, side, each in cells]
        write(path, "json", lines)

    def run(self) -> None:
        self.drop(len(self.records))
        self.table.persist("run", "--until", f"2026-01-{len(self.records) + 1:02}")

    def add(self) -> None:
        new = [name for name in FIELDS if name not in self.fields.values()]
        self.fields |= {name: name for name in new[:1]}
        self.define()
        self.run()

    def rename(self) -> None:
        old = self.chance.choice([name for name in self.fields if name not in ("op", "seq")])
        self.fields[f"{old}_"] = self.fields.pop(old)
        self.define({f"{old}_": old})
        self.run()

    def fill(self) -> None:
        """A second one does nothing."""
        self.table.persist("fill", "--yes")
        upper = self.table.client.state("t").upper
        self.table.persist("fill")
        assert self.table.client.state("t").upper == upper

    def reprocess(self) -> None:
        day = self.chance.randrange(len(self.records))
        if self.chance.random() < 0.5:
            self.drop(day)
        self.table.persist("reprocess", "--from", f"2026-01-{day + 1:02}", "--yes")

    def rebuild(self) -> None:
        self.table.persist("rebuild", "--yes")

    def view(self) -> None:
        """It has the rows of the table, whatever has changed them."""
        where = ["--views", str(self.folder / "views"), "--collections", str(self.folder)]
        assert run_command(["run", "shown", *where, *self.table.there[2:]]) == 0
        found = self.table.client.open_reader("shown").snapshot()["row"].to_pylist()
        rows = [{name: value for name, value in row.items() if value is not None} for row in self.table.rows().values()]
        assert sorted(map(json.loads, found), key=str) == sorted(rows, key=str)

    def erase(self) -> None:
        """Refused while another generation is kept."""
        number = self.chance.randrange(8)
        if self.table.client.state("t").origin.generation:
            return
        words = ["erase", "t", "--key", str(number), "--reason", "asked", "--verify"]
        assert run_command([*words, *self.table.there[2:]]) == 0
        self.erased[number] = len(self.records), self.seq

    def is_erased(self, day: int, number: int, record: Mapping[str, Any]) -> bool:
        days, seq = self.erased.get(number, (0, 0))
        return day < days if self.mode == "log" else record["seq"] <= seq

    def maintain(self) -> None:
        assert run_command(["maintain", "t", *self.table.there[2:]]) == 0

    def expected(self) -> dict[int, dict[str, Any]]:
        """The record that each key has; with what it left out, which is `UNAVAILABLE_VALUE` if it is unknown."""
        found: dict[int, dict[str, Any]] = {}
        records = [(day, number, record) for day, each in enumerate(self.records) for number, record in each.items()]
        if self.mode != "log":
            records.sort(key=lambda each: each[2]["seq"])
        for day, number, record in records:
            if self.is_erased(day, number, record):
                continue
            before = found.get(number, {"op": "D"})
            kept = dict.fromkeys(FIELDS, UNAVAILABLE_VALUE) if before["op"] == "D" else before
            whole = {name: kept.get(name) if value == UNAVAILABLE_VALUE else value for name, value in record.items()}
            found[number] = {name: value for name, value in whole.items() if value is not None}
        return {number: record for number, record in found.items() if record["op"] != "D"}

    def check(self) -> None:
        found = {}
        for number, row in self.table.rows().items():
            rest = json.loads(row.pop("more") or "{}")
            own = {self.fields.get(name, name): value for name, value in row.items() if value is not None}
            assert not own.keys() & rest.keys()
            found[number] = own | rest
        expected = self.expected()
        errs = {number for number, record in expected.items() if UNAVAILABLE_VALUE in record.values()}
        assert self.table.errs() == errs
        assert found == {number: record for number, record in expected.items() if number not in errs}
        report = fsck(self.table.client, "t")
        assert report.is_clean, report.violations


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("seed", range(1, 11) if is_long() else [0])
@pytest.mark.parametrize("mode", sample(["log", "sequence", "debezium"], 1, "random fills"))
@pytest.mark.family("histories in Spark")
def test_no_change_loses_a_field(tmp_path: Path, mode: str, seed: int) -> None:
    """The columns of a row and its `more` are together what its records said."""
    chance = random.Random(f"fill {mode} {seed or os.environ.get('PERSIST_SEED')}")
    shard, told = Changes(tmp_path, mode, chance), ["run"]
    shard.run()
    steps = [shard.run, shard.add, shard.add, shard.fill, shard.fill, shard.fill, shard.rename, shard.reprocess,
             shard.rebuild, shard.maintain, shard.view, shard.erase]  # fmt: skip
    for _ in range(STEPS):
        step = chance.choice(steps)
        told.append(step.__name__)
        try:
            step()
            shard.check()
        except AssertionError as error:
            raise AssertionError(f"{told}: {error}") from error


@pytest.mark.family("commands")
@pytest.mark.usefixtures("there")
def test_a_correction_does_not_take_a_fill_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It begins before the fill, and after the record of the row that was filled."""
    shard = Changes(tmp_path, "sequence", random.Random())

    def drop(day: int, number: int, seq: int) -> None:
        record = {"id": number, "op": "U", "seq": seq, "a": f"a{seq}", "b": f"b{seq}"}
        shard.records[day:] = [{number: record}, *shard.records[day + 1 :]]
        write(tmp_path / "in" / f"date=2026-01-{day + 1:02}" / "x", "json", [record])

    drop(0, 1, 1)
    shard.table.persist("run", "--until", "2026-01-02")
    shard.fields["b"] = "b"
    shard.define()
    drop(1, 2, 2)
    shard.table.persist("run", "--until", "2026-01-03")
    shard.fill()
    filled = shard.table.rows()
    drop(1, 2, 3)
    capsys.readouterr()
    shard.table.persist("reprocess", "--from", "2026-01-02", "--yes")
    assert "of 2 rows: 0 rows added, 0 removed, 1 changed (seq 1, a 1, b 1)" in capsys.readouterr().out
    shard.check()
    assert shard.table.rows()[1] == filled[1]
    assert (filled[1]["b"], filled[1]["more"]) == ("b1", None)
