"""`sequence` order from files to a shard: what decode makes of orders, what is staged, that arrival does not matter.

Of the feeds' own orders, `../shared/samples` has real ones: those tests are skipped without it.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from persist_core.compaction.merge import Merge, merge_here, replace_inputs
from persist_core.config.collection import FILES, CollectionConfig
from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, BatchManifest, PartKind, SourceFrontier
from persist_core.keys import manifest_key
from persist_core.location.mem import MemBlob
from persist_core.protocol.resolve import plan_resolve, resolve
from persist_core.schema import (
    ACTED,
    BEATEN_BY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_POSITION,
    INDEX_KIND,
    MISSING_ORDER,
    ORDER,
    order_type,
)
from persist_core.shard.state import Committed
from persist_core.sources.files import FileSource
from persist_spark.decode.files import BROKEN, DATE_MS, LINE, NAME
from persist_spark.decode.formats import decode
from persist_spark.decode.plain import json_records
from persist_spark.decode.records import decoded
from persist_spark.frame import BAD_KEY, DELETE, OP, SKIP
from persist_spark.merge import stage_merge
from persist_spark.read.frames import snapshot
from tests.core.protocol.log_source import of_log
from tests.spark.decode_feed import Feed, copies_beside
from tests.spark.staged_shard import SHARD, StagedShard

SEQUENCE = {"mode": "sequence", "by": {"lsn": "bigint"}}
COLUMNS = {"id": "bigint", "name": "string"}
PRODUCTS = {"id": "bigint", "name": "string", "description": "string", "weight": "double"}
CUSTOMERS = {"id": "bigint", "first_name": "string", "last_name": "string", "email": "string"}


class Collection:
    """A collection whose files are dropped by hand, one batch a call of `deliver`."""

    def __init__(self, spark: SparkSession, folder: Path, columns: dict[str, Any], kind: str, **settings: Any) -> None:
        self.folder = folder / "landing"
        self.folder.mkdir(parents=True)
        body = {
            "name": SHARD,
            "source": {"path": "*", "format": kind},
            "key": "id",
            "columns": columns,
            "base_dir": str(self.folder),
        }
        self.config = CollectionConfig.model_validate(body | settings)
        self.shard = StagedShard(spark, folder / "location", self.config.collection_schema())
        self.shard.sources = {FILES: SourceFrontier(FILES, {"files": 0, "segments": []})}

    def deliver(self, files: dict[str, str], **options: Any) -> BatchManifest:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        frozen = FileSource(self.config, MemBlob()).freeze(None, until=None).frozen
        frame = decode(self.shard.spark, self.config, frozen.files, copies=copies_beside(self.folder))
        return self.shard.commit(frame, self.shard.upper + 10, **options)

    def rows(self) -> list[dict[str, Any]]:
        return self.shard.snapshot()

    def state(self, manifest: BatchManifest, operator: str) -> list[dict[str, Any]]:
        found = []
        for artifact in manifest.operators[operator].artifacts:
            data = self.shard.blob.get(artifact.key)
            assert data is not None
            found += pq.read_table(pa.BufferReader(data)).to_pylist()
        return found


def put(id: int, lsn: Any, name: str = "x", op: str = "u") -> str:
    return json.dumps({"id": id, "name": name, "lsn": lsn, "op": op})


@pytest.fixture
def plain(spark: SparkSession, tmp_path: Path) -> Collection:
    marked = {"column": "op", "values": ["d"]}
    return Collection(spark, tmp_path, COLUMNS, "json", order={**SEQUENCE, "keep_deleted": "all"}, delete=marked)


@pytest.mark.family("histories in Spark")
def test_late_records_change_nothing_and_are_listed(plain: Collection, spark: SparkSession) -> None:
    first = plain.deliver({"a": "\n".join([put(1, 5, "new"), put(2, 6), put(2, 7, op="d"), put(3, "oops")])})
    assert first.counts.err_insertions == 1
    assert [(row[INDEX_KIND], row["id"], row[ORDER]["by0"]) for row in plain.state(first, ORDER_INDEX_OPERATOR)] == [
        ("deleted", 2, 7)
    ]
    second = plain.deliver(
        {"b": "\n".join([put(1, 4, "old"), put(2, 6, "back"), put(4, 1), put(1, 9, "new")])}, is_delta=True
    )
    assert [(row["id"], row["name"]) for row in plain.rows()] == [(1, "new"), (4, "x")]
    assert (second.stats["late"], second.operators[ORDER_INDEX_OPERATOR].is_delta) == (1, True)
    (late,) = plain.state(second, LATE_OPERATOR)
    assert (late["id"], late[OP], late[ORDER]["by0"], late[BEATEN_BY]["by0"]) == (2, "u", 6, 7)
    assert late[ORDER]["file"] == "b"
    assert late[ACTED] == 19
    assert [(row[INDEX_KIND], row["id"], row[ORDER]["by0"]) for row in plain.state(second, ORDER_INDEX_OPERATOR)] == [
        ("raised", 1, 9)
    ]
    third = plain.deliver({"c": "\n".join([put(1, 8, "late"), put(2, 8, "again")])}, is_delta=False)
    kinds = sorted((row[INDEX_KIND], row["id"]) for row in plain.state(third, ORDER_INDEX_OPERATOR))
    assert kinds == [("deleted", 2), ("in_row", 2), ("raised", 1)], "what counted before, and the delta"
    fourth = plain.deliver({"d": put(5, 1)}, is_delta=False)
    kinds = sorted((row[INDEX_KIND], row["id"]) for row in plain.state(fourth, ORDER_INDEX_OPERATOR))
    assert kinds == [("raised", 1)], "a full state has what still counts"
    assert len(plain.state(third, LATE_OPERATOR)) == 2
    assert sorted(snapshot(spark, plain.shard.location, SHARD).columns) == ["id", "name"]
    orders = [
        pq.read_table(pa.BufferReader(plain.shard.blob.get(part.key) or b"")).column(ORDER)
        for part in third.parts
        if part.kind is PartKind.INSERTIONS
    ]
    assert [column.type for column in orders] == [order_type(plain.shard.schema)]
    assert [row["by0"] for column in orders for row in column.to_pylist()] == [8]


@pytest.mark.family("histories in Spark")
def test_a_record_without_an_order_is_an_err_of_its_own(plain: Collection) -> None:
    plain.deliver({"a": put(1, 5, "kept")})
    for name, lsn in (("b", None), ("c", "5x")):
        plain.deliver({name: put(1, lsn, "lost", op="d")})
    errors = plain.shard.client.open_reader(SHARD).errors().to_pylist()
    assert [row[ERR_KIND] for row in errors] == [MISSING_ORDER] * 2
    assert [row["id"] for row in errors] == [None, None]
    assert sorted(row[ERR_MESSAGE] for row in errors) == [
        "order field 'lsn' is '5x'; expected bigint",
        "order field 'lsn' is missing or null; expected bigint",
    ]
    assert [row["name"] for row in plain.rows()] == ["kept"]
    resolved = resolve(plain.shard.client, plan_resolve(plain.shard.client, SHARD, at="b, *"), writer="test")
    assert isinstance(resolved, Committed)
    plain.shard.upper, plain.shard.epoch = plain.shard.upper + 1, plain.shard.epoch + 1
    last = plain.deliver({"b": "\n".join([put(1, 4, "late"), put(1, None, "lost", op="d")]), "d": put(1, None)})
    assert (last.stats["late"], last.stats["errors"], last.counts.err_insertions) == (1, 2, 2)
    places = sorted(each.position for each in plan_resolve(plain.shard.client, SHARD).records)
    assert places == ["b, line 2", "c, line 1", "d, line 1"]


@pytest.mark.family("commands")
def test_orders_are_typed_and_tombstones_repeat_their_delete(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path / "feed")
    delete = {"before": {"id": 1}, "source": {"connector": "postgresql", "lsn": 12}, "op": "d"}
    feed.write("a", "\n".join([json.dumps({"key": {"id": 1}, "value": value}) for value in (delete, None)]))
    (tombstone, found) = feed.records("debezium-json", COLUMNS)
    assert (found[OP], found[ORDER]["by1"], found[BAD_KEY]) == (DELETE, 12, None)
    assert (tombstone[OP], tombstone[ERR_KIND]) == (SKIP, None)
    by = {"source.ts_ms": {"type": "timestamp", "unit": "ms"}}
    (row,) = Feed(spark, tmp_path / "typed").lines(
        "debezium-json",
        ['{"after": {"id": 1, "name": "n"}, "source": {"ts_ms": 1500}, "op": "c"}'],
        COLUMNS,
        order={"mode": "sequence", "by": by},
    )
    assert row[ORDER]["by0"].timestamp() == 1.5
    (row,) = Feed(spark, tmp_path / "dms").lines(
        "dms-json",
        ['{"data": {"id": 1}, "metadata": {"operation": "insert", "timestamp": "2024-01-01T00:00:01.5Z"}}'],
        COLUMNS,
        order={"mode": "sequence"},
    )
    assert row[ORDER]["by0"].isoformat().startswith("2024-01-01T00:00:01.5")


@pytest.mark.family("histories in Spark")
def test_orders_of_any_year_are_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    """The time of forgetting is a literal in the plan, of which PySpark makes other days and times, or none."""
    order = {"mode": "sequence", "by": {"day": "date", "at": "timestamp"}}
    marked = {"column": "op", "values": ["d"]}
    shard = Collection(spark, tmp_path, COLUMNS, "json", order=order, delete=marked)
    for name, at, op in (("a", "1582-10-10T00:00:00.5Z", "d"), ("b", "1582-10-10T00:00:00.4Z", "u")):
        line = json.dumps({"id": 1, "name": "x", "day": "0002-01-01", "at": at, "op": op})
        stats = shard.deliver({name: line}, keep_deleted_ms=0).stats
    assert (stats["late_beyond_memory"], stats["inserts"]) == (1, 1)


@pytest.mark.parametrize("is_by_spark", [True, False], ids=["Spark", "this process"])
@pytest.mark.family("histories in Spark")
def test_a_merge_keeps_orders(plain: Collection, spark: SparkSession, is_by_spark: bool) -> None:
    plain.deliver({"a": put(1, 5, "first")})
    plain.deliver({"b": "\n".join([put(1, 7, "newer"), put(2, None)])})
    client = plain.shard.client
    merge, attempt = Merge.of(client, client.state(SHARD), client.state(SHARD).batches), client.ids.uuid7()
    if is_by_spark:
        replace_inputs(client, stage_merge(spark, client, merge, attempt), manifest_key(SHARD, attempt))
    else:
        merge_here(client, merge, attempt=attempt)
    assert len(client.state(SHARD).batches) == 1
    assert plain.deliver({"c": put(1, 6, "late")}).stats["late"] == 1
    assert [row["name"] for row in plain.rows()] == ["newer"]


@pytest.mark.parametrize(
    ("sample", "columns"),
    [("debezium_postgres_schema.jsonl", PRODUCTS), ("debezium_mysql_schema_lifecycle.jsonl", CUSTOMERS)],
    ids=["postgres", "mysql"],
)
def test_a_sample_in_any_order_ends_as_the_ordered_one(
    spark: SparkSession,
    tmp_path: Path,
    samples: Path,
    persist_seed: int,
    sample: str,
    columns: dict[str, str],
) -> None:
    lines = (samples / sample).read_text().splitlines()
    dice = random.Random(f"{persist_seed}/{sample}")
    ordered = Collection(spark, tmp_path / "ordered", columns, "debezium-json")
    ordered.deliver({"all": "\n".join(lines)})
    shuffled = Collection(spark, tmp_path / "shuffled", columns, "debezium-json")
    again = [*lines, *dice.sample(lines, len(lines) // 2)]
    dice.shuffle(again)
    cut = dice.randint(1, len(again) - 1)
    late = 0
    for name, batch in (("b", again[:cut]), ("a", again[cut:])):
        late += shuffled.deliver({name: "\n".join(batch)}, is_delta=True).stats["late"]
    assert shuffled.rows() == ordered.rows()
    assert ordered.rows()
    assert shuffled.shard.client.open_reader(SHARD).errors().num_rows == 0


def test_a_record_has_the_position_of_its_source(spark: SparkSession, tmp_path: Path) -> None:
    """Records with partition and offset, as a reader of a log gives them: their orders, and the errs without one."""
    body = {"name": "t", "source": {"path": "*", "format": "json"}, "key": "id", "columns": COLUMNS, "delete": "none"}
    config = of_log(CollectionConfig.model_validate({**body, "order": SEQUENCE, "base_dir": str(tmp_path)}))
    lines = [(put(1, 5), None, "log", False, 3, 17), (put(1, None), None, "log", False, 3, 18)]
    given = f"{LINE} string, {DATE_MS} bigint, {NAME} string, {BROKEN} boolean, p0 bigint, p1 bigint"
    raw, at = json_records(config, spark.createDataFrame(lines, given)), F.format_string("%s, offset %d", NAME, "p1")
    good, bad = decoded(config, raw, at).orderBy(f"{ORDER}.offset").collect()
    assert good[ORDER].asDict() == {"by0": 5, "partition": 3, "offset": 17}
    assert (good[ERR_KIND], bad[ERR_KIND]) == (None, MISSING_ORDER)
    assert (good[ERR_POSITION], bad[ERR_POSITION]) == (None, "log, offset 18")
    assert bad[BAD_KEY] == b'missing_order {"partition":3,"offset":18}'
