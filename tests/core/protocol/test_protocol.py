"""mint, write, append, checkpoint as plain functions: no Spark, no Airflow. Batches are staged by `WriteHandle`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persist_core.checkpoint import publish
from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.parts import updates_schema
from persist_core.errors import AlreadyCommitted, InvalidInput, OutdatedDescription, SchemaMismatch
from persist_core.frontier import CLOSED, Frontier
from persist_core.handles.client import PersistClient
from persist_core.keys import conflicts_prefix
from persist_core.location.open import OpenLocation, open_blob, open_consensus
from persist_core.protocol import stages
from persist_core.protocol.conflicts import list_conflicts
from persist_core.protocol.stages import Conflict, Minted, NothingToDo
from persist_core.shard.state import Committed
from persist_core.sources.input_file import FrozenInput
from tests.virtual import ManualClock, SeededIds

DAY_MS = 86_400_000


class World:
    """A location (in memory, unless URIs say otherwise) and a real folder of input files."""

    def __init__(self, folder: Path, uri: str = "mem:", consensus_uri: str | None = None, **changes: Any) -> None:
        self.folder = folder
        self.clock = ManualClock(10 * DAY_MS)
        self.blob, self.consensus = open_blob(uri), open_consensus(consensus_uri or uri)
        self.client = PersistClient(OpenLocation(self.blob, self.consensus), self.clock, SeededIds(1, self.clock))
        body: dict[str, Any] = {
            "name": "things",
            "source": {"path": "*.jsonl", "format": "json"},
            "key": "id",
            "columns": {"id": "bigint", "name": "string"},
            "delete": "none",
            "base_dir": str(folder),
        }
        self.config = CollectionConfig.model_validate(body | changes)

    def drop(self, name: str, text: str = "{}\n") -> None:
        (self.folder / name).write_text(text)

    def mint(self, until: int | None, writer: str = "dag/run") -> Minted | NothingToDo:
        return stages.mint(self.client, self.config, until=until, writer=writer)

    def minted(self, until: int | None, writer: str = "dag/run") -> BatchDescription:
        result = self.mint(until, writer)
        assert isinstance(result, Minted)
        return result.description

    def write(self, description: BatchDescription, rows: list[tuple[int, str, int, int]] | None = None) -> str:
        schema = updates_schema(self.config.collection_schema())
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        writer = self.client.open_writer(description.shard)
        return writer.stage(description, self.config.collection_schema(), self.client.ids.uuid7(), table)

    def files(self, description: BatchDescription) -> list[str]:
        if description.input_key is None:
            return []
        data = self.blob.get(description.input_key)
        assert data is not None
        return [file.relative for file in FrozenInput.decode(data).files]


@pytest.fixture(params=["mem", "sqlite", "postgresql", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "mem":
        made = World(tmp_path)
    elif request.param == "s3":
        made = World(tmp_path, request.getfixturevalue("versitygw").new_uri("p"))
    else:
        uri = f"sqlite:///{tmp_path}/consensus.db"
        if request.param == "postgresql":
            server = request.getfixturevalue("postgres")
            uri = server.uri(schema=server.new_schema())
        made = World(tmp_path, f"file://{tmp_path}/.blobs", uri)
    yield made
    made.client.location.close()


def test_each_file_is_frozen_into_one_commit(world: World) -> None:
    world.drop("a.jsonl")
    first = world.minted(DAY_MS)
    assert (first.lower, first.upper, first.epoch, world.files(first)) == (0, DAY_MS, 1, ["a.jsonl"])
    assert isinstance(stages.append(world.client, first, world.write(first)), Committed)
    world.drop("0-late.jsonl")
    second = world.minted(2 * DAY_MS)
    assert (second.lower, second.epoch, second.parent_id) == (DAY_MS, 2, first.checkpoint_id)
    assert world.files(second) == ["0-late.jsonl"]


def test_minting_is_invisible_and_may_be_repeated(world: World) -> None:
    world.drop("a.jsonl")
    first, again = world.minted(DAY_MS), world.minted(DAY_MS)
    assert first.token == again.token
    assert first == again, "the checkpoint id comes from the token, so a repeated mint describes the same commit"
    assert world.client.state("things").upper == Frontier(0)
    assert world.minted(DAY_MS, writer="dag/other run").token != first.token


def test_an_interval_that_is_in_the_shard_is_nothing_to_do(world: World) -> None:
    first = world.minted(DAY_MS)
    stages.append(world.client, first, world.write(first))
    for until in (0, 1, DAY_MS):
        found = world.mint(until)
        assert isinstance(found, NothingToDo)
        assert "already in shard things" in found.reason


def test_a_run_without_input_is_sealed_without_spark(world: World) -> None:
    description = world.minted(DAY_MS)
    key = stages.write_without_input(world.client, world.config, description)
    assert key is not None
    assert isinstance(stages.append(world.client, description, key), Committed)
    assert world.client.state("things").upper == Frontier(DAY_MS)
    world.drop("a.jsonl")
    assert stages.write_without_input(world.client, world.config, world.minted(2 * DAY_MS)) is None


def test_a_lost_append_is_recorded_once_and_heals(world: World) -> None:
    world.drop("a.jsonl")
    slow, fast = world.minted(2 * DAY_MS, "dag/slow"), world.minted(DAY_MS, "dag/fast")
    staged = world.write(slow, [(1, "x", 5, 1)])
    assert isinstance(stages.append(world.client, fast, world.write(fast, [(1, "x", 5, 1)])), Committed)
    lost = stages.append(world.client, slow, staged)
    assert isinstance(lost, Conflict)
    assert lost.is_new
    assert (lost.record.expected_upper, lost.record.found_upper, lost.record.winner) == (0, DAY_MS, "dag/fast")
    again = stages.append(world.client, slow, staged)
    assert isinstance(again, Conflict)
    assert not again.is_new
    (stored,) = world.blob.list_keys_and_metadata(conflicts_prefix("things"))
    world.blob.set(stored.key, b"damaged")
    assert stages.append(world.client, slow, staged) == again
    assert [record.conflict_id for record in list_conflicts(world.blob, "things")] == [lost.record.conflict_id]
    healed = world.minted(2 * DAY_MS, "dag/slow")
    assert (healed.lower, world.files(healed)) == (DAY_MS, [])
    assert isinstance(stages.append(world.client, healed, world.write(healed)), Committed)
    assert world.client.open_reader("things").snapshot().to_pylist() == [{"id": 1, "name": "x"}]


def test_an_append_that_is_tried_again_is_the_first_answer(world: World) -> None:
    world.drop("a.jsonl")
    description = world.minted(DAY_MS)
    first, second = (world.write(description, [(1, "x", 5, 1)]) for _ in range(2))
    committed = stages.append(world.client, description, first)
    restaged = stages.append(world.client, description, second)
    assert isinstance(committed, Committed)
    assert isinstance(restaged, Committed)
    assert (restaged.commit, restaged.is_new) == (committed.commit, False)


def test_an_outdated_description_stops_before_anything_is_staged(world: World) -> None:
    outdated, valid = world.minted(DAY_MS, "dag/1"), world.minted(2 * DAY_MS, "dag/2")
    stages.append(world.client, valid, world.write(valid))
    with pytest.raises(OutdatedDescription, match="mint again"):
        stages.write_without_input(world.client, world.config, outdated)
    with pytest.raises(AlreadyCommitted, match=r"is already committed, at 1970-\S+ as epoch 1"):
        stages.check_not_outdated(world.client.state("things"), valid)


def test_a_manifest_of_another_description_is_refused(world: World) -> None:
    first, second = world.minted(DAY_MS, "dag/1"), world.minted(DAY_MS, "dag/2")
    with pytest.raises(InvalidInput, match="mixed up"):
        stages.append(world.client, first, world.write(second))


def test_another_schema_is_refused_before_anything_is_staged(world: World) -> None:
    first = world.minted(DAY_MS)
    stages.append(world.client, first, world.write(first))
    other = world.config.columns["name"].model_copy(update={"type": "int"})
    world.config = world.config.model_copy(update={"columns": {**world.config.columns, "name": other}})
    before = {entry.key for entry in world.blob.list_keys_and_metadata("")}
    with pytest.raises(SchemaMismatch, match="name: string"):
        world.mint(2 * DAY_MS)
    assert {entry.key for entry in world.blob.list_keys_and_metadata("")} == before


def test_a_file_changed_after_consumption_is_reported(world: World) -> None:
    world.drop("a.jsonl")
    first = world.minted(DAY_MS)
    stages.append(world.client, first, world.write(first))
    world.drop("a.jsonl", "{}\n{}\n")
    os.utime(world.folder / "a.jsonl", (1, 1))
    result = world.mint(2 * DAY_MS)
    assert isinstance(result, Minted)
    assert result.description.input_key is None
    assert any("a.jsonl" in notice and "changed after it was consumed" in notice for notice in result.notices)


def test_closing_the_input_closes_the_shard(world: World) -> None:
    world.drop("a.jsonl")
    description = world.minted(None)
    assert description.upper is None
    stages.append(world.client, description, world.write(description, [(1, "x", 3, 1)]))
    assert world.client.state("things").upper == CLOSED
    found = world.mint(5 * DAY_MS)
    assert isinstance(found, NothingToDo)
    assert "closed" in found.reason


def test_checkpoints_follow_commits_and_may_be_made_again(world: World) -> None:
    first = world.minted(DAY_MS)
    assert stages.checkpoint(world.client, world.config) is None
    stages.append(world.client, first, world.write(first))
    report = stages.checkpoint(world.client, world.config)
    assert report is not None
    assert (report.checkpoint_id, report.published) == (first.checkpoint_id, (first.checkpoint_id,))
    again = stages.checkpoint(world.client, world.config)
    assert again is not None
    assert (again.checkpoint_id, again.published) == (first.checkpoint_id, ())


def test_old_versions_of_the_state_are_truncated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "VERSIONS_KEPT", 10)  # of 100: each costs a remote store a few requests
    for number in range(1, 15):
        description = world.minted(number)
        key = stages.write_without_input(world.client, world.config, description)
        assert key is not None
        stages.append(world.client, description, key)
    stages.checkpoint(world.client, world.config)
    assert len(world.consensus.scan("things", 0)) == 10


def test_files_that_are_not_due_are_said_of_their_collection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A task of a group mints many."""
    caplog.set_level("INFO", "persist_core")
    world = World(tmp_path, source={"path": "{date:%Y-%m-%d}.jsonl", "format": "json"}, time="path")
    world.drop("1970-01-01.jsonl")
    world.drop("1970-01-02.jsonl")
    assert world.files(world.minted(DAY_MS)) == ["1970-01-01.jsonl"]
    assert "1 files of things are dated at or after the end of this run" in caplog.text
