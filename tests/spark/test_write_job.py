"""The whole write job: files are minted, decoded, drained, staged and appended, without Airflow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription, BatchManifest
from persist_core.errors import CorruptArtifact, OutdatedDescription, RunFailed, SourceChanged
from persist_core.handles.client import PersistClient
from persist_core.keys import attempt_prefix, failure_key, manifest_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.restore import RestorePlan, plan_restore, restore
from persist_core.protocol.stages import Minted
from persist_core.shard.state import Committed
from persist_core.spark_job.answer import Failure, newest_rejected
from persist_core.spark_job.launch import Ended, run_items
from persist_core.spark_job.spec import JobSpec, stored
from persist_spark import __main__ as job
from persist_spark import session
from persist_spark.decode.plain import NOT_JSON
from persist_spark.read.frames import snapshot
from persist_spark.upsert.job import run_write_job

DAY_MS = 86_400_000


class Collection:
    """A folder of JSON lines, a location, and the steps of a dag run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uris = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        self.location = open_location(self.uris)
        self.client = PersistClient(self.location)
        body = {
            "name": "things",
            "source": {"path": "in/*.jsonl", "format": "json"},
            "key": "id",
            "columns": {"id": "bigint", "name": "string"},
            "time": {"field": "at"},
            "delete": "none",
            "limits": {"max_errors": 1},
            "base_dir": str(folder),
        }
        self.config = CollectionConfig.model_validate(body)
        (folder / "in").mkdir()

    def drop(self, name: str, *rows: Any) -> Path:
        path = self.folder / "in" / name
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return path

    def mint(self, until: int | None) -> BatchDescription:
        minted = stages.mint(self.client, self.config, until=until, writer="test")
        assert isinstance(minted, Minted)
        return minted.description

    def spec(self, description: BatchDescription) -> JobSpec:
        return JobSpec(description, self.config, self.client.ids.uuid7())

    def run(self, spark: SparkSession, until: int | None) -> dict[str, int]:
        """One dag run; the stats of its write stage."""
        spec = self.spec(self.mint(until))
        manifest = run_write_job(spark, spec, self.location)
        key = manifest_key("things", spec.attempt)
        assert isinstance(stages.append(self.client, spec.description, key), Committed)
        stages.checkpoint(self.client, self.config)
        return dict(manifest.stats)

    def names(self, as_of: int | None = None) -> list[str]:
        return sorted(row["name"] for row in self.client.open_reader("things").snapshot(as_of).to_pylist())


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return Collection(tmp_path)


@pytest.mark.family("commands")
def test_runs_end_to_end_and_the_stash_alone_is_input_enough(spark: SparkSession, collection: Collection) -> None:
    early = {"id": 1, "name": "early", "at": 5}
    collection.drop("a.jsonl", early, {"id": 1, "name": "tomorrow", "at": DAY_MS + 5}, "not json\n")
    first = collection.run(spark, DAY_MS)
    assert (first["records_read"], first["eligible"], first["stashed"], first["errors"]) == (3, 2, 1, 1)
    assert collection.names() == ["early"]
    second = collection.run(spark, 2 * DAY_MS)
    assert (second["records_read"], second["stash_before"], second["updates"]) == (0, 1, 1)
    assert (collection.names(DAY_MS - 1), collection.names()) == (["early"], ["tomorrow"])
    assert len(collection.client.open_reader("things").errors()) == 1
    _go_back_and_on_again(spark, collection)


def _go_back_and_on_again(spark: SparkSession, collection: Collection) -> None:
    """To the first of two commits, by plain Python: Spark reads what that wrote, and the stash that it brought back."""
    first = collection.client.state("things").commits[0].checkpoint_id
    plan = plan_restore(collection.client, "things", first)
    assert isinstance(plan, RestorePlan)
    assert isinstance(restore(collection.client, plan, writer="test"), Committed)
    assert [row["name"] for row in snapshot(spark, collection.location, "things").collect()] == ["early"]
    third = collection.run(spark, 3 * DAY_MS)
    assert (third["records_read"], third["stash_before"], third["updates"], third["late_times"]) == (0, 1, 1, 1)
    restored, newest = 2 * DAY_MS, 2 * DAY_MS + 1
    names = [collection.names(time) for time in (DAY_MS - 1, 2 * DAY_MS - 1, restored, newest)]
    assert names == [["early"], ["tomorrow"], ["early"], ["tomorrow"]]
    assert fsck(collection.client, "things").is_clean


