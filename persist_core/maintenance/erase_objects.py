"""Objects that hold erased keys once no state names them: found, deleted, verified to be gone; and the list."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from persist_core.contents.erased import ErasedList
from persist_core.contents.key_range import Key
from persist_core.errors import InvalidInput, RunFailed
from persist_core.gc.needs import Needs, named_in
from persist_core.gc.sweep import abort_uploads, delete_all
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import erased_list
from persist_core.handles.load import load_manifest
from persist_core.keys import (
    CheckpointLayout,
    attempt_of,
    dry_runs_prefix,
    erased_prefix,
    failure_key,
    hidden_shard,
    is_input_copy,
    manifest_of_list,
    owner_of,
)
from persist_core.maintenance.sought import Sought
from persist_core.protocol.fork_records import list_forks
from persist_core.schema import CollectionSchema
from persist_core.shard.eras import readers_before, refuse_earlier
from persist_core.shard.replace import Replacements
from persist_core.shard.replace import erase as replace_manifests
from persist_core.shard.state import ShardState
from persist_core.time_text import DAY_MS

KILLED_MS = DAY_MS  # an upload begun before that is of a killed writer, or of one that has to try again
MAX_ROUNDS = 20  # each but the first because an append, a merge or another erasure has come in between


def verify(client: PersistClient, shard: str, keys: Sequence[Key]) -> tuple[str, ...]:
    """Read every object of the shard, and of hidden ones that work for it; returns where one of `keys` is."""
    sought = Sought.of(keys, schema_to_erase(client.state(shard)).key)
    names = (shard, *hidden_shards(client, shard))
    found = [
        key for name in names for key in _with_names(_objects(client, name), lambda _, data: sought.is_in_object(data))
    ]
    heads = [(name, client.location.consensus.head(name)) for name in names]
    return (*found, *(f"the state of {name}" for name, head in heads if head and sought.is_in_object(head.data)))


def delete(
    client: PersistClient, shard: str, sought: Sought, replaced: Collection[str]
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Delete all objects that hold a key, and manifests that were replaced: they are garbage now. Returns how many, the
    names of the objects that have to wait, and the readers that they wait for.

    Raises `RunFailed` if a fork still reads one of them.
    """
    names, shared = (shard, *hidden_shards(client, shard)), _shared(client, shard)
    found = {name: _unneeded(client, name, sought, set(replaced) - shared, shared) for name in names}
    begun_before_ms = client.clock.now_ms()
    if not any(found.values()):  # else batches of writers that are still at work are refused
        begun_before_ms -= KILLED_MS
    for name in names:
        list(abort_uploads(client.blob, name, begun_before_ms=begun_before_ms))
    if not any(found.values()):
        return 0, (), ()
    doomed = tuple(key for name, keys in found.items() if keys or name == shard for key in _refused(client, name, keys))
    state = client.state(shard)
    readers = readers_before(state, state.era, client.clock.now_ms())
    if readers:
        return 0, doomed, readers
    return len(delete_all(client, doomed)), (), ()


def _unneeded(
    client: PersistClient, shard: str, sought: Sought, unread: Collection[str], shared: Collection[str]
) -> list[str]:
    """The objects that hold a key, or are `unread`, and that the shard's state does not need; objects of checkpoints
    that hold a key in any case."""
    needed, checkpoints = Needs(client, shard).of_itself(client.state(shard)), CheckpointLayout(shard).root
    unneeded = _objects(
        client,
        shard,
        lambda key: key.startswith(checkpoints) or not (key in needed or key.startswith(erased_prefix(shard))),
    )
    return _with_names(
        unneeded, lambda key, data: key in unread or _is_by_the_way(shard, key) or sought.is_in_object(data), shared
    )


def _with_names(
    objects: Iterable[tuple[str, bytes]], is_found: Callable[[str, bytes], bool], kept: Collection[str] = ()
) -> list[str]:
    """The objects that hold a key, after the manifests that name one of them and are not `kept`: they never outlive it.

    The bounds of a composite key may be the values of two keys, so that nothing else says whose they are.
    """
    found, others = list[str](), dict[str, bytes]()
    for key, data in objects:
        if is_found(key, data):
            found.append(key)
        elif (attempt_of(key) or manifest_of_list(key)) and key not in kept:
            others[key] = data
    naming = {key for key, data in others.items() if any(each.encode() in data for each in found)}
    listing = {manifest_of_list(key) for key in naming.union(found)}
    naming |= others.keys() & listing
    return sorted(naming, key=lambda key: manifest_of_list(key) is not None) + sorted(
        found, key=lambda key: key.endswith(".parquet")
    )


