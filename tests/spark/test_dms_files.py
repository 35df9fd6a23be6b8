"""Files of DMS to records: operations, the full load, and the order of changes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.schema import ERR_KIND, ERR_MESSAGE, MISSING_ORDER
from persist_spark.frame import OP
from tests.spark.decode_feed import Feed
from tests.spark.test_decode_tabular import records
from tests.spark.test_sequence import Collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_dms_csv_changes_and_full_load(feed: Feed) -> None:
    feed.write("LOAD00000001.csv", "1,a,1.00,2026-01-01\n2,b,,\n")
    feed.write("change-1.csv", "U,1,a2,2.00,\nI,3,c,,\nD,2,b,,\nX,4,d,,\n")
    rows = records(feed, "dms-csv", source={"header": False})
    assert [(row[OP], row["id"], row["name"], row[ERR_KIND]) for row in rows] == [
        ("u", 1, "a", None),
        ("u", 2, "b", None),
        ("u", 1, "a2", None),
        ("u", 3, "c", None),
        ("d", 2, None, None),
        ("u", 4, None, "op"),
    ]


@pytest.mark.parametrize("kind", ["with a header", "without a header", "Parquet"])
def test_an_operation_in_a_full_load_is_i(feed: Feed, kind: str) -> None:
    """Codes in a first column that the collection does not read are values of the table."""
    rows = [("D", "Germany", "EU"), ("I", "Italy", "EU"), ("U", "Uganda", "AF")]
    columns = {"code": "string", "name": "string"}
    lines = "".join(f"{','.join(row)}\n" for row in rows)
    settings: dict[str, Any] = {"columns": columns, "key": "code"}
    if kind == "without a header":
        feed.write("LOAD00000001.csv", lines)
        found = records(feed, "dms-csv", source={"header": False}, **settings)
        assert [(row[OP], row["code"], row["name"]) for row in found] == [("u", *row[:2]) for row in rows]
        feed.write("LOAD00000001.csv", "I,DE,Germany\nD,IT,Italy\n")
        feed.write("20260101-000000001.csv", "D,AT,Austria\n")
        found = records(feed, "dms-csv", source={"header": False}, **settings)
        assert [(row[OP], row["code"], row[ERR_KIND]) for row in found] == [
            ("u", "DE", None), ("u", "IT", "op"), ("d", "AT", None)
        ]  # fmt: skip
        return
    if kind == "Parquet":
        names = ["Op", "code", "name"]
        pq.write_table(
            pa.table([list(column) for column in zip(*rows, strict=True)], names), feed.folder / "LOAD1.parquet"
        )
    else:
        feed.write("LOAD00000001.csv", f"Op,code,name\n{lines}")
    found = records(feed, "dms-parquet" if kind == "Parquet" else "dms-csv", **settings)
    kinds = {row["code"]: row[ERR_KIND] for row in found}
    assert kinds == {"Germany": "op", "Italy": None, "Uganda": "op"}
    assert all(
        "expected I, as the file's name is one of a full load" in row[ERR_MESSAGE] for row in found if row[ERR_KIND]
    )


def test_dms_csv_with_header(feed: Feed) -> None:
    feed.write("1.csv", "Op,id,name\nI,1,a\nD,1,a\n")
    assert [(row[OP], row["id"]) for row in records(feed, "dms-csv")] == [("u", 1), ("d", 1)]


def test_dms_parquet(feed: Feed) -> None:
    pq.write_table(pa.table({"Op": ["I", "D"], "id": [1, 1], "name": ["a", "a"]}), feed.folder / "2.parquet")
    pq.write_table(pa.table({"id": [1], "name": ["0"]}), feed.folder / "1.parquet")
    assert [(row[OP], row["name"]) for row in records(feed, "dms-parquet")] == [("u", "0"), ("u", "a"), ("d", None)]


def test_dms_full_load_comes_before_changes_whatever_the_names(feed: Feed) -> None:
    feed.write("LOAD0000000A.csv", "Op,id,name\nI,1,loaded\n")
    feed.write("20260101-120000000.csv", "Op,id,name\nU,1,changed\n")
    assert [row["name"] for row in records(feed, "dms-csv")] == ["loaded", "changed"]
    assert [row["name"] for row in records(feed, "dms-csv", order="position")] == ["changed", "loaded"]


def write_table(feed: Feed, kind: str, name: str, rows: list[dict[str, str]]) -> None:
    """A file of texts, as CSV with a header or as Parquet."""
    if kind == "dms-parquet":
        pq.write_table(pa.Table.from_pylist(rows), feed.folder / f"{name}.parquet")
    else:
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        feed.write(f"{name}.csv", "".join(f"{','.join(line)}\n" for line in lines))


@pytest.mark.parametrize("kind", ["dms-csv", "dms-parquet"])
def test_an_empty_operation_is_an_err(feed: Feed, kind: str) -> None:
    """It may be a delete's. A file without the column is a full load."""
    for number, name in enumerate(("LOAD00000001", "20260102-1")):
        rows = [{"Op": op, "id": str(10 * number + place), "name": "a"} for place, op in enumerate(["I", "", None])]
        if kind == "dms-csv":
            feed.write(f"{name}.csv", f"Op,id,name\nI,{number}0,a\n,{number}1,a\nNULL,{number}2,a\n")
        else:
            pq.write_table(pa.Table.from_pylist(rows), feed.folder / f"{name}.parquet")
    found = records(feed, kind)
    assert {row["id"]: row[ERR_KIND] for row in found} == {0: None, 1: "op", 2: "op", 10: None, 11: "op", 12: "op"}
    said = [row[ERR_MESSAGE] for row in found if row[ERR_KIND]]
    assert [message.partition(",")[0] for message in said] == ["Op is ''; expected I"] * 4