def test_input_that_changed_fails_the_run(spark: SparkSession, collection: Collection) -> None:
    path = collection.drop("a.jsonl", {"id": 1, "name": "a", "at": 5})
    spec = collection.spec(collection.mint(DAY_MS))
    path.write_text(json.dumps({"id": 1, "name": "b, longer", "at": 5}) + "\n")
    with pytest.raises(SourceChanged, match=r"a\.jsonl"):
        run_write_job(spark, spec, collection.location)
    frozen = spec.description.input_key
    assert frozen is not None
    collection.location.blob.set(frozen, b"{}")
    with pytest.raises(CorruptArtifact):
        run_write_job(spark, spec, collection.location)


def test_outdated_description_stages_nothing(spark: SparkSession, collection: Collection) -> None:
    collection.drop("a.jsonl", {"id": 1, "name": "a", "at": 5})
    spec = collection.spec(collection.mint(DAY_MS))
    collection.run(spark, DAY_MS)
    with pytest.raises(OutdatedDescription):
        run_write_job(spark, spec, collection.location)
    staged = collection.location.blob.list_keys_and_metadata(attempt_prefix("things", spec.attempt))
    assert list(staged) == []


@pytest.mark.family("commands")
def test_one_job_does_several_items_which_fail_alone(
    spark: SparkSession, collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four items: one has settings of its own, one fails, and one has no spec any more."""
    collection.drop("a.jsonl", *({"id": number, "name": "a", "at": 5} for number in range(2)))
    description = collection.mint(DAY_MS)
    split = {"spark.sql.files.maxRecordsPerFile": "1", "spark.driver.memory": "1g"}
    items = [collection.spec(description) for _ in range(4)]
    items[0] = replace(items[0], config=collection.config.model_copy(update={"spark_conf": split}))
    items[1] = replace(items[1], description=replace(description, input_key=f"{description.input_key}x"))
    monkeypatch.setattr(session, "build_session", lambda _name: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)
    statuses = []

    def start(given: Sequence[JobSpec], arguments: Sequence[str]) -> Ended:
        if len(given) > 2:
            collection.location.blob.delete(given[2].key)
        else:
            raise RunFailed("it is lost again")
        statuses.append(job.main(arguments, collection.uris.to_env()))
        return Ended("", exit_status=statuses[0])

    split_up, broken, lost, whole = run_items(collection.client, items, start)
    assert statuses == [1]
    assert isinstance(broken, CorruptArtifact)
    assert isinstance(lost, RunFailed)
    assert str(lost) == "it is lost again"
    answered = [each for each in (split_up, whole) if isinstance(each, JobSpec)]
    manifests = [BatchManifest.decode(collection.location.blob.get(each.answer_key) or b"") for each in answered]
    assert [[part.rows for part in manifest.parts] for manifest in manifests] == [[1, 1], [2]]
    assert spark.conf.get("spark.sql.files.maxRecordsPerFile") == "0"


def test_failed_job_says_why(
    spark: SparkSession, collection: Collection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collection.drop("a.jsonl", "bad\n", "worse\n")
    spec = collection.spec(collection.mint(DAY_MS))
    monkeypatch.setattr(session, "build_session", lambda _name: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)
    with stored(collection.location.blob, spec) as arguments:
        assert job.main(arguments, collection.uris.to_env()) == 1
    found = collection.location.blob.get(failure_key("things", spec.attempt))
    assert found is not None
    failure = Failure.decode(found)
    assert failure.error == "too_many_errors"
    assert "limits.max_errors" in failure.message
    samples = [(each.kind, each.payload, each.position) for each in failure.samples]
    assert samples == [("key", "bad", "a.jsonl, line 1"), ("key", "worse", "a.jsonl, line 2")]
    assert f"\n  2 key: {NOT_JSON}; the first: a.jsonl, line 1, 'bad'" in failure.message
    refused = newest_rejected(collection.client, "things")
    assert refused is not None
    assert (refused.attempt, refused.samples) == (spec.attempt, failure.samples)
    assert "too_many_errors: 2 of 2 processed records" in capsys.readouterr().err
