"""Checks of the authoritative objects: versions of the state, batch manifests, staged operator state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.checkpoint.recovery import check_not_undone, recover_newest
from persist_core.contents.batch import BatchManifest, HollowBatch, SourceFrontier
from persist_core.errors import ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.keys import CheckpointLayout
from persist_core.location.consensus import Consensus, VersionedData
from persist_core.maintenance.violations import Violations
from persist_core.row_text import show_row
from persist_core.shard.codec import read_version
from persist_core.shard.invariants import check_step
from persist_core.shard.state import Commit, ShardState

_VERSIONS_AT_ONCE = 10  # a state can be megabytes


@dataclass(frozen=True)
class Examined:
    """The readable part of a shard. `state`: its newest readable version; `manifests`: what it names, by key."""

    client: PersistClient
    state: ShardState
    manifests: Mapping[str, BatchManifest]

    def committed(self) -> Iterator[tuple[Commit, BatchManifest]]:
        """The commits that the state still lists and whose manifest can be read, oldest first."""
        for commit in self.state.commits:
            manifest = self.manifests.get(commit.manifest_key)
            if manifest is not None:
                yield commit, manifest


def read_state(client: PersistClient, shard: str, found: Violations) -> ShardState | None:
    """Check every version of the state in the consensus store; returns the newest one that can be read.

    Raises `ShardNotFound` if the shard has no version, and had none.
    """
    newest: ShardState | None = None
    count = 0
    with found.checking("state", f"the state of shard {shard}"):
        for version in _versions(client.location.consensus, shard):
            count += 1
            with found.checking("state", f"version {version.seqno} of the state of shard {shard}"):
                state = read_version(shard, version)
                before, newest = newest, state
                if before is not None and before.seqno + 1 == state.seqno:
                    check_step(before, state)
    if not count and not len(found):
        with found.checking("undone", f"the checkpoints of shard {shard}"):
            check_not_undone(client, ShardState(shard))
        if not len(found) and client.blob.get(latest := CheckpointLayout(shard).latest) is not None:
            found.add("undone", f"{latest} is there, and names nothing that can be read; the shard's state is gone")
        if not len(found):
            raise ShardNotFound(f"no shard {shard!r} in {client.location.consensus.uri}; `persist shards` lists them")
    return newest


def _versions(consensus: Consensus, shard: str) -> Iterator[VersionedData]:
    """All versions, oldest first; a commit made meanwhile may be among them. Truncation keeps about 100."""
    seqno = 0
    while versions := consensus.scan(shard, seqno, _VERSIONS_AT_ONCE):  # ends at the head: seqnos ascend
        yield from versions
        seqno = versions[-1].seqno + 1


def _check_schemas(key: str, manifest: BatchManifest, state: ShardState, found: Violations) -> None:
    for version, schema in manifest.schemas.items():
        if state.schemas.of(version, what=key).to_json() != schema.to_json():
            found.add("schema", f"{key}: its schema version {version} is not the one in the shard's state")
    for artifact in (each for operator in manifest.operators.values() for each in operator.artifacts):
        if artifact.schema_version:
            state.schemas.of(artifact.schema_version, what=f"artifact {artifact.key}")


def read_manifests(client: PersistClient, state: ShardState, found: Violations) -> Examined:
    """Check every batch manifest that the state names, in a batch or in a commit, against it."""
    manifests: dict[str, BatchManifest] = {}
    named: dict[str, HollowBatch | Commit] = {commit.manifest_key: commit for commit in state.commits}
    named.update({batch.manifest_key: batch for batch in state.batches})
    for key, each in named.items():
        with found.checking("manifest", key):
            # Lists of parts of a batch that was merged may be gone.
            is_batch = isinstance(each, HollowBatch)
            manifests[key] = client.manifests([each])[0] if is_batch else client.manifest(each)
            _check_schemas(key, manifests[key], state, found)
    for batch in state.batches:
        manifest = manifests.get(batch.manifest_key)
        if manifest is not None and not batch.is_of(manifest):
            said, known = asdict(manifest.hollow(batch.manifest_key)), asdict(batch)
            differing = [name for name in known if said[name] != known[name]]
            found.add(
                "manifest",
                f"{batch.manifest_key} says {show_row({name: said[name] for name in differing})}; the state says"
                f" {show_row({name: known[name] for name in differing})}",
            )
    examined = Examined(client, state, manifests)
    commits = state.commits
    previous = dict(zip((commit.checkpoint_id for commit in commits[1:]), commits, strict=False))
    for commit, manifest in examined.committed():
        for difference in _differences(commit, manifest, previous.get(commit.checkpoint_id)):
            found.add("manifest", f"{commit.manifest_key}: {difference}")
    _check_sources(examined, found)
    return examined


def _differences(commit: Commit, manifest: BatchManifest, previous: Commit | None) -> Iterator[str]:
    restored_from = manifest.restored.checkpoint_id if manifest.restored else None
    names = ("token", "contents_digest", "lower", "upper", "checkpoint_id", "epoch", "writer", "is_change")
    facts = {name: (getattr(manifest, name), getattr(commit, name)) for name in names}
    facts["restored_from"] = (restored_from, commit.restored_from)
    if previous is not None and any(operator.is_delta for operator in manifest.operators.values()):
        facts["parent_id"] = (manifest.parent_id, previous.checkpoint_id)
    for name, (said, expected) in facts.items():
        if said != expected:
            yield f"{name} is {said!r}, in the state {expected!r}"
    stats = manifest.stats
    if {"inserts", "updates", "deletes", "output_count"} <= stats.keys():
        written = stats["inserts"] + 2 * stats["updates"] + stats["deletes"]
        if not stats["output_count"] == written == manifest.counts.updates:
            yield (
                f"the batch has {manifest.counts.updates} updates; its statistics say output_count"
                f" {stats['output_count']}, and inserts + 2 x updates + deletes is {written}"
            )


def _check_sources(examined: Examined, found: Violations) -> None:
    """Check that the progress in the state results from its commits, as far back as every manifest can be read."""
    state = examined.state
    expected: dict[str, SourceFrontier] = {}
    for commit in reversed(state.commits):
        manifest = examined.manifests.get(commit.manifest_key)
        if manifest is None:
            break
        expected = {**manifest.sources, **expected}
        if manifest.restored:
            break
    for name, source in expected.items():
        if state.sources.get(name) != source:
            found.add(
                "source_progress",
                f"source {name}: the state says {state.sources.get(name)}, its commits say {source}",
            )


def check_operator_state(examined: Examined, found: Violations) -> None:
    """Check every artifact staged by commits since the newest restore, and the chains that the next run starts from.

    No run starts from state before a restore.
    """
    state = examined.state
    commits = list(examined.committed())
    restores = [number for number, (_, manifest) in enumerate(commits) if manifest.restored]
    for _, manifest in commits[restores[-1] if restores else 0 :]:
        for operator in manifest.operators.values():
            for artifact in operator.artifacts:
                with found.checking("operator_state", artifact.key):
                    load_verified(examined.client.blob, artifact.key, artifact.sha256)
    with found.checking("operator_state", f"the operator state of shard {state.shard}"):
        recover_newest(examined.client, state, verified_bytes=None)
