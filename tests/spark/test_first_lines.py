"""First lines of CSV files, and schemas, that would hide records or deletes: the file is named, and not read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.errors import UnreadableFiles
from persist_spark.frame import OP
from tests.spark.decode_feed import Feed

COLUMNS = {"id": "bigint", "name": "string"}


HIDING = {
    "name,price\na,1\n": "first line has no field 'id' for the key, only name, price",
    "1,a,1.50,2026-01-02\n": "no field 'id' for the key, only 1, a, 1.50",
    "id;name\n": "no field 'id' for the key, only id;name",
    "ID,name\n1,a\n": "no field 'id' for the key, only ID, name",
    "id,name\r1,a\r2,b\r": "a CR is in its first line",
    "id,name\r\r\n1,a\r\r\n": "a CR is in its first line",
}


@pytest.mark.parametrize("text", HIDING)
def test_a_first_line_of_csv_that_may_hide_records(feed: Feed, text: str) -> None:
    feed.write("1.csv", text)
    with pytest.raises(UnreadableFiles, match=HIDING[text]):
        feed.records("csv", COLUMNS)


def test_only_the_files_own_header_is_one_further_down(feed: Feed) -> None:
    feed.write("1.csv", "id,name\n1,a\nid,name\n2,b\n")
    feed.write("2.csv", '"id",name\nid,name\n')
    rows = feed.records("csv", {"id": "string", "name": "string"})
    assert [(row["id"], row["name"]) for row in rows] == [("1", "a"), ("2", "b"), ("id", "name")]


@pytest.mark.parametrize("kind", ["dms-csv", "dms-parquet"])
def test_an_op_in_another_case_is_no_full_load(feed: Feed, kind: str) -> None:
    table = pa.table({"op": ["D"], "id": [1], "name": ["a"]})
    feed.write("1.csv", "op,id,name\nD,1,a\n") if kind == "dms-csv" else pq.write_table(table, feed.folder / "1.x")
    with pytest.raises(UnreadableFiles, match="it has a column 'op', and no 'Op': rename it if it is the operation"):
        feed.records(kind, COLUMNS)
    (row,) = feed.records(kind, COLUMNS, source={"ignored": ["op"]})
    assert (row[OP], row["id"]) == ("u", 1)


def test_dms_csv_without_header_and_a_new_field(feed: Feed) -> None:
    feed.write("change-1.csv", "U,x,a2,new\nD,y,b,new\n")
    rows = feed.records("dms-csv", {"id": "string", "name": "string"}, source={"header": False})
    assert [(row[OP], row["id"], row["name"]) for row in rows] == [("u", "x", "a2"), ("d", "y", None)]


def test_a_parquet_file_without_columns(feed: Feed) -> None:
    """As pandas writes a frame that nothing was put in."""
    pq.write_table(pa.table({}), feed.folder / "1.parquet")
    pq.write_table(pa.table({"id": [2], "name": ["b"]}), feed.folder / "2.parquet")
    assert [row["id"] for row in feed.records("parquet", COLUMNS)] == [2]


def test_no_record_hides_behind_a_cr_in_a_file_without_a_header(feed: Feed) -> None:
    feed.write("1.csv", "1,a\r2,b\r3,c\r")
    with pytest.raises(UnreadableFiles, match="a CR is in its first line"):
        feed.records("csv", COLUMNS, source={"header": False})
    feed.write("1.csv", "1\r2\r3\r")
    with pytest.raises(UnreadableFiles, match="a CR is in its first line"):
        feed.records("csv", {"id": "bigint"}, source={"header": False})
    feed.write("1.csv", '1,"a\rb",new\n2,c,new\n')  # in a value
    rows = feed.records("csv", COLUMNS, source={"header": False})
    assert [(row["id"], row["name"]) for row in rows] == [(1, "a\rb"), (2, "c")]
