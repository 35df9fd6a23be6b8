"""`source.rest`: fields without a column, of every format; and fields that come and go, in a run's report."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.contents.stats import BatchWarning
from persist_core.errors import FeedChanged
from persist_core.sample.fields import MISSING, NEW, FeedFields
from tests.sampling import sample
from tests.spark.decode_feed import Feed
from tests.spark.test_row_checks import things_with
from tests.spark.test_set_aside import UNTIL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {"id": "bigint", "name": "string", "more": "json"}
REST = {"source": {"rest": "more"}}
TEXTS = [
    "",
    "a",
    'q"u\\o',
    "5",
    "1.10",
    "true",
    "null",
    "[1,2]",
    '{"a": 1}',
    "ü€😀",
    "\n\t\u0001",
    ":",
    "a:b",
    ",",
    "}",
]
NUMBERS = ["0", "-1", "1.10", "12345678901234567890.123", "1e400", "2E-3", "-0.0"]


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path / "in")


def value(rng: random.Random, depth: int = 2) -> str:
    """Random JSON text, with blanks."""
    kind = rng.choice(["text", "number", "word", *["array", "object"] * (depth > 0)])
    if kind in ("array", "object"):
        items = [value(rng, depth - 1) for _ in range(rng.randrange(3))]
        if kind == "array":
            return f"[ {', '.join(items)}]"
        named = (f"{json.dumps(rng.choice(TEXTS) + str(at))} : {each}" for at, each in enumerate(items))
        return "{" + ", ".join(named) + " }"
    if kind == "text":
        return json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5)
    return rng.choice(NUMBERS) if kind == "number" else rng.choice(["true", "false", "null"])


def exact(text: str | None) -> Any:
    """JSON with its numbers as they were written."""
    return None if text is None else json.loads(text, parse_float=_as_written, parse_int=_as_written)


def _as_written(digits: str) -> tuple[str, str]:
    return "number", digits


@pytest.mark.parametrize("kind", sample(["json", "debezium-json", "message", "dms-json"], 2, "rest"))
def test_rest_has_all_other_fields_of_json_as_they_were_written(feed: Feed, kind: str) -> None:
    rng = random.Random(kind)
    rows = [{json.dumps(f"f{rng.randrange(9)}"): value(rng) for _ in range(rng.randrange(5))} for _ in range(60)]
    rows += [{json.dumps(text): value(rng)} for text in TEXTS]
    envelopes = {
        "json": "%s",
        "debezium-json": '{"op": "c", "before": null, "after": %s, "source": {"lsn": 1}, "ts_ms": 5}',
        "message": '{"key": {"id": 1}, "value": {"schema": null, "payload": {"op": "c", "after": %s, "ts_ms": 5}}}',
        "dms-json": '{"data": %s, "metadata": {"record-type": "data", "operation": "insert", "other": 1}}',
    }
    lines = []
    for number, row in enumerate(rows):
        cells = {'"id"': str(number), '"name"': '"x"', **row}
        lines.append(envelopes[kind] % ("{" + ", ".join(f"{name}: {each}" for name, each in cells.items()) + "}"))
    found = feed.lines(kind if kind != "message" else "debezium-json", lines, COLUMNS, **REST)
    assert [each["_persist_err_kind"] for each in found] == [None] * len(rows)
    for row, each in zip(rows, found, strict=True):
        expected = exact("{" + ", ".join(f"{name}: {row[name]}" for name in row) + "}")
        assert exact(each["more"]) == (expected or None)
        assert list(json.loads(each["more"] or "{}")) == sorted(expected)


@pytest.mark.parametrize("kind", ["debezium-json", "dms-json", "dms-csv"])
def test_rest_is_without_the_fields_of_the_connector(feed: Feed, kind: str) -> None:
    line = {
        "debezium-json": '{"id": 1, "name": "a", "x": "1", "__op": "u", "__deleted": "false", "__lsn": 5}',
        "dms-json": '{"data": {"id": 1, "name": "a", "BI_x": "1", "BI_id": 1}, "metadata": {"operation": "update"}}',
        "dms-csv": "Op,id,name,BI_x,BI_id\nU,1,a,1,1",
    }[kind]
    (found,) = feed.lines(kind, [line], COLUMNS, **REST)
    assert found["more"] == ('{"x":"1"}' if kind == "debezium-json" else '{"BI_x":"1"}')


def test_rest_is_without_fields_that_the_file_names(feed: Feed) -> None:
    columns = {"id": "bigint", "city": {"type": "string", "field": "address.city"}, "more": "json"}
    changes: dict[str, Any] = {
        "source": {"rest": "more", "ignored": ["x"]},
        "order": {"by": {"v": "bigint"}},
        "time": {"field": "ts"},
    }
    changes |= {"delete": {"column": "op", "values": ["D"]}}
    line = {"id": 1, "address": {"city": "B"}, "x": 1, "v": 2, "ts": 5, "op": "U", "y": [1.50], "more": "own"}
    (found,) = feed.lines("json", [json.dumps(line)], columns, **changes)
    assert (found["city"], found["more"]) == ("B", '{"more":"own","y":[1.5]}')
    twice = '{"id": 2, "op": "U", "ts": 5, "v": 1, "y": 7, "a": 0, "y": 6}'
    first, second = feed.lines("json", ['{"id": 1, "op": "U", "ts": 5, "v": 1}', twice], columns, **changes)
    assert (first["more"], second["more"]) == (None, '{"a":0,"y":7,"y":6}')


def test_rest_of_csv_and_parquet(feed: Feed) -> None:
    feed.write("a.csv", 'id,name,b,a\n1,x,"say ""hi""",007\n2,y,,\n')
    feed.write("b.csv", "id,name\n3,z\n")
    found = feed.records("csv", COLUMNS, order="position", **REST)
    assert [each["more"] for each in found] == ['{"a":"007","b":"say \\"hi\\""}', None, None]
    feed.folder = feed.folder.parent / "parquet"
    feed.folder.mkdir()
    table = pa.table({"id": [1, 2], "name": ["x", "y"], "n": [1.5, None], "l": [[1, 2], None]})
    pq.write_table(table, feed.folder / "a.parquet")
    found = feed.records("parquet", COLUMNS, order="position", **REST)
    assert [each["more"] for each in found] == ['{"l":[1,2],"n":1.5}', None]


