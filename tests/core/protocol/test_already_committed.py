"""A description that is committed ends every repeated stage as already committed, whatever happened to its input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.errors import AlreadyCommitted, CorruptArtifact, InvalidInput, TokenReuse
from persist_core.protocol import run, stages
from persist_core.protocol.stages import NothingToDo
from persist_core.shard.state import Committed
from tests.core.protocol.test_protocol import DAY_MS, World

ROWS = [(1, "x", 5, 1)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.drop("a.jsonl")
    return made


def test_a_mint_that_was_repeated_before_its_zombie_committed(world: World) -> None:
    """The second mint's answer is what later tasks get; the first one's write and append still happen."""
    zombie, repeated = world.minted(DAY_MS), world.minted(DAY_MS)
    committed = stages.append(world.client, zombie, world.write(zombie, ROWS))
    assert isinstance(committed, Committed)
    with pytest.raises(AlreadyCommitted):
        stages.check_not_outdated(world.client.state("things"), repeated)
    key = stages.manifest_of_outdated(world.client, world.config, repeated)
    again = stages.append(world.client, repeated, key)
    assert again == Committed(committed.commit, is_new=False)
    late = stages.append(world.client, repeated, world.write(repeated, ROWS))
    assert late == again, "its write had begun before the zombie's append"
    assert world.client.open_reader("things").snapshot().num_rows == 1


def test_a_mint_after_its_own_commit_says_so(world: World) -> None:
    description = world.minted(DAY_MS, "dag/a")
    stages.append(world.client, description, world.write(description, ROWS))
    own, other = world.mint(DAY_MS, "dag/a"), world.mint(DAY_MS, "dag/b")
    assert isinstance(own, NothingToDo)
    assert isinstance(other, NothingToDo)
    assert "this run's interval is already committed, at" in own.reason
    assert "was covered by an earlier commit" in other.reason


def test_a_write_that_is_cleared_after_its_input_was_archived(world: World) -> None:
    description = world.minted(DAY_MS)
    stages.append(world.client, description, world.write(description, ROWS))
    (world.folder / "a.jsonl").unlink()
    assert description.input_key is not None
    world.blob.delete(description.input_key)
    with pytest.raises(AlreadyCommitted, match="is already committed"):
        stages.check_not_outdated(world.client.state("things"), description)
    with pytest.raises(AlreadyCommitted), stages.outdated_first(world.client, description):
        (world.folder / "a.jsonl").stat()


def test_a_committed_description_starts_no_job(world: World) -> None:
    description = world.minted(DAY_MS)
    committed = stages.append(world.client, description, world.write(description, ROWS))
    assert isinstance(committed, Committed)
    (world.folder / "a.jsonl").unlink()

    def write(_: object) -> str:
        raise AssertionError("a job was started")

    key = run.write_staged(world.client, world.config, description, write)
    assert key is None
    again = run.append_staged(world.client, world.config, description, key)
    assert again == Committed(committed.commit, is_new=False)


def test_an_append_whose_staged_batch_is_gone(world: World) -> None:
    description = world.minted(DAY_MS)
    key, other = world.write(description, ROWS), world.write(description, ROWS)
    committed = stages.append(world.client, description, key)
    assert isinstance(committed, Committed)
    world.blob.delete(other)
    assert stages.append(world.client, description, other) == Committed(committed.commit, is_new=False)
    later = world.minted(2 * DAY_MS)
    with pytest.raises(CorruptArtifact, match="is missing"):
        stages.append(world.client, later, other)
    with pytest.raises(InvalidInput, match="mixed up"):
        stages.append(world.client, later, key)


def test_an_append_of_another_try_with_other_contents(world: World) -> None:
    description = world.minted(DAY_MS)
    key, other = world.write(description, ROWS), world.write(description, [])
    committed = stages.append(world.client, description, key)
    assert isinstance(committed, Committed)
    assert stages.append(world.client, description, other) == Committed(committed.commit, is_new=False)
    longer = replace(description, upper=2 * DAY_MS)
    with pytest.raises(TokenReuse):
        stages.append(world.client, longer, world.write(longer, ROWS))


def test_a_checkpoint_that_is_repeated(world: World) -> None:
    description = world.minted(DAY_MS)
    stages.append(world.client, description, world.write(description, ROWS))
    reports = [stages.checkpoint(world.client, world.config) for _ in range(2)]
    assert [report and report.checkpoint_id for report in reports] == [description.checkpoint_id] * 2
    assert [report and report.published for report in reports] == [(description.checkpoint_id,), ()]
