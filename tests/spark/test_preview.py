"""`persist preview`: what a run of the sample gives, mistakes as a user sees them, and nothing written."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.errors import StorageError
from persist_core.handles.client import PersistClient
from persist_core.inspection.rows import in_key_order
from persist_core.inspection.values import json_rows
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.sample.found import found_by
from persist_core.sample.preview import Preview, lines_of, preview
from persist_core.sample.propose import propose
from persist_core.spark_job.launch import Ended, Start, write_batch
from persist_spark import __main__ as job
from tests.core.sources.bucket import Bucket
from tests.one_run import run_one
from tests.sampling import sample

ROOT = Path(__file__).parents[2]
US = 1_767_225_600_000_000  # 2026-01-01
Look = Callable[..., Preview]


@pytest.fixture
def client(tmp_path: Path) -> PersistClient:
    location = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    return PersistClient(open_location(location))


def starter(spark: SparkSession) -> Callable[[PersistLocation], Start]:
    """Runs jobs in this process's Spark."""

    def of(location: PersistLocation) -> Start:
        def start(items: Any, _: Any) -> Ended:
            with open_location(location) as opened:
                for item in items:
                    job.run_item(spark, item, opened)
            return Ended("it ran here")

        return start

    return of


@pytest.fixture
def look(spark: SparkSession, client: PersistClient) -> Look:
    def look(config: CollectionConfig, limit: int = 1_000, rows: int = 1_000) -> Preview:
        before = stored(client)
        found = preview(client, config, starter(spark), limit=limit, rows=rows)
        assert stored(client) == before
        return found

    return look


def stored(client: PersistClient) -> tuple[list[str], list[str]]:
    return client.shards(), sorted(each.key for each in client.blob.list_keys_and_metadata(""))