def _refused(client: PersistClient, shard: str, found: Sequence[str]) -> Iterator[str]:
    """The objects among `found` that nothing needs, once what was staged before is refused: then nothing will."""
    state, _ = client.machine.apply(shard, refuse_earlier)
    needs = Needs(client, shard)
    needs.of(state, candidates=found)  # a fork that is being made of them can no longer be made
    needed, shared = needs.of_itself(state), _shared(client, shard)
    for key in found:
        if key in shared:
            raise RunFailed(f"{key} holds a key, and a fork of {shard} reads it; run the command again")
        if key not in needed or key.startswith(CheckpointLayout(shard).root):
            yield key


def finish(client: PersistClient, shard: str) -> int:
    """Delete what erasures have left for readers whose leases have ended since; returns how many objects."""
    deleted = 0
    for _ in range(MAX_ROUNDS):
        state = client.state(shard)
        if state.erased is None or state.is_dropped:
            return deleted
        known = erased_list(client, state)
        place = next((place for place, each in enumerate(known.erasures) if each.waiting), None)
        if place is None or readers_before(state, known.erasures[place].era, client.clock.now_ms()):
            return deleted
        erasure = known.erasures[place]
        shared = _shared(client, shard)  # by a fork of a copy, of which the erasure in the other place did not know
        deleted += len(delete_all(client, [key for key in erasure.waiting if key not in shared]))
        store(client, state, known.changed(replace(erasure, waiting=()), place))
    return deleted


def _shared(client: PersistClient, shard: str) -> set[str]:
    """The files that forks read. A record of a fork keeps more: all that it has shared in the beginning."""
    named = {batch.manifest_key for fork in forks_of(client, shard) for batch in fork.batches}
    return named.union(*(named_in(key, load_manifest(client.blob, key)) for key in named if owner_of(key) == shard))


def hidden_shards(client: PersistClient, shard: str) -> list[str]:
    """The names of the shards that work for this one: replays, and what belongs to other generations. Of some there
    may be files only."""
    start = hidden_shard(shard, "")
    stored = {owner_of(entry.key) for entry in client.blob.list_keys_and_metadata(start)}
    return sorted(stored.union(name for name in client.location.consensus.list_keys() if name.startswith(start)))


def forks_of(client: PersistClient, shard: str) -> Iterator[ShardState]:
    """The forks of the shard, and of hidden ones that work for it, that are still there."""
    owners = (shard, *hidden_shards(client, shard))
    for name in sorted({record.fork for owner in owners for record in list_forks(client.blob, owner)} - {shard}):
        fork = client.machine.fetch(name)
        if fork is not None and not fork.is_dropped:
            yield fork


def schema_to_erase(state: ShardState) -> CollectionSchema:
    if state.schema is None:
        raise InvalidInput(f"shard {state.shard} has no data")
    if not state.schema.key:
        raise InvalidInput(
            f"shard {state.shard} is a view and has no key: erase the key from the collections that it reads, and"
            " refresh it. To remove the row from its history too, drop the view and build it again"
        )
    return state.schema


def new_secret(client: PersistClient) -> str:
    """256 bits, of them 148 random."""
    return hashlib.sha256(f"{client.ids.uuid7()} {client.ids.uuid7()}".encode()).hexdigest()


def store(
    client: PersistClient,
    state: ShardState,
    listed: ErasedList,
    *,
    replaced: Replacements | None = None,
    refuses: bool = False,
    is_unsaid: Callable[[str], bool] = lambda _: False,
) -> bool:
    """Make `listed` the shard's list in place of the one that `state` names, and delete the others. False if another
    was faster.

    The others: all that were stored before, because their writers expect an earlier list. What is stored later may be
    named next.
    """
    shard, key = state.shard, listed.key_in(state.shard)
    others = [entry.key for entry in client.blob.list_keys_and_metadata(erased_prefix(shard)) if entry.key != key]
    client.blob.set(key, listed.encode())
    _, is_stored = client.machine.apply(
        shard,
        lambda found: replace_manifests(
            found,
            key,
            expected=state.erased,
            replaced=replaced,
            era=state.era if replaced else None,
            refuses=refuses,
            is_unsaid=is_unsaid,
        ),
    )
    for other in others if is_stored else ():
        client.blob.delete(other)
    return is_stored


def _is_by_the_way(shard: str, key: str) -> bool:
    """True for what may hold records in other forms, and is deleted if nothing needs it: copies of input, reports."""
    return is_input_copy(key) or attempt_of(key, failure_key) is not None or key.startswith(dry_runs_prefix(shard))


def _objects(
    client: PersistClient, shard: str, is_read: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, bytes]]:
    for entry in list(client.blob.list_keys_and_metadata(f"{shard}/")):
        data = client.blob.get(entry.key) if is_read(entry.key) else None
        if data is not None:
            yield entry.key, data
