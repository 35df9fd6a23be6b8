"""Every err knows where its source has the record: file and line, or row; through all that a shard does with errs."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.compaction.merge import Merge, merge_here
from persist_core.protocol.fork import fork
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.schema import DIFF, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION
from persist_core.shard.state import Committed
from persist_spark.frame import ORDER
from persist_spark.read.frames import errors
from persist_spark.session import use
from tests.spark.decode_feed import Feed
from tests.spark.test_write_job import DAY_MS, Collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: dict[str, Any] = {"id": "int"}
BAD = '{"id":'


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    (tmp_path / "in").mkdir()
    return Feed(spark.newSession(), tmp_path / "in")


def positions(feed: Feed, kind: str = "json", **changes: Any) -> list[str | None]:
    return sorted(row[ERR_POSITION] for row in feed.records(kind, COLUMNS, **changes) if row[ERR_MESSAGE] is not None)


def numbered(count: int, bad: int) -> str:
    """So many lines, of which every fifth is blank; line `bad`, from 1 on, is truncated."""
    lines = [" " * (number % 2) if number % 5 == 0 else f'{{"id":{number}}}' for number in range(1, count + 1)]
    lines[bad - 1] = BAD
    return "\n".join(lines) + "\n"


def test_a_line_is_counted_in_its_own_file_whatever_else_is_read(feed: Feed) -> None:
    """Small files, which Spark would read many a task, plain and compressed, beside a CSV of several headers."""
    wanted = []
    for number in range(12):
        feed.write(f"day={number}/part.jsonl", numbered(30, 7 + number))
        wanted.append(f"day={number}/part.jsonl, line {7 + number}")
    feed.write("x.jsonl.gz", gzip.compress(numbered(400, 333).encode()))
    feed.write("y.jsonl.bz2", bz2.compress(numbered(400, 101).encode()))
    assert positions(feed) == sorted([*wanted, "x.jsonl.gz, line 333", "y.jsonl.bz2, line 101"])


def test_lines_of_csv_are_counted_with_the_header(feed: Feed) -> None:
    feed.write("a.csv", "id,name\n1,a\r\n\nx,b\n")
    feed.write("b.csv", "\nname,id\nc,y\n")
    assert positions(feed, "csv") == ["a.csv, line 4", "b.csv, line 3"]


def test_rows_of_parquet_count_from_0(feed: Feed) -> None:
    for name, ids in (("a", ["1", "x"]), ("b", ["y", "2", "z"])):
        pq.write_table(pa.table({"id": ids}), feed.folder / f"{name}.parquet", row_group_size=2)
    assert positions(feed, "parquet") == ["a.parquet, row 1", "b.parquet, row 0", "b.parquet, row 2"]


def test_a_line_of_a_later_block_counts_from_a_byte(feed: Feed) -> None:
    text = numbered(20_000, 15_000).replace('{"id":', '{"pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxx","id":')
    feed.write("a.jsonl", text)
    use(feed.spark, {"spark.sql.files.maxPartitionBytes": "64k", "spark.sql.files.openCostInBytes": "1k"})
    (found,) = positions(feed)
    assert found is not None
    name, line, byte = found.replace(" after byte ", ", line ").split(", line ")
    assert name == "a.jsonl"
    assert int(byte) > 0
    after = text.encode()[int(byte) :].split(b"\n")[1:]  # as `tail -c +BYTE+1 | sed 1d` has it
    assert after[int(line) - 1].decode() == '{"pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxx","id":'


def test_a_line_that_cannot_be_counted_is_not_named(feed: Feed) -> None:
    for number in range(65):
        feed.write(f"{number:02}.jsonl", BAD)
    assert positions(feed) == [f"{number:02}.jsonl" for number in range(65)]


def test_a_stored_position_is_the_records_own(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or beside many files, small and large: a replay reads a file with others than the run did."""
    monkeypatch.setattr("persist_spark.decode.files._APART_BYTES", 64 << 10)
    feed.write("a.jsonl", numbered(20_000, 9_999))
    feed.write("b.jsonl.gz", gzip.compress(numbered(400, 333).encode()))
    is_ours = f"coalesce(id, 0) >= 0 AND coalesce({ERR_POSITION}, '') NOT LIKE '%c.jsonl%'"
    sequence: dict[str, Any] = {"mode": "sequence", "by": ["id"]}

    def places() -> list[tuple[Any, ...]]:
        frame = feed.frame("json", COLUMNS, order=sequence).where(is_ours)
        return sorted(map(tuple, frame.select("id", f"{ORDER}.*", ERR_MESSAGE, ERR_POSITION).collect()), key=str)

    alone = places()
    assert {row[3] for row in alone} == {block << 16 for block in range(4)}
    for number in range(80):
        feed.write(f"{number:02}c.jsonl", f'{{"id":-1}}\n{BAD}\n')
    assert places() == alone