def orders(folder: Path, lines: list[Any], **fields: Any) -> CollectionConfig:
    """A collection of changes in one file."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    body = {
        "name": "orders",
        "source": {"path": "in/*.jsonl*", "format": "json"},
        "key": "id",
        "columns": {"id": "bigint", "status": "string", "at": {"type": "timestamp", "unit": "us"}},
        "order": {"by": {"no": "bigint"}},
        "delete": {"column": "op", "values": ["D"]},
        "base_dir": str(folder),
    }
    return CollectionConfig.model_validate({**body, **fields})


def order(no: int, id_: int, op: str = "U", **more: Any) -> dict[str, Any]:
    return {"no": no, "id": id_, "op": op, "status": ["open", "paid"][no % 2], "at": US + no, **more}


CHANGES = [order(1, 1), order(2, 2), order(4, 1), order(3, 1, "D"), order(5, 3, note="new"), order(6, 2, "D")]


@pytest.mark.parametrize("name", sample(["customers", "cities"], 1, "previews"))
@pytest.mark.family("decoders")
def test_the_json_rows_a_preview_are_those_of_a_run(
    name: str, look: Look, spark: SparkSession, client: PersistClient
) -> None:
    config = load_collection(ROOT / "dags" / "collections" / f"{name}.yaml")
    found = look(config, limit=100_000)
    start = starter(spark)(PersistLocation(client.blob.uri, client.location.consensus.uri))
    until = config.default_until(client.clock.now_ms())
    run = run_one(
        client, config, until=until, write=lambda each: write_batch(client, start, config, each), say=lambda _: None
    )
    (done,) = run.rounds
    table = in_key_order(client.state(name), client.open_reader(name).snapshot())
    assert [dict(row) for row in found.rows] == list(json_rows(table))
    assert found.stats == done.stats
    assert sum(found.records["operations"].values()) == done.stats["records_read"]
    assert (found.next_run.files, found.next_run.size_bytes) == (done.input_files, done.input_bytes)
    assert (found.next_run.lower, found.next_run.upper) == (done.commit.lower, done.commit.upper)
    again = look(config, limit=20)
    assert (again.next_run.files, again.next_run.lower) == (0, done.commit.upper)
    assert again.next_run.text.startswith("nothing before ")
    assert sum(each.records for each in again.files) == (20 if name == "customers" else 12)


def test_what_the_records_do_and_where_they_are_out_of_order(look: Look, tmp_path: Path) -> None:
    found = look(orders(tmp_path, CHANGES))
    assert found.stops is None
    assert [row["id"] for row in found.rows] == [1, 3]
    assert found.records["operations"] == {"upserts": 4, "deletes": 2, "truncates": 0, "skipped": 0}
    assert found.records["keys"]["most"] == [{"key": {"id": 1}, "records": 3}, {"key": {"id": 2}, "records": 2}]
    assert found.records["orders"] == {"first": [1], "last": [6], "out_of_order": 1, "of": 6}
    assert found.unread == ({"field": "note", "records": 1, "example": "new"},)
    text = "\n".join(lines_of(found))
    assert "keys: 3 distinct, 2 in several records: id=1 in 3, id=2 in 2" in text
    assert "no column takes field note: 1 records have it, such as new" in text
    json.dumps(found.to_json())


def test_a_preview_leaves_nothing_in_the_cache_of_the_server(look: Look, spark: SparkSession, tmp_path: Path) -> None:
    spark.catalog.clearCache()
    assert look(orders(tmp_path, [order(1, 1)])).stops is None
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()


def test_a_forgotten_unit(look: Look, tmp_path: Path) -> None:
    columns = {"id": "bigint", "status": "string", "at": "timestamp"}
    found = look(orders(tmp_path, CHANGES, columns=columns))
    text = "\n".join(lines_of(found))
    assert "set the column's unit" in text
    assert "did you mean `timestamp`, `unit: us`?" in text
    assert [each["records"] for each in found.records["errors"]] == [4], "one group"
    assert found.records["errors"][0]["position"] == "a.jsonl, line 1"
    assert json.loads(found.records["errors"][0]["payload"]) == CHANGES[0]


def test_a_wrong_key(look: Look, tmp_path: Path) -> None:
    text = "\n".join(lines_of(look(orders(tmp_path, CHANGES, key="status"))))
    assert 'keys: 2 distinct, 2 in several records: status="paid" in 3, status="open" in 3' in text


def test_a_wrong_type(look: Look, tmp_path: Path) -> None:
    columns = {"id": "bigint", "status": "bigint", "at": "bigint"}
    text = "\n".join(lines_of(look(orders(tmp_path, CHANGES, columns=columns))))
    assert "column 'status' is 'paid'; expected bigint" in text
    assert "`at` is always a whole number between 2000 and 2036 in us since 1970" in text


def test_times_that_go_back(look: Look, tmp_path: Path) -> None:
    config = orders(tmp_path, CHANGES, time={"field": "at", "unit": "us"}, order={"by": ["no"], "mode": "log"})
    times = look(config).records["times"]
    assert (times["late"], times["of"]) == (0, 6)  # less than a millisecond apart
    lines = [order(1, 1, at=US), order(2, 1, at=US - 5_000), order(3, 2, at=US + 5_000)]
    config = orders(tmp_path, lines, time={"field": "at", "unit": "us"}, order={"by": ["no"], "mode": "log"})
    times = look(config).records["times"]
    assert times == {"first": US // 1000 - 5, "last": US // 1000 + 5, "late": 1, "of": 3}


def test_the_numbers_of_a_free_order_are_shown(look: Look, tmp_path: Path) -> None:
    lines = [{"id": 1, "status": "x", "at": US, "n": number} for number in (10, -1.25, 0, 12345678901234567890123)]
    config = orders(tmp_path, lines, order={"by": ["n"], "mode": "log"})
    found = look(config).records["orders"]
    assert found == {"first": ["-1.25", None], "last": ["12345678901234567890123", None], "out_of_order": 2, "of": 4}


def test_a_damaged_file_is_named_and_the_others_are_shown(look: Look, tmp_path: Path) -> None:
    config = orders(tmp_path, CHANGES)
    packed = gzip.compress(
        "".join(f'{{"no": 9, "id": {number * 7919 % 10007}}}\n' for number in range(20_000)).encode()
    )
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(packed[:-1_000])
    found = look(config, limit=100_000)
    assert found.row_count == 2, "of a damaged file a run takes no record"
    (line,) = (line for line in lines_of(found) if line.startswith("problem: b.jsonl.gz: it is damaged or incomplete"))
    assert line.endswith("; a run takes no record of it, and keeps it as one err")


SAMPLES = {  # of real feeds: the errors that a proposed file leaves
    "aws_dms_kafka_json": 0,
    "debezium_mysql_schema_alltypes": 0,
    "debezium_mysql_schema_lifecycle": 0,
    "debezium_postgres_docs_c_u_d_t_m": 0,
    "debezium_postgres_no_schema": 0,
    "debezium_postgres_replica_identity_default": 1,
    "debezium_postgres_schema": 0,
    "debezium_unwrapped_op_deleted_schema": 0,
}


@pytest.mark.parametrize(("name", "errors"), SAMPLES.items())
def test_a_proposed_file_runs_on_a_real_feed(name: str, errors: int, look: Look, samples: Path, tmp_path: Path) -> None:
    (tmp_path / "feed").mkdir()
    shutil.copy(samples / f"{name}.jsonl", tmp_path / "feed")
    found = look(proposed(tmp_path, tmp_path / "feed" / "*"))
    assert found.stops is None
    assert sum(each["records"] for each in found.records["errors"]) == errors, found.records["errors"]
    assert found.records["operations"]["upserts"] > 0
    assert found.hints == ()


@pytest.mark.parametrize(("name", "errors"), [("customers", 2), ("cities", 0)])
def test_a_proposed_file_runs_on_the_demo(name: str, errors: int, look: Look, tmp_path: Path) -> None:
    found = look(proposed(tmp_path, ROOT / "dags" / "feed" / name / "*" / "*"))
    assert found.stops is None
    assert sum(each["records"] for each in found.records["errors"]) == errors, found.records["errors"]


def proposed(folder: Path, feed: Path) -> CollectionConfig:
    """The collection that `persist init --from` proposes."""
    file = folder / "things.yaml"
    with open_location(PersistLocation("mem:", "mem:")) as location:
        file.write_text(propose(found_by([str(feed)], location), folder=folder))
    return load_collection(file)


def test_parquet_of_other_writers(look: Look, tmp_path: Path) -> None:
    """Times of INT96 are UTC in any time zone; what Spark cannot read is not proposed."""
    (tmp_path / "in").mkdir()
    times = pa.array([datetime(2026, 7, 1)], pa.timestamp("us"))
    nested = pa.StructArray.from_arrays([times], ["t"])
    table = pa.table({"id": [1], "at": times, "o": nested, "clock": pa.array([5], pa.time64("us"))})
    pq.write_table(table, tmp_path / "in" / "a.parquet", use_deprecated_int96_timestamps=True)
    config = proposed(tmp_path, tmp_path / "in" / "*.parquet").model_copy(update={"timezone": "Europe/Berlin"})
    found = look(config)
    assert (found.stops, [*config.columns]) == (None, ["id", "at", "o"])
    assert [(row["at"], row["o"]) for row in found.rows] == [
        ("2026-07-01T00:00:00.000000Z", '{"t":"2026-07-01T00:00:00.000000Z"}')
    ]


def test_no_file_and_no_folder(look: Look, tmp_path: Path) -> None:
    config = orders(tmp_path, CHANGES)
    (tmp_path / "in" / "a.jsonl").unlink()
    assert lines_of(look(config))[1:] == ["sample: no file matches source.path"]
    (tmp_path / "in").rmdir()
    with pytest.raises(StorageError) as told:
        look(config)
    assert str(told.value) == (
        f"source folder {tmp_path}/in (of source.path 'in/*.jsonl*') does not exist or is not a folder; create or"
        " mount it, or correct source.path"
    )


def test_what_checks_would_find(look: Look, tmp_path: Path) -> None:
    checks = {
        "small": "id < 3",
        "paid": {"sql": "status = 'paid'", "on_fail": "warn"},
        "first": {"sql": "id = 1", "on_fail": "fail"},
    }
    found = look(orders(tmp_path, [*CHANGES, order(7, 1), order(8, 2)], checks=checks))
    assert [row["id"] for row in found.rows] == [1, 2], "rows are shown, whatever would stop the run"
    lines = lines_of(found)
    assert 'a run would stop: check first: 1, for example {"id":2} (on_fail: fail)' in lines
    assert 'warning check paid: 1, for example {"id":2}' in lines
    (told,) = (line for line in lines if line.startswith("error check/small, 1 records: "))
    assert told.endswith("check 'small' is not true: id < 3 (the first: a.jsonl, line 5)")
    assert json.loads(json.dumps(found.to_json()))["warnings"][0]["name"] == "check paid"


def test_a_sample_that_a_run_would_refuse(look: Look, tmp_path: Path) -> None:
    lines = [order(number, number, at="x" if number % 10 else US) for number in range(200)]
    found = look(orders(tmp_path, lines))
    assert found.row_count == 20
    wanted = "180 of 200 processed records of the sample are errors; at most 5 % are allowed (limits.max_errors)"
    assert found.stops == wanted
    assert look(orders(tmp_path, lines, limits={"max_errors": None})).stops is None


def test_a_feed_in_a_bucket(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> None:
    bucket = Bucket(request.getfixturevalue("versitygw"), is_versioned=True)
    bucket.put("2026-01-01/a.jsonl", b'{"id":1,"v":"one"}\n{"id":2,"v":"two"}\n')
    bucket.put("2026-01-02/b.jsonl.gz", gzip.compress(b'{"id":1,"v":"new"}\n{"id":"x"}\n'))
    location = PersistLocation("mem:", "mem:", bucket.connections)
    with open_location(location) as opened:
        config = bucket.collection("{date:%Y-%m-%d}/*", time="path")
        found = preview(PersistClient(opened), config, starter(spark), limit=100, rows=10)
        given = found_by([f"s3://{bucket.name}/feed/*/*"], opened, "vendor")
        text = propose(given, folder=tmp_path)
    assert [(row["id"], row["v"]) for row in found.rows] == [(1, "new"), (2, "two")]
    assert (found.next_run.files, found.next_run.upper is not None) == (2, True)
    assert [each["position"] for each in found.records["errors"]] == ["2026-01-02/b.jsonl.gz, line 2"]
    assert f'  path: "s3://{bucket.name}/feed/{{date:%Y-%m-%d}}/*.jsonl*"\n  connection: vendor\n' in text
