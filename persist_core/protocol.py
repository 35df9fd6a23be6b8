"""The three-stage write protocol and the checkpoint after it, as plain functions (SEMANTICS, section 5).

    mint   ->  BatchDescription | NothingToDo         reads the shard and lists the input; freezes it
    write  ->  BatchManifest, staged                  Spark (persist_spark.write_job), or `write_without_input` here
    append ->  Committed | Conflict                   the one compare-and-set
    checkpoint -> CheckpointReport                    derived from the newest commit; anybody may do it again

Invariants, which let a caller retry any of them at any time:

1. Nothing before `append` changes what a reader sees; `append` changes it in one compare-and-set.
2. The token comes from the shard, the description and the writer (dag run), never from a try: a second append of the
   same description is the first one's answer.
3. A description is valid while the shard's upper is its lower. At most one of the valid ones is ever appended.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from persist_core.batch import (
    BatchCounts,
    BatchDescription,
    BatchManifest,
    SourceFrontier,
    StateArtifact,
)
from persist_core.checkpoint.checkpointer import BlobCheckpointer
from persist_core.checkpoint.publish import CheckpointReport, publish_and_retain, publish_missing
from persist_core.checkpoint.recovery import stash_chain
from persist_core.client import PersistClient
from persist_core.config import CollectionConfig
from persist_core.conflicts import ConflictRecord, record_conflict
from persist_core.errors import InvalidInput, OutdatedDescription
from persist_core.frontier import Frontier, interval
from persist_core.schema import CollectionSchema, check_compatible
from persist_core.sources.files import FileSource
from persist_core.state import Commit, Committed, ShardState, UpperMismatch
from persist_core.write import WriteHandle, manifest_for, stage_manifest

FILES = "files"  # the name of a collection's one source
EMPTY_ROWS = "empty"  # the rows' digest of a batch without updates


@dataclass(frozen=True)
class NothingToDo:
    """There is no run to make: the reason, for the skip message. `upper` is the shard's."""

    reason: str
    upper: int | None


@dataclass(frozen=True)
class Minted:
    """A description, and what mint noticed about the input, for the log."""

    description: BatchDescription
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conflict:
    """The append lost: its record, and whether this is the first time that it was seen."""

    record: ConflictRecord
    is_new: bool
    is_covered: bool


def mint(client: PersistClient, config: CollectionConfig, *, until: int | None, writer: str) -> Minted | NothingToDo:
    """Describe the next batch of the collection: `[shard's upper, until)`, with all input that no commit has consumed.

    `until` is the input's frontier (ms; the end of the data interval), `None` to close the shard. `writer` names the
    dag run. Raises `SchemaMismatch` before anything is staged, `CorruptArtifact` where operator state is damaged.
    """
    state = client.ensure_shard(config.name)
    if state.upper.is_closed:
        return NothingToDo(f"shard {config.name} is closed: nothing more will ever come", None)
    lower = state.upper.time or 0
    if until is not None and until <= lower:
        return NothingToDo(
            f"everything before {until} is already in shard {config.name} (upper {state.upper}): this run's interval"
            " was covered by an earlier commit",
            lower,
        )
    if state.schema is not None:
        check_compatible(state.schema, config.collection_schema())
    source = FileSource(config, client.blob)
    freeze = source.freeze(state.sources.get(FILES), until=until, lower=lower)
    sources, input_key = dict(state.sources), None
    if freeze.frozen.files:
        input_key = f"{config.name}/inputs/{freeze.frozen.digest()}.json"
        client.blob.set(input_key, freeze.frozen.encode())
        sources[FILES] = source.advance(state.sources.get(FILES), freeze.frozen)
    description = _describe(client, config, state, lower, freeze.upper, writer, input_key, sources)
    description = replace(
        description,
        input_files=len(freeze.frozen.files),
        input_bytes=freeze.frozen.size_bytes,
    )
    return Minted(description, freeze.notices())