@pytest.mark.family("commands")
def test_a_late_record_has_its_position_and_its_bytes(spark: SparkSession, tmp_path: Path) -> None:
    collection = Collection(tmp_path)
    time = collection.config.time.model_copy(update={"late": "error"})
    collection.config = collection.config.model_copy(update={"time": time})
    collection.drop("a.jsonl", {"id": 1, "name": "a", "at": 5})
    collection.run(spark, DAY_MS)
    lines = ['{"id":2,"name":"b","at":86400000}\n', '{"id":3, "name":"late","at":6,"more":[1.10]}']
    collection.drop("b.jsonl", *lines)
    collection.run(spark, 2 * DAY_MS)
    assert where(collection) == ["b.jsonl, line 2"]
    (payload,) = collection.client.open_reader("things").errors()[ERR_PAYLOAD].to_pylist()
    assert payload == lines[1].encode()


def where(collection: Collection, shard: str = "things") -> list[str | None]:
    return sorted(collection.client.open_reader(shard).errors()[ERR_POSITION].to_pylist())


@pytest.mark.family("commands")
def test_positions_go_through_stash_restore_fork_and_merge(spark: SparkSession, tmp_path: Path) -> None:
    collection = Collection(tmp_path)
    client, columns = collection.client, collection.config.columns
    changes: dict[str, Any] = {
        "limits": collection.config.limits.model_copy(update={"max_errors": None}),
        "columns": {**columns, "name": columns["id"]},
    }
    collection.config = collection.config.model_copy(update=changes)
    bad = {"id": 1, "name": ["a list"], "at": 5}
    waits = json.dumps({"id": 2, "name": {"an": "object"}, "at": DAY_MS + 5})
    collection.drop("a.jsonl", {"id": 3, "name": "good", "at": 5}, bad, waits + "\n", "not json\n")
    collection.run(spark, DAY_MS)
    seen = ["a.jsonl, line 1", "a.jsonl, line 2", "a.jsonl, line 4"]
    assert where(collection) == seen
    collection.run(spark, 2 * DAY_MS)
    seen = sorted([*seen, "a.jsonl, line 3"])
    assert where(collection) == seen, "the stash lost it"
    first = client.state("things").commits[0].checkpoint_id
    fork(client, "things", first, "twin", writer="test")
    assert where(collection, "twin") == [each for each in seen if each != "a.jsonl, line 3"]
    collection.drop("b.jsonl", {"id": 1, "name": 7, "at": 2 * DAY_MS})
    collection.run(spark, 3 * DAY_MS)
    healed = client.open_reader("things").error_changes(2 * DAY_MS - 1).to_pylist()
    assert [(each[ERR_POSITION], each[DIFF]) for each in healed] == [("a.jsonl, line 2", -1)]
    plan = plan_restore(client, "things", client.state("things").commits[1].checkpoint_id)
    assert isinstance(plan, RestorePlan)
    assert isinstance(restore(client, plan, writer="test"), Committed)
    assert where(collection) == seen
    merge_here(
        client, Merge.of(client, client.state("things"), client.state("things").batches), attempt=client.ids.uuid7()
    )
    assert len(client.state("things").batches) == 1
    assert where(collection) == seen
    assert sorted(row[ERR_POSITION] for row in errors(spark, collection.location, "things").collect()) == seen
