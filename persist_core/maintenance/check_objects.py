"""Checks of the objects beside the batches: what is derived from commits (checkpoints, their copies of operator state,
offsets files, `_latest`), progress and frozen inputs, and the records of GC, forks and conflicts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress

from persist_core.checkpoint.checkpointer import Checkpointer, Listing
from persist_core.checkpoint.manifest import CheckpointManifest, walk
from persist_core.checkpoint.publish import manifest_of
from persist_core.checkpoint.quarantine import Quarantine
from persist_core.errors import CorruptArtifact, Corruption, InvalidInput
from persist_core.gc.sweep import GarbageList
from persist_core.handles.erased import last_erased
from persist_core.keys import (
    conflicts_prefix,
    digest_in,
    forks_prefix,
    gc_clock_key,
    gc_prefix,
    inputs_prefix,
    ledger_prefix,
    offsets_path,
    owner_of,
)
from persist_core.location.blob import Blob
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.violations import Violations
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.protocol.fork_records import ForkRecord, unrecorded
from persist_core.sealed import check_in_place, verified_digest
from persist_core.shard.state import ShardState
from persist_core.sources.registry import progress_of

_MAX_LOOKS = 3  # at `_latest`, which publishers may move while retention deletes


def check_checkpoints(examined: Examined, found: Violations) -> None:
    """Compare every checkpoint with the commit that it derives from, and every file in it with its manifest."""
    state = examined.state
    checkpointer = Checkpointer(examined.client.blob, state.shard, state.origin.life)
    with found.checking("checkpoint", checkpointer.layout.root):
        listing = checkpointer.listing(threads=examined.client.fetch_threads)
        commits = {commit.checkpoint_id: (commit, manifest) for commit, manifest in examined.committed()}
        for checkpoint_id, error in listing.unreadable.items():
            found.add("checkpoint", f"{checkpoint_id}: {error}")
        earlier = {each for each, life in listing.other_lives.items() if life in state.origin.earlier_lives}
        for checkpoint_id in listing.other_lives.keys() - earlier:
            found.add("checkpoint", f"{checkpoint_id} is of another shard {state.shard}, which was dropped")
        for checkpoint_id in _left_behind(examined, checkpointer, listing):
            found.add(
                "checkpoint",
                f"{checkpoint_id}: its manifest is missing, and other files are there: a checkpoint task died, or is"
                " at work. The next one deletes them",
            )
        undone = _undone(examined, listing)
        for manifest in undone:
            found.add(
                "undone",
                f"checkpoint {manifest.checkpoint_id} of epoch {manifest.epoch}: its commit is not in the state, whose"
                f" newest is {_newest_commit(examined.state)}; consensus was restored from a backup that is older than"
                " the blobs: see docs/deploy.md",
            )
        ancestors, broken = _chains(checkpointer, listing)
        for manifest in listing.manifests:
            mine = commits.get(manifest.checkpoint_id)
            expected = None if mine is None else manifest_of(mine[1], mine[0], state.origin.life)
            with found.checking("checkpoint", manifest.checkpoint_id):
                differences = list(_differences(checkpointer, manifest, expected))
                if manifest.checkpoint_id not in ancestors and manifest.checkpoint_id in broken:
                    differences.append(str(broken[manifest.checkpoint_id]))
                # Retention may have deleted it since it was listed; then there is nothing to report.
                if differences and checkpointer.find_readable(manifest.checkpoint_id) is not None:
                    for difference in differences:
                        found.add("checkpoint", f"{manifest.checkpoint_id}: {difference}")
        with found.checking("latest", checkpointer.layout.latest):
            if checkpointer.read_latest() not in earlier:  # until the next checkpoint task moves it
                _check_latest(checkpointer, listing, examined, found, {manifest.checkpoint_id for manifest in undone})


def _left_behind(examined: Examined, checkpointer: Checkpointer, listing: Listing) -> list[str]:
    """Checkpoints that a deletion has left behind, if a second look finds them neither complete nor gone."""
    if not listing.unfinished:
        return []
    commits = examined.client.state(examined.state.shard).commits
    quarantined = Quarantine(checkpointer.blob, checkpointer.layout).ids()
    again = checkpointer.listing().unfinished
    return [each for each in listing.left_behind(commits) if each in again and each not in quarantined]


def _differences(
    checkpointer: Checkpointer, manifest: CheckpointManifest, expected: CheckpointManifest | None
) -> Iterator[str]:
    checkpoint_id, layout = manifest.checkpoint_id, checkpointer.layout
    if expected is not None:
        for difference in expected.differences(manifest):
            yield f"its manifest differs from its commit's: {difference}"
    for name in manifest.operators:
        for artifact in manifest.operators[name].partitions:
            try:
                checkpointer.load_artifact(checkpoint_id, artifact)
            except CorruptArtifact as error:
                yield str(error)
    for name, offsets in manifest.source_offsets.items():
        key = layout.artifact(checkpoint_id, offsets_path(name))
        data = checkpointer.blob.get(key)
        if data != offsets.encode():
            yield f"{key}: found {'nothing' if data is None else data[:80]!r}; expected {offsets.encode()[:80]!r}"


def _chains(checkpointer: Checkpointer, listing: Listing) -> tuple[set[str], dict[str, Corruption]]:
    """Checkpoints that a newer one builds on, and checkpoints with a broken chain of an operator, with the reason.

    Retention may keep a checkpoint only because a newer one needs one operator of it. Then the chains of its other
    operators may be deleted already.
    """
    by_id = {manifest.checkpoint_id: manifest for manifest in listing.manifests}

    def load(checkpoint_id: str) -> CheckpointManifest:
        return by_id.get(checkpoint_id) or checkpointer.load_manifest(checkpoint_id)

    ancestors: set[str] = set()
    broken: dict[str, Corruption] = {}
    for manifest in listing.manifests:
        try:
            chain = [link.checkpoint_id for link, _ in walk(manifest, load)]
        except Corruption as error:
            broken[manifest.checkpoint_id] = error
        else:
            ancestors.update(chain[1:])
    return ancestors, broken


def _check_latest(
    checkpointer: Checkpointer, listing: Listing, examined: Examined, found: Violations, undone: set[str]
) -> None:
    """Check that `_latest` names a checkpoint that exists, is not undone, and not older than the newest published one.

    `listing` is older than what is read here, so a pointer that another task moves meanwhile is never too old. It is
    too old while a publisher is between its manifest and the pointer; if the publisher crashed there, the next one
    moves the pointer.
    """
    readable = {manifest.checkpoint_id: manifest for manifest in listing.manifests}
    published = [commit.checkpoint_id for commit in examined.state.commits if commit.checkpoint_id in readable]
    there = (manifest for manifest in reversed(listing.manifests) if manifest.checkpoint_id not in undone)
    newest = readable[published[-1]] if published else next(there, None)
    expected = "no checkpoint is published" if newest is None else f"the newest checkpoint is {newest.checkpoint_id}"
    key = checkpointer.layout.latest
    for _ in range(_MAX_LOOKS):
        latest = checkpointer.read_latest()
        named = None if latest is None else readable.get(latest) or checkpointer.find_readable(latest)
        if latest is None or named is not None:
            break
    if latest is None and newest is not None:
        found.add("latest", f"{key} is missing; {expected}")
    elif latest is not None and named is None:
        found.add("latest", f"{key} names {latest}, which has no readable manifest; {expected}")
    elif latest in undone:
        found.add("latest", f"{key} names {latest}, whose commit is not in the state; {expected}")
    elif named is not None and newest is not None and named.position < newest.position:
        found.add("latest", f"{key} names {latest} of epoch {named.epoch}; {expected}, of epoch {newest.epoch}")


def _undone(examined: Examined, listing: Listing) -> list[CheckpointManifest]:
    """Checkpoints whose commits the state has lost: as new as a commit that it lists, or newer, and not among them.

    A commit precedes its checkpoint. So a second look at the state, after the listing, knows the commits of all
    checkpoints in it, a current run's too.
    """

    def unknown(state: ShardState) -> list[CheckpointManifest]:
        known = {commit.checkpoint_id for commit in state.commits}
        first = state.commits[0].epoch if state.commits else 0
        return [each for each in listing.manifests if each.checkpoint_id not in known and each.epoch >= first]

    if not unknown(examined.state):
        return []
    return unknown(examined.client.state(examined.state.shard))


def _newest_commit(state: ShardState) -> str:
    newest = state.newest_commit
    return "none" if newest is None else f"{newest.checkpoint_id} of epoch {newest.epoch}"


def check_records(examined: Examined, found: Violations) -> None:
    """Check the digest and key of every record, and that what a fork shares is recorded in the owner's folder."""
    client, state = examined.client, examined.state
    _check_each(client.blob, forks_prefix(state.shard), "fork", ForkRecord.read, found)
    _check_each(client.blob, conflicts_prefix(state.shard), "conflict", ConflictRecord.read, found)
    _check_each(client.blob, gc_prefix(state.shard), "gc", _read_list, found)
    with found.checking("erased", f"the list of erasures of {state.shard}"):
        last_erased(client, state)
    with found.checking("fork", f"records of what {state.shard} shares"):
        for key in unrecorded(client.blob, state.shard, state.batches):
            found.add("fork", f"{key} is shared, but its shard has no record of that; GC may delete it")