@pytest.mark.family("decoders")
@pytest.mark.parametrize("fields", [{"seq": "decimal(38,0)"}, {"seq": "string"}, {"at": "timestamp", "seq": "bigint"}])
@pytest.mark.parametrize("kind", ["dms-csv", "dms-parquet"])
def test_a_full_load_needs_no_value_in_an_order_field(feed: Feed, kind: str, fields: dict[str, str]) -> None:
    """As header columns of the source (`AR_H_CHANGE_SEQ`): in a full load DMS leaves them empty, or out."""
    write_table(feed, kind, "LOAD00000001", [{"id": "1", "seq": "", "at": ""}, {"id": "2", "seq": "x", "at": "y"}])
    write_table(feed, kind, "LOAD00000002", [{"id": "3"}])
    write_table(feed, kind, "20260102-1", [{"Op": "U", "id": "4", "seq": "65", "at": "2026-01-02 06:00:00"}])
    write_table(feed, kind, "20260102-2", [{"Op": "U", "id": "5"}])
    rows = records(feed, kind, columns={"id": "string"}, key="id", order={"by": fields})
    good = {row["id"] for row in rows if row[ERR_KIND] is None}
    errs = [row[ERR_MESSAGE] for row in rows if row[ERR_KIND] == MISSING_ORDER]
    assert good == ({"1", "2", "3", "4"} if fields == {"seq": "string"} else {"1", "3", "4"})
    assert len(errs) == 5 - len(good), "a change without a place, and what is not a value of the type"
    assert all(message.startswith(f"order field '{next(iter(fields))}' is ") for message in errs)


@pytest.mark.family("histories in Spark")
def test_a_full_load_comes_first_in_an_order_by_fields(spark: SparkSession, tmp_path: Path, persist_seed: int) -> None:
    """In any delivery, also if a row was deleted before its full load is read."""
    dice, wanted = random.Random(persist_seed), dict.fromkeys(range(6), "loaded")
    files = {"LOAD00000001.csv": "id,name,seq\n" + "".join(f"{key},loaded,\n" for key in wanted)}
    for number in sorted(dice.sample(range(1, 1_000), 20)):
        op, key = dice.choice("UUD"), dice.randrange(5)
        files[f"{dice.randrange(100)}-{number}.csv"] = f"Op,id,name,seq\n{op},{key},n{number},{10**30 + number}\n"
        wanted.pop(key, None)
        if op == "U":
            wanted[key] = f"n{number}"
    order = {"by": {"seq": "decimal(38,0)"}}
    shard = Collection(spark, tmp_path, {"id": "bigint", "name": "string"}, "dms-csv", order=order)
    names = dice.sample(sorted(files), len(files))
    for part in (names[0::3], names[1::3], names[2::3]):
        shard.deliver({name: files[name] for name in part})
    assert {row["id"]: row["name"] for row in shard.rows()} == wanted


