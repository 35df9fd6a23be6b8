"""Checks of a shard's other objects: progress of its sources, frozen inputs, records of forks and conflicts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

from persist_core.checkpoint.checkpointer import BlobCheckpointer
from persist_core.errors import Corruption, InvalidInput
from persist_core.gc.garbage_list import GarbageList
from persist_core.location.blob import Blob
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.violations import Violations
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.protocol.fork_records import ForkRecord, unrecorded
from persist_core.shard.batch import SourceFrontier
from persist_core.shard.keys import (
    conflict_key,
    conflicts_prefix,
    era_in,
    forks_prefix,
    gc_clock_key,
    gc_prefix,
    input_key,
    inputs_prefix,
    ledger_prefix,
    ledger_segment_key,
    owner_of,
)
from persist_core.shard.sealed import verified_digest
from persist_core.sources.registry import progress_of


def check_records(examined: Examined, found: Violations) -> None:
    """Check the digest and key of every record, and that what a fork shares is recorded in the owner's folder."""
    client, state = examined.client, examined.state
    _check_each(client.blob, forks_prefix(state.shard), "fork", _key_of_fork, found)
    _check_each(client.blob, conflicts_prefix(state.shard), "conflict", _key_of_conflict, found)
    _check_each(client.blob, gc_prefix(state.shard), "gc", _key_of_list, found)
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
    _check_each(client.blob, inputs_prefix(state.shard), "source_progress", _key_of_input, found)
    _check_each(client.blob, ledger_prefix(state.shard), "source_progress", _key_of_segment, found)
    with found.checking("source_progress", f"the earlier progress of shard {state.shard}"):
        missing = _earlier_needs(examined, found) - verified
        for owner in sorted({owner_of(key) for key in missing}):  # a fork's earlier progress is that of its origin
            for prefix in (inputs_prefix(owner), ledger_prefix(owner)):
                missing -= {entry.key for entry in client.blob.list_keys_and_metadata(prefix)}
        for key in sorted(missing):
            found.add("source_progress", f"{key} is missing; a commit or a checkpoint of shard {state.shard} needs it")


def _earlier_needs(examined: Examined, found: Violations) -> set[str]:
    """Blob keys that the progress in older commits and in checkpoints names, if a shard can be restored to it."""
    client, state = examined.client, examined.state
    earlier = {commit.checkpoint_id: manifest.sources for commit, manifest in examined.committed()}
    for checkpoint in BlobCheckpointer(client.blob, state.shard).listing().manifests:
        earlier.setdefault(
            checkpoint.checkpoint_id,
            {name: SourceFrontier(each.source_type, each.offsets) for name, each in checkpoint.source_offsets.items()},
        )
    needs: set[str] = set()
    for checkpoint_id, sources in earlier.items():
        with found.checking("source_progress", f"the progress as of checkpoint {checkpoint_id}"):
            for progress in progress_of(client.blob, state.shard, sources).values():
                with suppress(InvalidInput):  # a view is never restored: it needs only what its newest refresh has read
                    progress.check_restorable()
                    needs |= progress.needed_keys()
    return needs


def _check_each(blob: Blob, prefix: str, check: str, key_of: Callable[[bytes, str], str], found: Violations) -> None:
    with found.checking(check, prefix):
        for entry in blob.list_keys_and_metadata(prefix):
            with found.checking(check, entry.key):
                data = blob.get(entry.key)
                found_key = entry.key if data is None else key_of(data, entry.key)
                if found_key != entry.key:
                    raise Corruption(
                        f"{entry.key} contains the bytes of {found_key}: they are damaged or were replaced"
                    )


def _key_of_fork(data: bytes, key: str) -> str:
    return ForkRecord.decode(data, what=f"record of a fork {key}").key


def _key_of_conflict(data: bytes, key: str) -> str:
    record = ConflictRecord.decode(data, what=f"conflict record {key}")
    return conflict_key(record.shard, record.conflict_id)


def _key_of_list(data: bytes, key: str) -> str:
    if key != gc_clock_key(owner_of(key)):
        GarbageList.decode(data, what=f"list of garbage {key}; `persist gc` replaces it")
    return key


def _key_of_input(data: bytes, key: str) -> str:
    return input_key(owner_of(key), era_in(key), verified_digest(data, what=f"frozen input {key}"))


def _key_of_segment(data: bytes, key: str) -> str:
    return ledger_segment_key(owner_of(key), era_in(key), hashlib.sha256(data).hexdigest())
