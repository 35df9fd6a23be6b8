"""Checks of what else a shard keeps: progress of its sources, frozen inputs, records of forks and conflicts."""

from __future__ import annotations

from collections.abc import Callable

from persist_core.errors import Corruption
from persist_core.location.blob import Blob
from persist_core.maintenance.check_state import Examined
from persist_core.maintenance.violations import Violations
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.protocol.fork_records import ForkRecord, unrecorded
from persist_core.shard.keys import conflict_key, conflicts_prefix, forks_prefix
from persist_core.sources.ledger import SOURCE_TYPE, Ledger
from persist_core.sources.shards import Refreshed, load_frozen


def check_records(examined: Examined, found: Violations) -> None:
    """Every record beside the shard has its digest and its own key; what a fork shares is recorded beside its owner."""
    client, state = examined.client, examined.state
    _check_each(client.blob, forks_prefix(state.shard), "fork", _key_of_fork, found)
    _check_each(client.blob, conflicts_prefix(state.shard), "conflict", _key_of_conflict, found)
    with found.checking("fork", f"records of what {state.shard} shares"):
        for key in unrecorded(client.blob, state.shard, state.batches):
            found.add("fork", f"{key} is shared, and no record beside its shard says so; GC may delete it")


def check_sources(examined: Examined, found: Violations) -> None:
    """What the progress of the shard's sources names in blob storage: segments of ledgers, frozen inputs."""
    client, state = examined.client, examined.state
    with found.checking("source_progress", f"the ledger of shard {state.shard}"):
        Ledger(client.blob, state.shard).consumed(state.sources.get(SOURCE_TYPE))
    with found.checking("source_progress", f"the frozen input of shard {state.shard}"):
        refreshed = Refreshed.of(state.sources)
        if refreshed is not None:
            load_frozen(client, refreshed.input_key)


def _check_each(blob: Blob, prefix: str, check: str, key_of: Callable[[bytes, str], str], found: Violations) -> None:
    with found.checking(check, prefix):
        for entry in blob.list_keys_and_metadata(prefix):
            with found.checking(check, entry.key):
                data = blob.get(entry.key)
                if data is not None and key_of(data, entry.key) != entry.key:
                    raise Corruption(f"{entry.key} holds the record of {key_of(data, entry.key)}; it was replaced")


def _key_of_fork(data: bytes, key: str) -> str:
    return ForkRecord.decode(data, what=f"record of a fork {key}").key


def _key_of_conflict(data: bytes, key: str) -> str:
    record = ConflictRecord.decode(data, what=f"conflict record {key}")
    return conflict_key(record.shard, record.conflict_id)
