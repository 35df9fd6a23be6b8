"""The hidden shards of a collection, and when each is deleted. No list of shards shows them.

    NAME~reprocess   a replay                     when it has ended, was given up, or has been idle for long
    NAME~rebuild     the next generation          the same
    NAME~g<epoch>    an earlier generation        when its time to keep is over; if it was never swapped out, when it no
                                                  longer can be

What others share of a deleted one stays, by its records of forks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchManifest
from persist_core.errors import CorruptArtifact, Corruption, PersistError
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.keys import batches_prefix, hidden_shard
from persist_core.maintenance.drop import create_again, drop
from persist_core.maintenance.erase_objects import hidden_shards
from persist_core.protocol.fork_records import readable_forks
from persist_core.protocol.replay import PURPOSE
from persist_core.shard.eras import refuse_earlier
from persist_core.shard.origin import Swap
from persist_core.shard.state import ShardState

REBUILD = "rebuild"


def hidden_of(shard: str, purpose: str = PURPOSE) -> str:
    return hidden_shard(shard, purpose)


def give_up_rebuild(client: PersistClient, shard: str) -> list[str]:
    """Delete a rebuild that has not ended, and forks of the shard that were made for a swap which did not come; their
    names. A swap at work is refused."""
    start, state = hidden_shard(shard, "g"), client.state(shard)
    names = [name for name in hidden_shards(client, shard) if name.startswith(start)]
    names = [name for name in names if alive(client, name, or_dropped=True)]
    if set(names) - {each.kept for each in state.origin.swaps}:
        state, _ = client.machine.apply(shard, refuse_earlier)
    strays = [name for name in names if name not in {each.kept for each in state.origin.swaps}]
    return [name for name in (hidden_of(shard, REBUILD), *strays) if end(client, name)]


def end(client: PersistClient, hidden: str) -> bool:
    """Delete a hidden shard. False if it does not exist."""
    if alive(client, hidden, or_dropped=True) is None:
        return False
    drop(client, hidden, is_forced=True)
    create_again(client, hidden)
    return True


def alive(client: PersistClient, hidden: str, *, or_dropped: bool = False) -> ShardState | None:
    """The state of a hidden shard that holds something. `or_dropped`: or that a killed call has left dropped."""
    state = client.machine.fetch(hidden)
    if state is None or not (state.commits or (or_dropped and state.is_dropped)):
        return None
    return state


def definition_of(config: CollectionConfig, purpose: str, life: str) -> str:
    """The writer of a hidden shard: another definition, or another generation of the shard, begins again."""
    digest = hashlib.sha256(f"{config.model_dump_json()} {life}".encode()).hexdigest()
    return f"{purpose}/{digest[:16]}"


def begun_by(client: PersistClient, hidden: ShardState, definition: str) -> BatchManifest | None:
    """The first manifest of a hidden shard; `None` if another definition has begun it, or that is not known."""
    if hidden.origin.life is None or hidden.is_dropped:
        return None
    try:
        first = client.staged_manifest(hidden.origin.life)
    except CorruptArtifact:
        return None
    return first if first.writer == definition else None


def cleaned_up(clean: Callable[[], object], say: Callable[[str], None]) -> None:
    """Clean up. An error is only said: the result stands, and maintenance cleans up later."""
    try:
        clean()
    except PersistError as error:
        say(f"warning: not cleaned up yet; `persist maintain` does it later: {error.kind}: {error}")


@dataclass(frozen=True)
class Kept:
    """A generation that was swapped out, and is whole."""

    number: int
    swap: Swap
    state: ShardState


def kept_generations(client: PersistClient, state: ShardState) -> list[Kept]:
    """The earlier generations that can be swapped back, oldest first."""
    found = [(number, each, alive(client, each.kept)) for number, each in enumerate(state.origin.swaps)]
    return [Kept(number, each, known) for number, each, known in found if known is not None]


def left_by_copies(client: PersistClient, state: ShardState) -> list[str]:
    """Say what a copy of the shard lacks. It lacks a damaged generation too, and does not fail for it."""

    def is_there(shard: str) -> bool:
        try:
            return alive(client, shard) is not None
        except Corruption:
            return True

    kept = ", ".join(each.kept for each in state.origin.swaps if is_there(each.kept))
    return [f"earlier generations are not copied, and are swapped back only at the old place: {kept}"] if kept else []


def generations(client: PersistClient, shard: str) -> list[dict[str, Any]]:
    """The present generation and the kept ones, the newest first. `kept_until_ms`: `None` without a limit."""
    state = client.state(shard)
    found: list[tuple[int, ShardState, Swap | None]] = [(state.origin.generation, state, None)]
    found += [(each.number, each.state, each.swap) for each in reversed(kept_generations(client, state))]
    return [
        {
            "generation": number,
            "shard": known.shard,
            "key": list(known.schema.key_names) if known.schema else [],
            "since": known.since.time,
            "upper": known.upper.time,
            "swapped_out_ms": swap.swapped_ms if swap else None,
            "kept_until_ms": swap.kept_until_ms if swap else None,
        }
        for number, known, swap in found
    ]


def tidy(client: PersistClient, shard: str, *, grace_ms: int, intent_ms: int, max_keys: int) -> None:
    """Delete hidden shards whose time is over, then what nothing needs of the rest. Idle ones after `intent_ms`."""
    now_ms = client.clock.now_ms()
    for name in (hidden_of(shard), hidden_of(shard, REBUILD)):
        begun = client.machine.fetch(name)
        last = begun.newest_commit if begun else None
        if last is not None and now_ms - last.committed_ms >= intent_ms:
            end(client, name)
    state = client.state(shard)
    until = {each.kept: each.kept_until_ms for each in state.origin.swaps}
    records, _ = readable_forks(client.blob, shard)
    generation = hidden_shard(shard, "g")
    others = {each.fork for each in records if each.fork.startswith(generation)} - until.keys()
    newest = state.newest_commit
    for name in sorted(others):
        epoch = name.removeprefix(generation)
        if newest is None or (epoch.isdecimal() and int(epoch) < newest.epoch):  # no swap can make it a generation
            end(client, name)
    for name, kept_until_ms in until.items():
        if kept_until_ms is not None and kept_until_ms <= now_ms:
            end(client, name)
    left = hidden_shards(client, shard) if state.is_dropped else ()
    for name in sorted({hidden_of(shard, REBUILD), *until, *others, *left}):
        if next(iter(client.blob.list_keys_and_metadata(batches_prefix(name))), None) is not None:
            client.ensure_shard(name)  # its files may have come without it
            collect(client, name, grace_ms=grace_ms, intent_ms=intent_ms, max_keys=max_keys)
