"""Operator state through the write protocol: what mint hands to the next write stage, and what it refuses to."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import STASH_OPERATOR, BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.errors import CorruptArtifact
from persist_core.handles.client import PersistClient
from persist_core.handles.write import stage_manifest
from persist_core.keys import part_key
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.state import Committed
from tests.virtual import ManualClock, SeededIds

SNAPSHOT_EVERY = 4


class Runs:
    """Dag runs of one collection, their write stage done by hand: it stages the given stash."""

    def __init__(self, folder: Path, blob: MemBlob | None = None) -> None:
        clock = ManualClock(1_700_000_000_000)
        self.blob = blob or MemBlob()
        self.client = PersistClient(OpenLocation(self.blob, MemConsensus()), clock, SeededIds(1, clock))
        body = {
            "name": "things",
            "source": {"path": "*.jsonl", "format": "json"},
            "key": "id",
            "columns": {"id": "bigint"},
            "delete": "none",
            "base_dir": str(folder),
            "retention": {"snapshot_every": SNAPSHOT_EVERY, "keep_last": 1, "keep_daily": 0, "keep_weekly": 0},
        }
        self.config = CollectionConfig.model_validate(body)
        self.until = 0

    def mint(self) -> BatchDescription:
        minted = stages.mint(self.client, self.config, until=self.until + 10, writer="dag/run")
        assert isinstance(minted, Minted)
        return minted.description

    def commit(
        self, stash: bytes | None, *, stashed: int, description: BatchDescription | None = None
    ) -> BatchDescription:
        """Mint, stage one artifact (or none), append; the checkpoint task does not run."""
        description = description or self.mint()
        attempt = self.client.ids.uuid7()
        writer = self.client.open_writer("things")
        manifest = self.client.staged_manifest(writer.stage(description, self.config.collection_schema(), attempt))
        artifacts: tuple[StateArtifact, ...] = ()
        is_delta = description.saves_delta(STASH_OPERATOR)
        if stash is not None:
            key = part_key("things", attempt, STASH_OPERATOR, 0)
            self.blob.set(key, stash)
            digest = hashlib.sha256(stash).hexdigest()
            artifacts = (StateArtifact(0, key, len(stash), digest),)
        operators = {STASH_OPERATOR: OperatorState(is_delta, artifacts)} if stashed else {}
        manifest = replace(manifest, operators=operators)
        key = stage_manifest(self.blob, manifest, attempt)
        assert isinstance(stages.append(self.client, description, key), Committed)
        self.until += 10
        return description

    def read(self, description: BatchDescription) -> list[bytes | None]:
        return [self.blob.get(artifact.key) for artifact in description.operators.get(STASH_OPERATOR, ())]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_run_starts_from_the_chain_without_a_checkpoint(runs: Runs) -> None:
    assert not runs.commit(b"one", stashed=1).saves_deltas
    second = runs.commit(b"two", stashed=2)
    assert (second.saves_deltas, runs.read(second)) == (True, [b"one"])
    third = runs.commit(None, stashed=2)
    assert (third.saves_deltas, runs.read(third)) == (True, [b"one", b"two"])
    assert runs.read(runs.mint()) == [b"one", b"two"]
    whole = runs.commit(b"all", stashed=2)
    assert (whole.epoch, whole.saves_deltas) == (SNAPSHOT_EVERY, False)
    assert runs.read(runs.mint()) == [b"all"]


def test_retention_leaves_the_chain_to_the_next_run(runs: Runs) -> None:
    for stash in (b"one", b"two", b"three"):
        runs.commit(stash, stashed=1)
        report = stages.checkpoint(runs.client, runs.config)
        assert report is not None
    assert runs.read(runs.mint()) == [b"one", b"two", b"three"]


def test_an_empty_stash_is_no_state_and_starts_a_new_chain(runs: Runs) -> None:
    runs.commit(b"one", stashed=1)
    runs.commit(None, stashed=0)
    description = runs.mint()
    assert (description.operators, description.saves_deltas) == ({}, False)
    runs.commit(b"new", stashed=1)
    assert runs.read(runs.mint()) == [b"new"]


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "altered"])
def test_a_damaged_stash_stops_the_run_and_names_the_artifact(runs: Runs, is_missing: bool) -> None:
    for stash in (b"one", b"two"):
        runs.commit(stash, stashed=1)
    oldest = runs.mint().operators[STASH_OPERATOR][0].key
    if is_missing:
        runs.blob.delete(oldest)
    else:
        runs.blob.set(oldest, b"One")
    before = runs.client.state("things")
    with pytest.raises(CorruptArtifact, match=oldest):
        runs.mint()
    assert runs.client.state("things") == before
    runs.blob.set(oldest, b"one")
    assert runs.read(runs.mint()) == [b"one", b"two"]


def test_with_an_empty_stash_a_damaged_checkpoint_stops_nobody(runs: Runs) -> None:
    runs.commit(b"one", stashed=1)
    damaged = runs.commit(None, stashed=0)
    stages.checkpoint(runs.client, runs.config)
    for metadata in list(runs.blob.list_keys_and_metadata("things/checkpoints/")):
        runs.blob.set(metadata.key, b"rotten")
    runs.commit(b"two", stashed=1)
    assert runs.read(runs.mint()) == [b"two"]
    report = stages.checkpoint(runs.client, runs.config)
    assert report is not None
    assert runs.client.location.blob.get(f"things/checkpoints/{damaged.checkpoint_id}/manifest.json") is None
    assert report.kept == 1, "retention went on"
    assert fsck(runs.client, "things").is_clean
