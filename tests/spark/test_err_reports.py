"""Errors as a user sees them: of a forgotten unit, a wrong type, and one truncated line among many."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.errors import TooManyErrors
from persist_core.location.blob import BlobMetadata
from persist_core.location.file.blob import FileBlob
from persist_core.schema import ERR_PAYLOAD
from persist_spark.footers import read_rows
from tests.spark.test_write_job import DAY_MS, Collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def collection(folder: Path, columns: dict[str, Any]) -> Collection:
    found = Collection(folder)
    body = found.config.model_dump(mode="json", exclude={"limits"}) | {"time": "description"}
    body["columns"] = {"id": "bigint", **columns}
    found.config = type(found.config).model_validate(body)
    return found


def refused(spark: SparkSession, things: Collection) -> list[str]:
    """The lines of the message of a run that commits nothing."""
    with pytest.raises(TooManyErrors) as error:
        things.run(spark, DAY_MS)
    assert things.client.state("things").newest_commit is None
    return str(error.value).splitlines()


def test_a_forgotten_unit_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    things = collection(tmp_path, {"at": "timestamp"})
    things.drop("a.jsonl", *({"id": number, "at": 1_767_225_600_000_000 + number} for number in range(130)))
    first, *groups = refused(spark, things)
    assert first.startswith("130 of 130 processed records of things ")
    assert "are errors; at most 5 % are allowed (limits.max_errors). Nothing was committed: correct" in first
    assert "max_errors: null for no limit" in first
    (group,) = groups
    start, _, payload = group.partition(", line ")
    assert start == (
        "  130 value: column 'at' is '...'; expected an ISO timestamp; for integers set the column's unit; the first:"
        " a.jsonl"
    )
    assert '{"id": ' in payload


def test_a_few_wrong_types_commit_nothing_unless_allowed(spark: SparkSession, tmp_path: Path) -> None:
    things = collection(tmp_path, {"name": "bigint"})
    things.drop("a.jsonl", {"id": 1, "name": "one"}, {"id": 2, "name": "two"})
    first, *groups = refused(spark, things)
    assert "a run in which no record is good does not commit (limits.max_errors)" in first
    (group,) = groups
    assert group.startswith("  2 value: column 'name' is '...'; expected bigint; the first: a.jsonl, line ")
    limits = things.config.limits.model_copy(update={"max_errors": None})
    things.config = things.config.model_copy(update={"limits": limits})
    assert things.run(spark, DAY_MS)["errors"] == 2


def test_one_truncated_line_among_many_is_named_in_the_report(spark: SparkSession, tmp_path: Path) -> None:
    things = collection(tmp_path, {"name": "string"})
    rows: list[Any] = [{"id": number, "name": "x"} for number in range(500)]
    rows[340:340] = ['{"id": 7, "na\n']
    things.drop("a.jsonl", *rows[:250])
    things.drop("b.jsonl", *rows[250:])
    assert things.run(spark, DAY_MS)["errors"] == 1
    commit = things.client.state("things").newest_commit
    assert commit is not None
    (group,) = things.client.manifest(commit).err_groups
    assert (group.kind, group.count, group.position, group.payload) == ("key", 1, "b.jsonl, line 91", '{"id": 7, "na')


def test_large_records_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """Else the report of a thousand large errs takes more memory than Spark had for them."""
    pq.write_table(pa.table({ERR_PAYLOAD: [os.urandom(1 << 20) for _ in range(20)]}), tmp_path / "errs")
    file = BlobMetadata("errs", (tmp_path / "errs").stat().st_size)
    rows = [len(table) for table in read_rows(FileBlob(tmp_path), file, [ERR_PAYLOAD], 1_000)]
    assert sum(rows) == 20
    assert max(rows) <= 8
