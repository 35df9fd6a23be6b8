"""Checks of a shard's other objects: progress of its sources, frozen inputs, records of forks and conflicts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import InvalidInput
from persist_core.gc.garbage_list import GarbageList
from persist_core.handles.erased import last_erased
from persist_core.keys import (
    conflicts_prefix,
    digest_in,
    forks_prefix,
    gc_clock_key,
    gc_prefix,
    inputs_prefix,
    ledger_prefix,
    owner_of,
)
from persist_core.location.blob import Blob
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.violations import Violations
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.protocol.fork_records import ForkRecord, unrecorded
from persist_core.sealed import check_in_place, verified_digest
from persist_core.sources.registry import progress_of


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
    for checkpoint in Checkpointer(client.blob, state.shard, state.origin.life).listing().manifests:
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