def test_rest_of_parquet_keeps_each_digit_of_a_time(feed: Feed) -> None:
    at = datetime.datetime(2020, 1, 1, 12, 0, 0, 123456)
    cells = {
        "a_us": pa.array([at], pa.timestamp("us", "UTC")),
        "b_local": pa.array([at], pa.timestamp("us")),
        "c_ns": pa.array([-1], pa.timestamp("ns", "UTC")),
        "d_ns": pa.array([1_577_880_000_123_456_789], pa.timestamp("ns")),
        "e_day": pa.array([datetime.time(1, 2)], pa.time64("us")),
    }
    feed.folder.mkdir()
    nested = pa.array([{"at": at, "none": None}], pa.struct([("at", pa.timestamp("us")), ("none", pa.int8())]))
    pq.write_table(
        pa.table({"id": [1], "name": ["x"], "doc": nested, **cells}), feed.folder / "a.parquet", version="2.6"
    )
    (found,) = feed.records("parquet", {**COLUMNS, "doc": "json"}, order="position", **REST)
    assert json.loads(found["doc"]) == {"at": "2020-01-01T12:00:00.123456", "none": None}
    (found,) = feed.records("parquet", COLUMNS, order="position", **REST)
    assert json.loads(found["more"]) == {
        "doc": {"at": "2020-01-01T12:00:00.123456", "none": None},
        "a_us": "2020-01-01T12:00:00.123456Z",
        "b_local": "2020-01-01T12:00:00.123456",
        "c_ns": "1969-12-31T23:59:59.999999999Z",
        "d_ns": "2020-01-01T12:00:00.123456789",
    }


