"""From a checkpoint to the operator state to start from. A run never starts with less state than was committed.

    commit -> batch manifest -> staged artifacts          the authoritative objects
    checkpoint manifest -> copies of these artifacts      replace what is damaged or no longer known

A run starts from the checkpoint that the shard's newest commit names. The state of each operator is a chain: the
artifacts of its last full snapshot and of every delta since, oldest first.

A restore, a fork and fsck verify every digest. Mint verifies the digests of `VERIFIED_BYTES`, and the sizes of the
rest, because a batch may open little of it. The write stage verifies the digest of each artifact that it opens; if one
is damaged, of all (`persist_spark.upsert.state_before`). If an object and its copy are both missing or damaged, the
error names the object, and the newest older checkpoint that is whole, for `persist restore`.

A run, a restore and GC are refused if `_latest` names a commit that the state does not have (`check_not_undone`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from persist_core.checkpoint.checkpointer import Checkpointer, Sizes, load_verified
from persist_core.checkpoint.manifest import CheckpointManifest, Link, path_of, walk
from persist_core.contents.operator_state import OperatorState, StateArtifact, chain_digest
from persist_core.errors import CorruptArtifact, Corruption, StorageError
from persist_core.handles.client import PersistClient
from persist_core.shard.state import ShardState
from persist_core.time_text import show_time

VERIFIED_BYTES = 4 << 20  # of operator state, by each mint: more would make its time grow with the state


@dataclass(frozen=True)
class RecoveredState:
    """Operator state to start from: the chain of each operator, oldest first.

    An operator without artifacts has no state. `stash_rows`: how many records the stash holds, if the newest commit
    counted them. `notices` name damaged objects that a copy replaced.
    """

    operators: Mapping[str, tuple[StateArtifact, ...]]
    notices: tuple[str, ...] = ()
    stash_rows: int | None = None


def check_not_undone(client: PersistClient, state: ShardState) -> None:
    """Raise `CorruptArtifact` if `_latest` names a commit of this shard that its state has lost: a run would build on
    what was committed before it, or begin again. `state` may be a new one.

    A commit precedes its checkpoint: a state that is read after `_latest` knows its commit.
    """
    checkpointer = Checkpointer(client.blob, state.shard)
    try:
        latest = checkpointer.read_latest()
        if latest is None or any(commit.checkpoint_id == latest for commit in state.commits):
            return
        lost = checkpointer.load_manifest(latest)
    except Corruption:  # the pointer is derived data, and the next checkpoint task writes it
        return
    if not _has_lost(state, lost):
        return
    state = client.machine.fetch(state.shard) or state
    if not _has_lost(state, lost):
        return
    client.pair.check()  # the stores are not of one location
    newest = "has no commit" if state.newest_commit is None else f"ends with epoch {state.newest_commit.epoch}"
    raise CorruptArtifact(
        f"shard {state.shard} has lost commits: {checkpointer.layout.latest} names {latest} of epoch {lost.epoch}, and"
        f" the state in {client.location.consensus.uri} {newest}. Objects of consensus were deleted, or it was restored"
        " from a backup that is older than the blobs. Nothing was changed. Restore it; or, if there is no newer backup,"
        f" `persist fsck --repair {state.shard}` lets the shard go on from what is left: see `Backup and restore` in"
        " docs/deploy.md"
    )


def _has_lost(state: ShardState, named: CheckpointManifest) -> bool:
    if not state.commits:  # in a later era: it was dropped, and a slow checkpoint task may have left the pointer
        return not state.era
    is_known = any(commit.checkpoint_id == named.checkpoint_id for commit in state.commits)
    is_ours = named.shard is None or named.shard.life == state.origin.life
    return is_ours and not is_known and named.epoch >= state.commits[0].epoch


def recover_newest(
    client: PersistClient, state: ShardState, *, verified_bytes: int | None = VERIFIED_BYTES
) -> RecoveredState:
    """The operator state that the next run starts from: the one that the shard's newest commit binds.

    Verifies the digests of at most `verified_bytes` (`None`: of all), newest artifacts first, and sizes beyond that.

    Raises `CorruptArtifact` like `recover`, and if the state has other digests of the chains.
    """
    parent = state.newest_commit
    if parent is None or not state.operators:
        return RecoveredState({})
    try:
        recovered = _Recovery(client, state, verified_bytes).recover(parent.checkpoint_id)
        found = {name: chain_digest(chain) for name, chain in recovered.operators.items()}
        if found != state.operators:
            raise CorruptArtifact(
                f"the operator state of checkpoint {parent.checkpoint_id} of shard {state.shard} is not the one that"
                f" was committed: found the digests {found}, expected {dict(state.operators)}"
            )
    except CorruptArtifact as error:  # with its meaning and the remedy
        raise CorruptArtifact(
            f"{error}. It holds what the rows of the shard do not say: records that wait for their time and, in"
            " sequence order, orders of deleted keys. So the run stops here. Restore the object from a backup of the"
            f" location, or {_way_back(client, state, parent.checkpoint_id)}"
        ) from error
    return recovered


def recover(client: PersistClient, state: ShardState, checkpoint_id: str) -> RecoveredState:
    """The operator state as of a checkpoint of the shard. Writes nothing.

    Raises `CorruptArtifact` naming the first object of a chain that is missing or damaged, if its copy is too.
    """
    return _Recovery(client, state, None).recover(checkpoint_id)


class _Recovery:
    def __init__(self, client: PersistClient, state: ShardState, verified_bytes: int | None) -> None:
        self._client = client
        self._unread = verified_bytes
        self._sizes = Sizes(client.blob)
        self._checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
        self._commits = {commit.checkpoint_id: commit for commit in state.commits}
        self._notices: list[str] = []

    def recover(self, checkpoint_id: str) -> RecoveredState:
        newest, layout = self._load(checkpoint_id), self._checkpointer.layout
        chains: dict[str, list[StateArtifact]] = {name: [] for name in newest.operators}
        for link, needed in walk(newest, self._load):
            for name in needed:
                operator = link.operators[name]
                folder = layout.folder(link.checkpoint_id)
                copies = [
                    layout.artifact(link.checkpoint_id, path_of(folder, name, each, is_delta=operator.is_delta))
                    for each in operator.artifacts
                ]
                chains[name][:0] = map(self._whole, operator.artifacts, copies)
        found = {name: tuple(chain) for name, chain in sorted(chains.items())}
        return RecoveredState(found, tuple(self._notices), newest.stash_rows)

    def _load(self, checkpoint_id: str) -> Link:
        commit = self._commits.get(checkpoint_id)
        if commit is None:
            return self._link_of_copies(self._checkpointer.load_manifest(checkpoint_id))
        try:
            manifest = self._client.manifest(commit)
        except CorruptArtifact as error:
            copy = self._checkpointer.find_readable(checkpoint_id)
            if copy is None:
                raise
            self._notices.append(f"{error}. The checkpoint manifest of {checkpoint_id} is used instead")
            return self._link_of_copies(copy)
        return Link(checkpoint_id, manifest.parent_id, manifest.operators, manifest.stats.get("stashed"))

    def _link_of_copies(self, manifest: CheckpointManifest) -> Link:
        operators = {
            name: OperatorState(
                saved.is_delta,
                tuple(
                    part.artifact(self._checkpointer.layout.artifact(manifest.checkpoint_id, part.path))
                    for part in saved.partitions
                ),
            )
            for name, saved in manifest.operators.items()
        }
        return Link(manifest.checkpoint_id, manifest.parent_id, operators)

    def _whole(self, artifact: StateArtifact, copy_key: str) -> StateArtifact:
        is_read = self._unread is None or artifact.size_bytes <= self._unread
        if is_read and self._unread is not None:
            self._unread -= artifact.size_bytes
        try:
            self._check(artifact.key, artifact, is_read=is_read)
        except CorruptArtifact as error:
            if copy_key == artifact.key:
                raise
            try:
                self._check(copy_key, artifact, is_read=is_read)
            except CorruptArtifact:
                raise CorruptArtifact(f"{error}; its copy {copy_key} is missing or damaged too") from error
            self._notices.append(f"{error}. Its copy {copy_key} is used instead")
            return replace(artifact, key=copy_key)
        return artifact

    def _check(self, key: str, artifact: StateArtifact, *, is_read: bool) -> None:
        if is_read:
            load_verified(self._client.blob, key, artifact.sha256)
        else:
            self._sizes.check(key, artifact)


def newest_whole(client: PersistClient, state: ShardState, *, except_for: str) -> CheckpointManifest | None:
    """The newest other checkpoint whose manifest can be read and whose operator state is complete."""
    checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
    for manifest in reversed(checkpointer.listing(threads=client.fetch_threads).manifests):
        if manifest.checkpoint_id != except_for:
            try:
                recover(client, state, manifest.checkpoint_id)
            except Corruption:
                continue
            return manifest
    return None


def _way_back(client: PersistClient, state: ShardState, checkpoint_id: str) -> str:
    shard = state.shard
    try:
        whole = newest_whole(client, state, except_for=checkpoint_id)
    except (StorageError, Corruption):
        return f"go back to an older checkpoint (`persist checkpoints {shard}`) with `persist restore`"
    if whole is None:
        return "load the input into a new collection: no other checkpoint of this shard is intact"
    return (
        f"go back with `persist restore {shard} --to {whole.checkpoint_id}`: the newest intact checkpoint (epoch"
        f" {whole.epoch}, upper {show_time(whole.upper)}). Input that was consumed after it is then consumed again"
    )
