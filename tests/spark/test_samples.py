"""Real change events of public projects, decoded as a user would expect (see `expected.md` beside them).

The samples are not part of this repository: without them these tests are skipped, and the reason is printed.
"""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.location.mem import MemBlob
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_core.sources.files import FileSource
from persist_spark.decode.formats import decode
from persist_spark.frame import DELETE, OP, ORDER, TRUNCATE, UPSERT
from tests.spark.decode_feed import copies_beside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
PRODUCTS = {"id": "bigint", "name": "string", "description": "string", "weight": "double"}
CUSTOMERS = {"id": "bigint", "first_name": "string", "last_name": "string", "email": "string"}


class Reader:
    """Decodes samples, each alone in a folder; rows in the order that decides."""

    def __init__(self, spark: SparkSession, samples: Path, folder: Path) -> None:
        self.spark, self.samples, self.folder = spark, samples, folder

    def rows(
        self, name: str, columns: dict[str, Any], key: Any = "id", kind: str = "debezium-json", **more: Any
    ) -> list[Row]:
        shutil.copy(self.samples / name, self.folder / name)
        body = {
            "name": "t",
            "source": {"path": name, "format": kind, **more.pop("source", {})},
            "key": key,
            "columns": columns,
            "base_dir": str(self.folder),
        }
        config = CollectionConfig.model_validate(body | more)
        frozen = FileSource(config, MemBlob()).freeze(None, until=None).frozen
        frame = decode(self.spark, config, frozen.files, copies=copies_beside(self.folder))
        return [row.asDict() for row in frame.orderBy(ORDER).collect()]


@pytest.fixture
def reader(spark: SparkSession, samples: Path, tmp_path: Path) -> Reader:
    return Reader(spark, samples, tmp_path)


def end(rows: list[Row], key: str = "id") -> dict[Any, Row]:
    """The table after all rows: the last one of a key counts."""
    table: dict[Any, Row] = {}
    for row in rows:
        if row[OP] == TRUNCATE:
            table.clear()
        elif row[OP] == DELETE:
            table.pop(row[key], None)
        elif row[OP] == UPSERT and row[ERR_KIND] is None:
            table[row[key]] = row
    return table


@pytest.mark.parametrize("name", ["debezium_postgres_schema.jsonl", "debezium_postgres_no_schema.jsonl"])
def test_postgres_products(reader: Reader, name: str) -> None:
    rows = reader.rows(name, PRODUCTS)
    assert [row[ERR_KIND] for row in rows] == [None] * 16
    assert [row["id"] for row in rows] == [*range(101, 110), 106, 107, 110, 111, 110, 111, 111]
    table = end(rows)
    assert sorted(table) == list(range(101, 111))
    assert table[106]["description"] == "18oz carpenter hammer"
    assert (table[107]["weight"], table[110]["weight"]) == (5.1, 0.5)
    assert next(row["description"] for row in rows if row["id"] == 111).endswith(" ")
    assert rows[-1][OP] == DELETE


def test_replica_identity_default(reader: Reader) -> None:
    rows = reader.rows("debezium_postgres_replica_identity_default.jsonl", PRODUCTS)
    last_line = (reader.samples / "debezium_postgres_replica_identity_default.jsonl").read_bytes().splitlines()[15]
    assert [row[ERR_KIND] for row in rows] == [None] * 15 + ["key"]
    assert bytes(rows[15][ERR_PAYLOAD]) == last_line
    assert end(rows)[111]["weight"] == 5.17


def test_replica_identity_default_with_message_keys(reader: Reader, tmp_path: Path) -> None:
    name = "debezium_postgres_replica_identity_default.jsonl"
    lines = (reader.samples / name).read_text().splitlines()
    ids = [*range(101, 110), 106, 107, 110, 111, 110, 111, 111]
    keyed = [f'{{"key":{{"id":{number}}},"value":{line}}}' for number, line in zip(ids, lines, strict=True)]
    folder = tmp_path / "keyed"
    folder.mkdir()
    (folder / name).write_text("\n".join(keyed))
    rows = Reader(reader.spark, folder, tmp_path).rows(name, PRODUCTS)
    assert [row[ERR_KIND] for row in rows] == [None] * 16
    assert sorted(end(rows)) == list(range(101, 111))


