"""CSV records of several lines: as a writer made them, whatever lies beside them, at the line where they begin."""

from __future__ import annotations

import csv
import gzip
import io
import random

import pytest

from persist_core.schema import ERR_KIND, ERR_PAYLOAD, ERR_POSITION
from persist_spark.frame import OP
from tests.sampling import sample
from tests.spark.decode_feed import Feed

COLUMNS = {"id": "bigint", "text": "string", "note": "string"}


@pytest.mark.parametrize("seed", sample(range(12), 3, "csv with line breaks"))
def test_texts_with_line_breaks_come_back(feed: Feed, seed: int) -> None:
    rng = random.Random(seed)
    letters = ["a", "ü", "\n", "\r\n", '"', ",", "2,b,c", " ", "\t", *"\ufdd3\ufdd4\ufdd5"]
    ending, number, expected = rng.choice(["\n", "\r\n"]), 0, []
    has_header = rng.random() < 0.5
    for name in ("1.csv", "2.csv.gz", "3.csv"):
        text = io.StringIO(newline="")
        out = csv.writer(text, lineterminator=ending, quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        if has_header:
            out.writerow(COLUMNS)
        for _ in range(rng.randint(1, 30)):
            number += 1
            row = (number, *("x" + "".join(rng.choices(letters, k=rng.randint(0, 9))) for _ in range(2)))
            out.writerow(row)
            expected.append(row)
        data = text.getvalue().encode()
        feed.write(name, gzip.compress(data) if name.endswith(".gz") else data)
    rows = feed.records("csv", COLUMNS, source={"header": has_header})
    assert [(row["id"], row["text"], row["note"]) for row in rows] == expected
    assert {row[ERR_KIND] for row in rows} == {None}


def test_lines_within_a_record_change_no_other_row(feed: Feed) -> None:
    feed.write("1.csv", b'id,text,note\n1,"a\n2,b,c\nd",e\n3,\xff"\n4,"f\r\ng",h\n')
    rows = feed.records("csv", COLUMNS, order="position")
    assert [(row["id"], row["text"], row["note"]) for row in rows] == [
        (1, "a\n2,b,c\nd", "e"),
        (3, None, None),
        (4, "f\r\ng", "h"),
    ]
    assert [(row[ERR_KIND], row[ERR_POSITION], row[ERR_PAYLOAD]) for row in rows if row[ERR_KIND]] == [
        ("value", "1.csv, line 5", bytearray(b'3,\xff"'))
    ]


def test_a_text_may_hold_what_marks_a_line_break(feed: Feed) -> None:
    texts = ["\ufdd3", "\ufdd3\ufdd4", "\ufdd3\ufdd5\ufdd4", "\ufdd3\ufdd3\ufdd5"]
    lines = "".join(f'{at},{text},"{text}{{0}}{text}"\n' for at, text in enumerate(texts))
    for name, between in (("1.csv", "\n"), ("2.csv", "")):
        feed.write(name, "id,text,note\n" + lines.format(between) + f'x,"{texts[1]}{between}",\n')
    rows = feed.records("csv", COLUMNS, order="position")
    for between, found in (("\n", rows[:5]), ("", rows[5:])):
        assert [(row["text"], row["note"]) for row in found[:4]] == [(text, text + between + text) for text in texts]
        assert found[4][ERR_PAYLOAD].decode() == f'x,"{texts[1]}{between}",'


def test_an_err_holds_its_record_with_its_line_breaks(feed: Feed) -> None:
    feed.write("1.csv", b'id,text,note\nx,"a\nb\xff",c\n')
    (row,) = feed.records("csv", COLUMNS)
    assert (row[ERR_KIND], row[ERR_POSITION], row[ERR_PAYLOAD]) == (
        "key",
        "1.csv, line 2",
        bytearray(b'x,"a\nb\xff",c'),
    )


def test_dms_csv_without_a_header_and_with_line_breaks(feed: Feed) -> None:
    feed.write("1.csv", 'I,1,"a\nb",c\nD,1,"a\nb",c\nU,2,"NULL\n",NULL\n')
    rows = feed.records("dms-csv", COLUMNS, source={"header": False}, order="position")
    assert [(row[OP], row["id"], row["text"], row["note"]) for row in rows] == [
        ("u", 1, "a\nb", "c"),
        ("d", 1, None, None),
        ("u", 2, "NULL\n", None),
    ]


def test_a_header_of_two_lines_is_one(feed: Feed) -> None:
    feed.write("1.csv", 'id,"not\nread",text\n1,0,a\nid,"not\nread",text\n2,,"b\nc"\n')
    rows = feed.records("csv", {"id": "bigint", "text": "string"})
    assert [(row["id"], row["text"]) for row in rows] == [(1, "a"), (2, "b\nc")]
    feed.write("1.csv", '\ufeff"not\nread",id,text\n0,1,a\n,2,"b\nc"\n')
    assert [(row["id"], row["text"]) for row in feed.records("csv", {"id": "bigint", "text": "string"})] == [
        (1, "a"),
        (2, "b\nc"),
    ]


def test_a_line_break_far_from_the_start_of_a_file_is_found(feed: Feed) -> None:
    """Spark looks for it in a file that is longer than what is read of its start; so it does in the file beside it."""
    filler = "".join(f'{number},"{"x" * 1000}",y\n' for number in range(1100))
    for name, end in (("1.csv", '5000,"a\n1,b,c\nd",e\n'), ("2.csv", "5001,f,g\n")):
        feed.write(name, "id,text,note\n" + filler + end)
    rows = feed.records("csv", COLUMNS, order="position")
    assert [(row["id"], row["text"]) for row in rows if row["id"] >= 5000] == [(5000, "a\n1,b,c\nd"), (5001, "f")]
    assert (len(rows), {row[ERR_KIND] for row in rows}) == (2202, {None})
