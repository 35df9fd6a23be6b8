"""Files that kill the jobs which read them, with a real Spark: set aside after two deaths, and read when corrected."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription, BatchManifest
from persist_core.errors import UnreadableFiles
from persist_core.keys import jobs_prefix, manifest_key
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.schema import ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD
from persist_core.shard.state import Committed
from persist_core.sources.frozen import load_frozen
from persist_core.sources.input_file import FrozenInput, InputFile
from persist_core.spark_job.deaths import Death, deaths_at_lower, reading, record_death
from persist_core.spark_job.process import SMALL_JVM
from persist_core.spark_job.spec import JobSpec
from persist_spark.upsert.job import run_write_job
from tests.sampling import is_long, sample
from tests.spark.test_write_job import Collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
UNTIL = 1_000
CONF = (
    "spark.driver.memory=500m",
    f'spark.driver.extraJavaOptions={" ".join(SMALL_JVM)} -XX:OnOutOfMemoryError="kill -9 %p"',
)


class Dying(Collection):
    """A collection, with what is left of jobs that died over its input."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(folder)
        body = {
            "name": "things",
            "source": {"path": "in/*", "format": "json"},
            "key": "id",
            "columns": {"id": "bigint", "name": "string"},
            "delete": "none",
            "base_dir": str(folder),
        }
        self.config = CollectionConfig.model_validate({**body, **changes})

    def files(self, description: BatchDescription) -> dict[str, InputFile]:
        assert description.input_key is not None
        frozen = load_frozen(self.client.blob, description.input_key, FrozenInput)
        return {file.relative: file for file in frozen.files}

    def die(self, description: BatchDescription, *names: str) -> None:
        """Leave what a job leaves that dies while it reads these files apart from others (none: reads all)."""
        spec = self.spec(description)
        if names:
            files = self.files(description)
            with pytest.raises(KeyboardInterrupt), reading(self.client.blob, spec, 0, [files[n] for n in names], bool):
                raise KeyboardInterrupt
        record_death(self.client.blob, spec)

    def deaths(self, description: BatchDescription) -> list[Death]:
        return deaths_at_lower(self.client.blob, self.spec(description), self.client.clock.now_ms())

    def write(self, spark: SparkSession, description: BatchDescription) -> tuple[str, BatchManifest]:
        spec = self.spec(description)
        manifest = run_write_job(spark, spec, self.location)
        return manifest_key("things", spec.attempt), manifest

    def commit(self, spark: SparkSession, description: BatchDescription) -> dict[str, int]:
        key, manifest = self.write(spark, description)
        assert isinstance(stages.append(self.client, description, key), Committed)
        stages.checkpoint(self.client, self.config)
        assert fsck(self.client, "things").is_clean
        return dict(manifest.stats)

    def errors(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.client.open_reader("things").errors().to_pylist()
        return rows


def write_bomb(path: Path) -> None:
    """One line that is allowed, and that a JVM of 500 MB cannot hold."""
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(b'{"id": 3, "name": "')
        for _ in range(400):
            out.write(b"x" * MIB)
        out.write(b'"}\n')


def persist_run(things: Dying) -> tuple[int, str]:
    """`persist run`, as a user starts it: its exit status and all output."""
    file = things.folder / "things.yaml"
    body = things.config.model_dump(mode="json", include={"source", "key", "columns", "limits"})
    file.write_text(json.dumps({**body, "delete": "none"}))
    command = [str(Path(sys.executable).with_name("persist")), "run", str(file), "--master", "local[1]"]
    done = subprocess.run(
        [*command, *(part for conf in CONF for part in ("--conf", conf))],
        env={**os.environ, **things.uris.to_env()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.family("Sparks")
def test_a_file_that_kills_the_driver_is_set_aside_and_heals(spark: SparkSession, tmp_path: Path) -> None:
    things = Dying(tmp_path, limits={"max_record_bytes": 1 << 30})
    for number in (1, 2, 4):
        things.drop(f"{number}.jsonl", {"id": number, "name": f"n{number}"})
    bomb = tmp_path / "in" / "3.jsonl.gz"
    write_bomb(bomb)
    deaths: list[tuple[str, ...]] = [(), (bomb.name,), (bomb.name,)]  # not known of which file; of this one, twice
    real = range(3) if is_long() else (1,)  # a Spark starts for each
    for number, files in enumerate(deaths):
        if number not in real:
            things.die(things.mint(things.client.clock.now_ms()), *files)
            continue
        status, output = persist_run(things)
        assert status != 0
        assert "The next try reads the files apart" in output
        assert things.client.state("things").newest_commit is None
    status, output = persist_run(things)
    assert status == 0, output
    assert "is set aside: 2 jobs died" in output
    assert things.names() == ["n1", "n2", "n4"]
    (err,) = things.errors()
    facts, reason = bomb.stat(), "2 jobs died, each while it read this file alone"
    assert (err[ERR_KIND], reason in err[ERR_MESSAGE]) == ("file", True)
    assert json.loads(err[ERR_PAYLOAD]) == {
        "file": "3.jsonl.gz",
        "size_bytes": facts.st_size,
        "mtime_ms": facts.st_mtime_ns // 1_000_000,
        "reason": reason,
    }
    assert fsck(things.client, "things").is_clean
    now = things.client.clock.now_ms()
    assert things.mint(now).input_key is None, "it is not read again as it is"
    bomb.write_bytes(gzip.compress(b'{"id": 3, "name": "n3"}\n'))
    stats = things.commit(spark, things.mint(now))
    assert (stats["records_read"], stats["inserts"], stats["deletes"], stats["errors"]) == (2, 1, 1, 0)
    assert (things.names(), things.errors()) == (["n1", "n2", "n3", "n4"], [])


def test_deaths_that_no_file_repeats_set_nothing_aside(spark: SparkSession, tmp_path: Path) -> None:
    """A machine went down, and later another one, each while another file was read."""
    things = Dying(tmp_path)
    for name in "abc":
        things.drop(f"{name}.jsonl", {"id": ord(name), "name": name})
    description = things.mint(UNTIL)
    things.die(description)
    things.die(description, "b.jsonl")
    things.die(description, "c.jsonl")
    things.die(description, "a.jsonl", "c.jsonl")
    # Ids of the same millisecond have no order.
    assert sorted(len(death.files) for death in things.deaths(description)) == [0, 1, 1, 2]
    assert things.commit(spark, description)["errors"] == 0
    assert things.names() == ["a", "b", "c"]
    assert not any(death.files for death in things.deaths(description)), "reading each of them has cleared it"


def test_files_that_jobs_died_over_are_read_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a job that is always killed after a while does not die over the same file twice."""
    things = Dying(tmp_path)
    for name in "abcd":
        things.drop(f"{name}.jsonl", {"id": ord(name), "name": name})
    description = things.mint(UNTIL)
    things.die(description, "b.jsonl", "d.jsonl")
    things.die(description, "c.jsonl")
    read: list[list[str]] = []
    monkeypatch.setattr(
        "persist_spark.upsert.set_aside.read_files",
        lambda _spark, _config, files, _copies: read.append([file.relative for file in files]),
    )
    things.write(spark, description)
    assert read == [["c.jsonl"], ["b.jsonl"], ["d.jsonl"], ["a.jsonl"]]
    monkeypatch.setattr("persist_spark.upsert.set_aside.MAX_READS", 2)
    things.die(description)
    things.write(spark, description)
    assert read[4:] == [["a.jsonl", "b.jsonl"], ["c.jsonl", "d.jsonl"]]


def test_an_error_of_a_living_spark_is_no_death_over_the_file(spark: SparkSession, tmp_path: Path) -> None:
    source = {"path": "in/*.parquet", "format": "parquet", "on_bad_file": "fail"}
    things = Dying(tmp_path, source=source)
    path = tmp_path / "in" / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "name": ["x" * 100, "y" * 100]}), path, compression="none")
    data = bytearray(path.read_bytes())
    data[4:40] = b"\xff" * 36  # the first page's header
    path.write_bytes(bytes(data))
    description = things.mint(UNTIL)
    things.die(description)
    with pytest.raises(UnreadableFiles, match=r"a\.parquet"):
        things.write(spark, description)
    assert [death.files for death in things.deaths(description)] == [()]
    left = [entry.key for entry in things.client.blob.list_keys_and_metadata(jobs_prefix("things", 0))]
    assert len(left) == 1, left


def test_the_only_file_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    things = Dying(tmp_path, source={"path": "in/*.parquet", "format": "parquet"})
    path = tmp_path / "in" / "a.parquet"
    path.write_bytes(b"not Parquet, so that whoever reads it fails")
    description = things.mint(UNTIL)
    for _ in range(2):
        things.die(description, "a.parquet")
    assert things.commit(spark, description)["errors"] == 1
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), path)
    things.commit(spark, things.mint(2 * UNTIL))
    assert (things.names(), things.errors()) == (["x"], [])


def change(op: str, **row: Any) -> dict[str, Any]:
    source = {"ts_ms": row.pop("at", 0), "lsn": row.pop("lsn", 0), "snapshot": "false", "connector": "postgresql"}
    return {"op": op, "before": None, "after": row or None, "source": source, "ts_ms": 0}


@pytest.mark.parametrize("mode", sample(["log", "sequence"], 1, "killers"))
@pytest.mark.family("histories in Spark")
def test_no_truncate_removes_the_err_and_a_corrected_file_does(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    order = {"mode": mode, "by": "auto"}
    things = Dying(tmp_path, source={"path": "in/*", "format": "debezium-json"}, delete={}, order=order)
    things.drop("a.jsonl", change("c", id=1, name="gone", lsn=1))
    bad = things.drop("b.jsonl", change("c", id=2, name="killer", lsn=2))
    things.drop("c.jsonl", change("t", lsn=3))
    description = things.mint(UNTIL)
    for _ in range(2):
        things.die(description, "b.jsonl")
    things.commit(spark, description)
    assert (things.names(), [err[ERR_KIND] for err in things.errors()]) == ([], ["file"])
    things.drop("d.jsonl", change("t", lsn=5), change("c", id=4, name="n4", lsn=6))
    things.commit(spark, things.mint(2 * UNTIL))
    assert (things.names(), len(things.errors())) == (["n4"], 1)
    bad.write_text(json.dumps(change("c", id=2, name="still bad", lsn=7)) + "\n")
    description = things.mint(3 * UNTIL)
    for _ in range(2):
        things.die(description, "b.jsonl")
    things.commit(spark, description)
    assert (things.names(), len(things.errors())) == (["n4"], 1)
    assert json.loads(things.errors()[0][ERR_PAYLOAD])["size_bytes"] == bad.stat().st_size
    bad.write_text(json.dumps(change("c", id=2, name="corrected", lsn=8)) + "\n")
    things.commit(spark, things.mint(4 * UNTIL))
    assert (things.names(), things.errors()) == (["corrected", "n4"], [])


def test_a_file_of_a_day_that_is_final(spark: SparkSession, tmp_path: Path) -> None:
    """Neither its err nor the tombstone of that is a late record."""
    day_ms = 86_400_000
    path = {"path": "in/dt={date:%Y-%m-%d}/*", "format": "json"}
    things = Dying(tmp_path, source=path, time={"source": "path", "late": "error"})
    for day in (1, 2):
        (tmp_path / "in" / f"dt=1970-01-0{day}").mkdir()
        things.drop(f"dt=1970-01-0{day}/a.jsonl", {"id": day, "name": f"n{day}"})
    things.commit(spark, things.mint(2 * day_ms))
    bad = things.drop("dt=1970-01-01/late.jsonl", {"id": 3, "name": "killer"})
    description = things.mint(3 * day_ms)
    for _ in range(2):
        things.die(description, "dt=1970-01-01/late.jsonl")
    things.commit(spark, description)
    assert [err[ERR_KIND] for err in things.errors()] == ["file"]
    bad.write_text("")
    things.commit(spark, things.mint(4 * day_ms))
    assert (things.names(), things.errors()) == (["n1", "n2"], [])


def test_a_zombie_cannot_commit_the_file_after_all(spark: SparkSession, tmp_path: Path) -> None:
    things = Dying(tmp_path)
    for name in "ab":
        things.drop(f"{name}.jsonl", {"id": ord(name), "name": name})
    description = things.mint(UNTIL)
    whole, _ = things.write(spark, description)
    for _ in range(2):
        things.die(description, "b.jsonl")
    without, manifest = things.write(spark, description)
    assert manifest.sources != description.sources
    committed = stages.append(things.client, description, without)
    assert isinstance(committed, Committed)
    assert stages.append(things.client, description, whole) == Committed(committed.commit, is_new=False)
    other = replace(description, token="of another run")  # which had minted at the same upper
    spec = JobSpec(other, things.config, things.client.ids.uuid7())
    late = stages.append(
        things.client,
        other,
        things.client.open_writer("things").stage(other, things.config.collection_schema(), spec.attempt),
    )
    assert not isinstance(late, Committed)
    assert (things.names(), len(things.errors())) == (["a"], 1)
    assert len(things.client.state("things").commits) == 1