def test_unwrapped_record(reader: Reader) -> None:
    columns = dict.fromkeys(("id", "purchaser", "quantity", "product_id"), "int") | {"order_date": "date"}
    name = "debezium_unwrapped_op_deleted_schema.jsonl"
    (row,) = reader.rows(name, columns, time={"field": "__source_ts_ms"})
    assert (row[OP], row["id"], row["order_date"]) == (UPSERT, 10003, date(2016, 2, 19))
    assert row["_persist_time"] == 1596309876678
    assert 33832960 in row[ORDER].asDict().values()


def test_postgres_create_update_delete_truncate_message(reader: Reader) -> None:
    rows = reader.rows("debezium_postgres_docs_c_u_d_t_m.jsonl", CUSTOMERS)
    assert Counter(row[OP] for row in rows) == Counter({"u": 2, "d": 1, "t": 1, "s": 1})
    ordered = [row[OP] for row in rows if row[OP] != "s"]
    assert ordered == ["u", "u", "d", "t"]
    assert [row["first_name"] for row in rows if row[OP] == "u"] == ["Anne", "Anne Marie"]
    assert [row["id"] for row in rows if row[OP] == "d"] == [1]
    assert end(rows) == {}
    assert not any(row[ERR_KIND] for row in rows)


def test_mysql_lifecycle(reader: Reader) -> None:
    rows = reader.rows("debezium_mysql_schema_lifecycle.jsonl", CUSTOMERS)
    assert not any(row[ERR_KIND] for row in rows)
    assert [row["id"] for row in rows] == [1001, 1002, 1003, 1004, 1005, 1004, 1006, 1005, 1006, 1006]
    table = end(rows)
    assert sorted(table) == [1001, 1002, 1003, 1004, 1005]
    assert table[1004]["first_name"] == "Anne1"
    assert table[1005]["last_name"] == "add2"


def test_mysql_all_types(reader: Reader) -> None:
    columns = {
        "_id": "int",
        "_numeric": "decimal(8,3)",
        "_decimal": "decimal(8,0)",
        "_big_decimal": "double",
        "_bigint_unsigned": "decimal(20,0)",
        "_bit": "decimal(20,0)",
        "_date": "date",
        "_datetime": "timestamp",
        "_datetime6": "timestamp",
        "_timestamp": "timestamp",
        "_time": "bigint",
        "_year": "int",
        "_bin": "binary",
        "_set": "string",
    }
    (row,) = reader.rows("debezium_mysql_schema_alltypes.jsonl", columns, key="_id")
    assert row[ERR_KIND] is None, row[ERR_MESSAGE]
    assert (row[OP], row["_id"]) == (UPSERT, 1)
    assert (row["_numeric"], row["_decimal"]) == (Decimal("12345.110"), Decimal(11111))
    assert row["_big_decimal"] == 2.2222222222222224e27
    assert row["_bit"] == 1991
    assert row["_date"] == date(2023, 3, 23)
    moments = {name: row[name].astimezone(UTC) for name in ("_datetime", "_datetime6", "_timestamp")}
    assert moments == {
        "_datetime": datetime(2023, 3, 23, 14, 30, 5, tzinfo=UTC),
        "_datetime6": datetime(2023, 3, 23, 14, 30, 5, 123456, tzinfo=UTC),
        "_timestamp": datetime(2023, 3, 23, 22, 0, 10, 123456, tzinfo=UTC),
    }
    assert (row["_time"], row["_year"], row["_set"]) == (36803000000, 2023, "a,b")
    assert bytes(row["_bin"]) == b"bytes".ljust(10, b"\x00")


def test_dms_over_kafka(reader: Reader) -> None:
    columns = {**PRODUCTS, "age": "int", "address": "string"}
    rows = reader.rows("aws_dms_kafka_json.jsonl", columns, kind="dms-json")
    assert not any(row[ERR_KIND] for row in rows)
    table = end(rows)
    assert sorted(table) == [102, 103, 104, 105, 107]
    assert table[105]["address"] == "Beijing"
    assert (table[103]["age"], table[103]["weight"], table[104]["age"]) == (None, None, None)
