"""The starts of CSV files: blank lines, headers, long records. And fields that look like the decoder's marks."""

from __future__ import annotations

import pytest

from persist_core.errors import UnreadableFiles
from persist_core.schema import ERR_KIND, ERR_MESSAGE
from persist_spark.decode.csv import MAX_FIELDS, MISCOUNTED
from tests.spark.decode_feed import Feed

MIB = 1 << 20


@pytest.mark.family("decoders")
@pytest.mark.parametrize("text", ["\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd4", "\\n", "\\u000a", "null", "\x00"])
@pytest.mark.parametrize("is_joined", [False, True])
def test_only_an_empty_csv_field_is_null(feed: Feed, is_joined: bool, text: str) -> None:
    broken = '"x\ny"' if is_joined else "x"
    feed.write("1.csv", f'id,name,more\n1,{text},{broken}\n2,"{text}",x\n3,,x\n4,"",x\n{text},a,x\n')
    rows = feed.records("csv", {"id": "string", "name": "string", "more": "string"})
    assert [(row["id"], row["name"]) for row in rows] == [("1", text), ("2", text), ("3", None), ("4", ""), (text, "a")]
    assert [row[ERR_KIND] for row in rows] == [None] * 5


@pytest.mark.family("sizes")
@pytest.mark.parametrize("blank", ["\n", "\r\n", " \n", "\ufeff\n\n", "\t \r\n"])
def test_a_csv_file_may_start_with_many_blank_lines(feed: Feed, blank: str) -> None:
    for lines in (3, MIB, MIB + 1):
        feed.write("1.csv", blank + blank.strip("\ufeff") * lines + "id,name\n1,a\n" + "x" * 5 + ",b\n")
        rows = feed.records("csv", {"id": "bigint", "name": "string"})
        assert [(row["id"], row["name"], row[ERR_KIND]) for row in rows if row["name"]] == [(1, "a", None)]
        assert [row[ERR_KIND] for row in rows] == [None, "key"]


@pytest.mark.family("sizes")
@pytest.mark.parametrize("size", [MIB - 5, MIB, 3 * MIB])
@pytest.mark.parametrize("header", [True, False])
def test_a_first_csv_record_may_be_long(feed: Feed, header: bool, size: int) -> None:
    columns = {"id": "bigint", "name": "string", "more": "string"}
    for text in ("x" * size, "x\n" * (size // 2)):
        field = f'"{text}"' if "\n" in text else text
        first = f"id,name,{field}\n1,a,z\n" if header else f"1,a,{field}\n"
        feed.write("1.csv", f"{first}2,b,y\n")
        rows = feed.records("csv", columns, source={"header": header})
        assert [(row["id"], row["name"], row[ERR_KIND]) for row in rows] == [(1, "a", None), (2, "b", None)]
        assert [row["more"] for row in rows] == ([None, None] if header else [text, "y"])


def test_csv_files_that_were_joined_have_many_headers(feed: Feed) -> None:
    text = "\ufeffid,name\r\n{0},a\r\n"
    feed.write("1.csv", "".join(text.format(at) for at in range(3)))
    feed.write("2.csv", text.format(3) + "id,name\r\n4,a\r\n")
    feed.write("3.csv", "id,name\n5,a\n" + text.format(6).replace("\r", ""))
    rows = feed.records("csv", {"id": "bigint", "name": "string"})
    assert [(row["id"], row[ERR_KIND]) for row in rows] == [(at, None) for at in range(7)]


def test_a_nul_in_a_quoted_csv_field_is_kept(feed: Feed) -> None:
    """Also at the end of a line, and beside quotes, where Spark's parser goes by single characters."""
    feed.write("1.csv", 'id,name\n1,"a\0b"\n2,"a""\0""b"\n3,"\0"\n4,a\0\n5,"\0""\0"\n')
    rows = feed.records("csv", {"id": "string", "name": "string"})
    assert [row["name"] for row in rows] == ["a\0b", 'a"\0"b', "\0", "a\0", '\0"\0']
    assert [row[ERR_KIND] for row in rows] == [None] * 5


def test_a_csv_line_of_many_fields_is_an_err_of_its_own(feed: Feed) -> None:
    """Spark's parser fails at one, in any mode: the feed would stop there at each run."""
    commas = ("," * 30_000, "," * MAX_FIELDS)
    feed.write("1.csv", f'id,name\n1,a\n2{commas[0]}\n3{commas[1]}\n4,"{commas[0]}"\n5,b\n')
    rows = feed.records("csv", {"id": "string", "name": "string"})
    assert [row[ERR_KIND] for row in rows] == [None, "key", "key", None, None]
    assert [row["name"] for row in rows] == ["a", None, None, commas[0], "b"]
    assert {row[ERR_MESSAGE] for row in rows[1:3]} == {MISCOUNTED}


def test_a_csv_header_of_many_fields_is_not_read(feed: Feed) -> None:
    feed.write("1.csv", f"id,name{',x' * 30_000}\n1,a\n")
    with pytest.raises(UnreadableFiles, match="its first line has 30002 fields; expected at most 20480"):
        feed.records("csv", {"id": "string", "name": "string"})