def test_a_text_of_rest_that_is_no_utf_8_is_an_err(feed: Feed) -> None:
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    feed.folder.mkdir()
    pq.write_table(pa.table({"id": [1], "name": ["x"], "odd": text}), feed.folder / "a.parquet")
    (found,) = feed.records("parquet", COLUMNS, order="position", **REST)
    assert found["_persist_err_kind"] is not None


def test_rest_keeps_a_field_with_the_name_of_a_mark(feed: Feed) -> None:
    (found,) = feed.lines(
        "json", ['{"id": 1, "name": "a", "Op": "D", "x": ["\ufdd3b", "say \\"\ufdd3"]}'], COLUMNS, **REST
    )
    assert json.loads(found["more"]) == {"Op": "D", "x": ["\ufdd3b", 'say "\ufdd3']}
    names = {"\ufdd3b": {"\ufdd3": "\ufdd3\ufdd3", '\ufdd3"\\': [1, "\ufdd3:"], '"\ufdd3': None}, "\ufdd3": "\ufdd3"}
    for is_ascii in (True, False):
        text = json.dumps({"id": 1, "name": "a", "x": [names], **names}, ensure_ascii=is_ascii)
        (found,) = feed.lines("json", [text], COLUMNS, **REST)
        assert json.loads(found["more"]) == {"x": [names], **names}


def test_a_run_reports_fields_without_a_column(spark: SparkSession, tmp_path: Path) -> None:
    things = things_with(tmp_path, {})
    row = {"balance": 1, "country": "DE"}
    things.drop("a.json", {"id": 1, **row, "x": 1}, {"id": 2, **row, "y": None})
    _, manifest = things.write(spark, description := things.mint(UNTIL))
    assert manifest.warnings == (BatchWarning(NEW, 0, ("x", "y")),)
    assert manifest.stats["warnings"] == 0
    things.commit(spark, description)


def test_a_file_says_that_no_field_may_come_or_go(spark: SparkSession, tmp_path: Path) -> None:
    source = {"path": "in/*", "format": "csv", "on_new_field": "fail", "missing_field": "fail", "ignored": ["x"]}
    things = things_with(tmp_path, {}, source=source)
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in/a.csv").write_text("id,balance,country,x\n1,1,DE,5\n")
    things.commit(spark, things.mint(UNTIL))
    (tmp_path / "in/b.csv").write_text("id,balance,y\n1,1,5\n")
    with pytest.raises(FeedChanged, match=f"{NEW}: y; {MISSING}: country. Nothing was committed"):
        things.write(spark, things.mint(2 * UNTIL))


def test_a_field_within_a_parquet_column_may_not_go(feed: Feed) -> None:
    """It is missing if its records would be null: dots in a name do not make a struct."""
    feed.folder.mkdir()
    columns = {"id": "bigint", "city": {"type": "string", "field": "a.b"}}
    for name, cell, missing in (("a", {"b": "B"}, []), ("a", {"c": "B"}, ["city"]), ("a.b", "B", ["city"])):
        pq.write_table(pa.table({"id": [1], name: [cell]}), feed.folder / "a.parquet")
        fields = FeedFields(feed.config("parquet", columns))
        (row,) = feed.records("parquet", columns, see=fields.see)
        assert ([*fields.missing], row["city"]) == (missing, None if missing else "B")


def test_csv_fields_of_one_name_are_all_kept(feed: Feed) -> None:
    feed.folder.mkdir()
    feed.write("1.csv", "id,name,b,b,,\n1,a,x,y,z,w\n")
    (found,) = feed.records("csv", COLUMNS, **REST)
    assert found["more"] == '{"":"z","4":"y","6":"w","b":"x"}'
    feed.write("1.csv", "id,4,b,b,name\n1,p,x,y,a\n")
    (found,) = feed.records("csv", COLUMNS, **REST)
    assert found["more"] == '{"4":"p","b":"x","b 4":"y"}', "4 is another field's name"
