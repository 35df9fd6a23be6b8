"""The protocol on S3 as a whole: what each task asks of the store, and several days, read back and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_core.checkpoint.publish import CheckpointReport
from persist_core.handles.client import PersistClient
from persist_core.location import PersistLocation, S3Consensus, open_location
from persist_core.location.s3.probe import probe_once
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.shard.state import Committed
from tests.core.location.s3_wire import Wire
from tests.core.protocol.test_protocol import DAY_MS, World
from tests.servers.s3 import S3Server
from tests.virtual import SeededIds

DAYS = 5


@pytest.fixture
def world(tmp_path: Path, versitygw: S3Server) -> Iterator[World]:
    made = World(tmp_path, versitygw.new_uri("lake/persist"))
    assert isinstance(made.consensus, S3Consensus)
    probe_once(made.consensus._logs.client, made.consensus._root, made.client.ids)
    yield made
    made.client.location.close()


def task(world: World) -> tuple[PersistClient, list[Wire]]:
    """A client as a task's new process has it, and the wires that count its requests. Close its location."""
    uri = world.consensus.uri
    location = open_location(PersistLocation(uri, uri))
    client = PersistClient(location, world.clock, SeededIds(world.clock.now_ms(), world.clock))
    return client, [Wire(location.blob), Wire(location.consensus)]


def requests(wires: list[Wire]) -> Counter[str]:
    return sum((Counter(wire.take_counts()) for wire in wires), Counter())


def test_days_on_s3(world: World) -> None:
    """Each task is a new process. The append's cost stays what the document says, whatever the history."""
    for day in range(DAYS):
        world.drop(f"{day}.jsonl")
        world.clock.sleep_ms(1000)
        description = world.minted((day + 1) * DAY_MS)
        rows = [(day, f"name {day}", day * DAY_MS, 1)]
        if day:
            rows.append((day - 1, f"name {day - 1}", day * DAY_MS, -1))
        key = world.write(description, rows)
        client, wires = task(world)
        assert isinstance(stages.append(client, description, key), Committed)
        assert requests(wires) == {"GetObject": 2, "ListObjectsV2": 1, "PutObject": 1}, "the manifest, and the append"
        client.location.close()
        report = stages.checkpoint(world.client, world.config)
        assert isinstance(report, CheckpointReport)
        assert report.published == (description.checkpoint_id,)
    reader = world.client.open_reader("things")
    for day in range(DAYS):
        assert reader.snapshot(day * DAY_MS).to_pylist() == [{"id": day, "name": f"name {day}"}]
    assert len(reader.changes(0, DAYS * DAY_MS - 1)) == 2 * (DAYS - 1)
    found = fsck(world.client, "things")
    assert found.is_clean, found.violations
    assert (found.batches, found.updates) == (DAYS, 2 * DAYS - 1)
    assert world.client.shards() == ["things"]


def test_a_part_that_something_else_deleted_is_found(world: World) -> None:
    description = world.minted(DAY_MS)
    key = world.write(description, [(1, "a", 0, 1)])
    assert isinstance(stages.append(world.client, description, key), Committed)
    (part,) = world.client.staged_manifest(key).parts
    world.blob.delete(part.key)
    assert [finding.check for finding in fsck(world.client, "things").violations] == ["part"]