@pytest.mark.parametrize("kind", ["dms-csv", "dms-parquet", "dms-json", "before-image"])
def test_an_update_with_its_key_before_it_deletes_the_old_row(feed: Feed, kind: str) -> None:
    keys = [
        ("I", 1, "a", None, None),
        ("U", 1, "a", 1, "a"),
        ("U", 2, "a", 1, "a"),
        ("U", 2, "", 2, "a"),
        ("D", 2, "", 2, ""),
    ]
    names = ("Op", "id", "kind", "BI_id", "BI_kind")
    rows = [dict(zip(names, key, strict=True)) | {"name": "x"} for key in keys]
    if kind == "dms-csv":
        cells = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
        feed.write("20260102-1.csv", "\n".join([",".join([*names, "name"]), *cells]))
    elif kind == "dms-parquet":
        pq.write_table(pa.Table.from_pylist(rows), feed.folder / "20260102-1.parquet")
    else:
        lines, operations = [], {"I": "insert", "U": "update", "D": "delete"}
        for row in rows:
            operation = operations[str(row.pop("Op"))]
            image = {"id": row.pop("BI_id"), "kind": row.pop("BI_kind")}
            fields = {f"BI_{name}": value for name, value in image.items()}
            given = {"before-image": image} if kind == "before-image" else {}
            metadata = {"record-type": "data", "operation": operation, "timestamp": "2026-01-02T06:00:00Z"}
            lines.append({"data": row | ({} if given else fields), **given, "metadata": metadata})
        feed.write("1.jsonl", "\n".join(map(json.dumps, lines)))
    columns = {"id": "bigint", "kind": "string", "name": "string"}
    found = records(feed, "dms-json" if kind == "before-image" else kind, columns=columns, key=["id", "kind"])
    assert not any(row[ERR_KIND] for row in found)
    assert [(row[OP], row["id"], row["kind"], row["name"]) for row in found] == [
        ("u", 1, "a", "x"),
        ("u", 1, "a", "x"),
        ("d", 1, "a", None),
        ("u", 2, "a", "x"),
        ("d", 2, "a", None),
        ("u", 2, "", "x"),
        ("d", 2, "", None),
    ]


@pytest.mark.parametrize("kind", ["dms-csv", "dms-parquet", "dms-json"])
@pytest.mark.parametrize("is_column", [True, False])
def test_a_column_of_the_table_is_no_key_before_an_update(feed: Feed, kind: str, is_column: bool) -> None:
    row = {"Op": "U", "id": 1, "name": "x", "BI_id": 7}
    if kind == "dms-csv":
        feed.write("20260102-1.csv", "\n".join(",".join(map(str, each)) for each in (row, row.values())))
    elif kind == "dms-parquet":
        pq.write_table(pa.Table.from_pylist([row]), feed.folder / "20260102-1.parquet")
    else:
        metadata = {"record-type": "data", "operation": "update", "timestamp": "2026-01-02T06:00:00Z"}
        feed.write("1.jsonl", json.dumps({"data": row, "metadata": metadata}))
    columns = {"id": "bigint", "name": "string"} | ({"BI_id": "bigint"} if is_column else {})
    found = records(feed, kind, columns=columns, source={"ignored": [] if is_column else ["BI_id"]})
    assert [(row[OP], row["id"], row.get("BI_id", 7)) for row in found] == [("u", 1, 7)]


def test_an_update_in_a_full_load_deletes_nothing(feed: Feed) -> None:
    feed.write("LOAD00000001.csv", "Op,id,name,BI_id\nU,1,a,7\n")
    found = records(feed, "dms-csv", columns={"id": "bigint", "name": "string"})
    assert [(row[OP], row["id"], row[ERR_KIND]) for row in found] == [("u", 1, "op")]


def test_a_control_record_deletes_nothing(feed: Feed) -> None:
    metadata = {"record-type": "control", "operation": "update"}
    feed.write("1.jsonl", json.dumps({"data": {"id": 1}, "before-image": {"id": 7}, "metadata": metadata}))
    assert [row[OP] for row in records(feed, "dms-json", columns={"id": "bigint", "name": "string"})] == ["s"]