def _describe(
    client: PersistClient,
    config: CollectionConfig,
    state: ShardState,
    lower: int,
    upper: int | None,
    writer: str,
    input_key: str | None,
    sources: dict[str, SourceFrontier],
) -> BatchDescription:
    parent = state.newest_commit
    stash, is_first_of_chain = _stash_before(client, config, parent)
    epoch = parent.epoch + 1 if parent else 1
    identity = json.dumps([config.name, lower, upper, input_key, writer])
    return BatchDescription(
        shard=config.name,
        lower=lower,
        upper=upper,
        token=hashlib.sha256(identity.encode()).hexdigest(),
        checkpoint_id=client.ids.uuid7(),
        epoch=epoch,
        parent_id=parent.checkpoint_id if parent else None,
        writer=writer,
        input_key=input_key,
        sources=sources,
        stash=stash,
        is_delta=not is_first_of_chain and epoch % config.retention.snapshot_every != 0,
    )


def _stash_before(
    client: PersistClient, config: CollectionConfig, parent: Commit | None
) -> tuple[tuple[StateArtifact, ...], bool]:
    """The operator state to start from: the checkpoint that the newest commit names, published first if need be.

    Returns the chain, and whether the next checkpoint has to save its state whole.
    """
    if parent is None:
        return (), True
    if client.manifest(parent.manifest_key).stats.get("stashed", 0) == 0:
        return (), True
    checkpointer = BlobCheckpointer(client.blob, config.name)
    publish_missing(client, client.state(config.name))
    return stash_chain(checkpointer, parent.checkpoint_id), False


def write_without_input(client: PersistClient, config: CollectionConfig, description: BatchDescription) -> str | None:
    """Stage a batch that has neither input nor stash, without Spark: it only advances the upper (a seal).

    Returns the manifest's key, or `None` where the description needs Spark. Raises `OutdatedDescription`.
    """
    if description.input_key is not None or description.stash:
        return None
    check_not_outdated(client.state(description.shard), description)
    manifest = manifest_for(description, config.collection_schema(), (), BatchCounts(), rows=EMPTY_ROWS)
    return stage_manifest(client.blob, manifest, client.ids.uuid7())


def check_not_outdated(state: ShardState, description: BatchDescription) -> None:
    """Raise `OutdatedDescription` unless the description is still valid or is itself the commit that stands."""
    if state.upper == Frontier(description.lower):
        return
    if any(commit.token == description.token for commit in state.commits):
        return
    raise OutdatedDescription(
        f"description {description.interval} of shard {description.shard} is outdated: the upper is {state.upper}."
        " Nothing was staged; mint again"
    )


def append(client: PersistClient, description: BatchDescription, manifest_key: str) -> Committed | Conflict:
    """Append the staged batch. A lost race is a `Conflict`, recorded once; nothing is lost or doubled by it."""
    manifest = client.manifest(manifest_key)
    check_manifest(manifest, description)
    # Not by `open_writer`: minting has made the shard, and another look at it is another request on a remote store.
    writer = WriteHandle(client.machine, client.blob, client.clock, description.shard)
    result = writer.compare_and_append(manifest, manifest_key)
    if isinstance(result, UpperMismatch):
        record, is_new = record_conflict(client.blob, client.clock, description, result)
        return Conflict(record, is_new=is_new, is_covered=result.is_stale)
    return result


def check_manifest(manifest: BatchManifest, description: BatchDescription) -> None:
    """Raise `InvalidInput` unless the manifest was written for exactly this description."""
    found = (manifest.shard, manifest.lower, manifest.upper, manifest.token, manifest.checkpoint_id)
    wanted = (
        description.shard,
        description.lower,
        description.upper,
        description.token,
        description.checkpoint_id,
    )
    if found != wanted:
        raise InvalidInput(f"manifest is for {found}; wanted {wanted}: the write and append stages were mixed up")


def checkpoint(client: PersistClient, config: CollectionConfig) -> CheckpointReport | None:
    """Publish the checkpoint of the newest commit (and any that was missed), move `_latest`, apply retention.

    Derived from the commit: safe to do again, by anybody, at any time. `None` where nothing was committed yet.
    """
    return publish_and_retain(client, config.name, config.retention)


def committed_interval(commit: Commit) -> str:
    """`[lower, upper)` of a commit, for messages."""
    return interval(Frontier(commit.lower), Frontier(commit.upper))


__all__ = [
    "CheckpointReport",
    "CollectionSchema",
    "Conflict",
    "Minted",
    "NothingToDo",
    "append",
    "check_not_outdated",
    "checkpoint",
    "committed_interval",
    "mint",
    "write_without_input",
]
