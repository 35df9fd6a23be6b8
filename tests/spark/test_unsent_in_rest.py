"""A value that Debezium left out, of a column that was added while the value lay in `rest`."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.config.collection import UNAVAILABLE_VALUE
from persist_core.maintenance.fsck import fsck
from tests.sampling import sample
from tests.spark.test_fill import Table

BIG: dict[str, Any] = {"id": 1, "n": 1, "t": "x" * 40, "b": "AP8=", "o": {"part": "p", "other": 1.50}}
ENCODED = base64.b64encode(UNAVAILABLE_VALUE.encode()).decode()
LEFT_OUT = dict.fromkeys("tb", UNAVAILABLE_VALUE)


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    lines = [json.dumps({"op": "u", "after": row, "source": {"lsn": row["n"]}, "ts_ms": row["n"]}) for row in rows]
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(f"{line}\n" for line in lines))


def debezium(folder: Path, **more: Any) -> Table:
    source = {"path": str(folder / "in" / "*"), "format": "debezium-json", "rest": "more"}
    return Table(folder, "t", source, more)


@pytest.mark.usefixtures("there")
@pytest.mark.family("histories in Spark")
def test_a_value_left_out_without_a_column_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = debezium(tmp_path)
    table.define({"n": "bigint"})
    write(tmp_path, "a", BIG, BIG | LEFT_OUT, {**BIG, "id": 2, "o": {"b": ENCODED}}, {**BIG, "id": 3})
    table.persist("run")
    told = "column more holds Debezium's placeholder; give its field a column: 2, for example "
    assert f'{told}{{"id":1}} and {{"id":2}}' in capsys.readouterr().err
    table.define({"n": "bigint", "t": "string", "b": "binary", "o": "json"})
    write(tmp_path, "b", {**BIG, "n": 3, **LEFT_OUT, "id": 3})
    table.persist("run")
    assert "placeholder" not in capsys.readouterr().err
    assert (table.rows()[3]["t"], table.rows()[3]["more"]) == (BIG["t"], None)


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("case", sample(["log", "log stashed", "sequence", "sequence stashed"], 1, "in rest"))
@pytest.mark.family("histories in Spark")
def test_a_later_record_inherits_what_rest_holds(tmp_path: Path, case: str) -> None:
    mode, waits = case.split()[0], case.endswith("stashed")
    order = {"mode": mode, "by": ["n"]} if mode == "sequence" else {"mode": mode}
    table = debezium(tmp_path, order=order, **({"time": {"field": "ts_ms"}} if waits else {}))
    columns: dict[str, Any] = {"n": "bigint"}
    table.define(columns)
    write(tmp_path, "a", BIG, {**BIG, "id": 2, "t": None}, {"id": 3, "n": 1})
    table.persist("run", *(["--until", "1970-01-01T00:00:00.001Z"] if waits else []))
    table.define(columns | {"t": "string", "b": "binary", "part": {"type": "string", "field": "o.part"}})
    o = {"part": UNAVAILABLE_VALUE}
    write(tmp_path, "b", {"id": 1, "n": 2, **LEFT_OUT, "o": o}, {"id": 2, "n": 2, **LEFT_OUT, "b": "AA==", "o": o})
    table.persist("run")
    write(tmp_path, "c", {"id": 1, "n": 3, **LEFT_OUT, "b": None, "o": o})
    table.persist("run")
    rows = {number: (row["t"], row["b"], row["part"]) for number, row in table.rows().items()}
    assert rows == {1: (BIG["t"], None, "p"), 2: (None, b"\0", "p"), 3: (None, None, None)}
    table.persist("fill", "--yes")
    assert {number: (row["t"], row["b"], row["part"]) for number, row in table.rows().items()} == rows
    report = fsck(table.client, "t")
    assert report.is_clean, report.violations


@pytest.mark.family("sizes")
@pytest.mark.usefixtures("there")
def test_a_run_after_an_erasure_is_planned_in_time(tmp_path: Path) -> None:
    """Spark traced the key of the join with the erased keys through the decoder, until its memory was full."""
    table = debezium(tmp_path, order={"mode": "sequence", "by": {"at": {"type": "bigint", "field": "ts_ms"}}})
    table.define(dict.fromkeys("ntb", "string"))
    write(tmp_path, "a", BIG, {**BIG, "id": 2})
    table.persist("run")
    assert run_command(["erase", "t", "--key", "1", "--reason", "asked", *table.there[2:]]) == 0
    write(tmp_path, "b", BIG, {**BIG, "id": 2, "n": 2, **LEFT_OUT})
    table.persist("run")
    assert {number: row["t"] for number, row in table.rows().items()} == {2: BIG["t"]}