def check_sources(examined: Examined, found: Violations) -> None:
    """Check the progress in the state, the objects that older commits and checkpoints name, and what is stored."""
    client, state = examined.client, examined.state
    verified: set[str] = set()
    with found.checking("source_progress", f"the progress of shard {state.shard}"):
        for progress in progress_of(client.blob, state.shard, state.sources).values():
            verified |= progress.needed_keys()
            for message in progress.verify():
                found.add("source_progress", message)
    _check_each(client.blob, inputs_prefix(state.shard), "source_progress", _read_input, found)
    _check_each(client.blob, ledger_prefix(state.shard), "source_progress", _read_segment, found)
    with found.checking("source_progress", f"the earlier progress of shard {state.shard}"):
        missing = _earlier_needs(examined, found) - verified
        for owner in sorted({owner_of(key) for key in missing}):  # a fork's earlier progress is its origin's
            for prefix in (inputs_prefix(owner), ledger_prefix(owner)):
                missing -= {entry.key for entry in client.blob.list_keys_and_metadata(prefix)}
        for key in sorted(missing):
            found.add("source_progress", f"{key} is missing; a commit or a checkpoint of shard {state.shard} needs it")


def _earlier_needs(examined: Examined, found: Violations) -> set[str]:
    """Blob keys that the progress in older commits and in checkpoints names, if a shard can be restored to it."""
    client, state = examined.client, examined.state
    earlier = {commit.checkpoint_id: manifest.sources for commit, manifest in examined.committed()}
    checkpointer = Checkpointer(client.blob, state.shard, state.origin.life)
    for checkpoint in checkpointer.listing(threads=client.fetch_threads).manifests:
        earlier.setdefault(checkpoint.checkpoint_id, checkpoint.sources)
    needs: set[str] = set()
    for checkpoint_id, sources in earlier.items():
        with found.checking("source_progress", f"the progress as of checkpoint {checkpoint_id}"):
            for progress in progress_of(client.blob, state.shard, sources).values():
                with suppress(InvalidInput):  # a view is never restored: it needs only what its newest refresh has read
                    progress.check_restorable()
                    needs |= progress.needed_keys()
    return needs


def _check_each(blob: Blob, prefix: str, check: str, read: Callable[[bytes, str], object], found: Violations) -> None:
    with found.checking(check, prefix):
        for entry in blob.list_keys_and_metadata(prefix):
            with found.checking(check, entry.key):
                data = blob.get(entry.key)
                if data is not None:
                    read(data, entry.key)


def _read_list(data: bytes, key: str) -> None:
    if key != gc_clock_key(owner_of(key)):
        GarbageList.read(data, key)


def _read_input(data: bytes, key: str) -> None:
    check_in_place(verified_digest(data, what=f"frozen input {key}"), digest_in(key), what=f"frozen input {key}")


def _read_segment(data: bytes, key: str) -> None:
    check_in_place(hashlib.sha256(data).hexdigest(), digest_in(key), what=f"ledger segment {key}")
