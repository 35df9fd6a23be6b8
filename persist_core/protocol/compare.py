"""`persist diff`: what differs between two times of a shard, or between a shard and its fork.

    Side a, Side b ──shared_until──> the last time that both share ──delta_since, of each──> b - a ──> Differences

The cost follows the changes since they were equal; two shards that share nothing are read whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.contents.batch import last_time
from persist_core.contents.parts import errs_schema, updates_schema
from persist_core.errors import InvalidInput, InvalidTime, ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle, check_as_of
from persist_core.keys import is_checkpoint_id, is_shard_name
from persist_core.protocol.delta import BEGINNING, MAX_UPDATES, Delta, check_size, delta_since, signed
from persist_core.protocol.difference import Differences, differences
from persist_core.shard.state import ShardState
from persist_core.time_text import parse_time, show_time


@dataclass(frozen=True)
class Side:
    """A shard as of a time."""

    state: ShardState
    time: int

    def __str__(self) -> str:
        return f"{self.state.shard} as of {show_time(self.time)}"


def side_of(
    client: PersistClient,
    shard: str,
    text: str | None,
    *,
    zone: str,
    check: Callable[[str], object] = lambda _: None,
) -> Side:
    """Read a text: a checkpoint of the shard, a time, or another shard (a fork) as it is now. `None`: as the shard is.

    Raises `InvalidInput` if it is none of them, `CheckpointNotFound`, `OutsideFrontiers` for a time that cannot be
    read, and what `check` does with the name of a shard that is not a generation of this one.
    """
    state = client.state(shard)
    if text is None:
        return Side(state, check_as_of(state, None))
    if is_checkpoint_id(text):
        checkpointer = Checkpointer(client.blob, shard, state.origin.life)
        checkpointer.check_known(text)
        upper = checkpointer.load_manifest(text).upper
        return Side(state, check_as_of(state, last_time(upper)))
    try:
        time = parse_time(text, what="as a time it", zone=zone, now_ms=client.clock.now_ms())
        return Side(state, check_as_of(state, time))
    except InvalidTime as error:
        if is_shard_name(text):
            check(text)
        other = client.machine.fetch(text) if is_shard_name(text) or text.startswith(f"{shard}~") else None
        if other is None:
            raise InvalidInput(f"{text!r}: expected a checkpoint of {shard}, a time, or a shard: {error}") from None
        return Side(other, check_as_of(other, None))


def compare(
    client: PersistClient,
    a: Side,
    b: Side,
    *,
    max_updates: int = MAX_UPDATES,
    reader_of: Callable[[str], ReadHandle] | None = None,
) -> Differences:
    """The changes that make `b` of `a`. Raises `InvalidInput` if the schemas differ, or too much has changed."""
    reader_of = reader_of or client.open_reader
    newer = a.state if len(a.state.schemas.versions) > len(b.state.schemas.versions) else b.state
    schema = newer.schema
    if schema is None or a.state.schema is None or b.state.schema is None:
        raise ShardNotFound(f"{a.state.shard} or {b.state.shard} has no data yet")
    is_renamed = _has_other_ids(a.state, b.state)
    after = shared_until(a, b)
    if any((side.state.since.time or 0) > after for side in (a, b)):  # then its history does not go back so far
        after = BEGINNING
    for side in (a, b):
        ours, theirs = ([each.schema.to_json() for each in state.schemas.versions] for state in (side.state, newer))
        if theirs[: len(ours)] != ours and not is_renamed:
            raise InvalidInput(
                f"{a.state.shard} and {b.state.shard} have other keys or columns; only shards with the same ones can be"
                " compared"
            )
        if side.time > after:
            reader, since = reader_of(side.state.shard), show_time(max(after, 0))
            check_size(reader, side.state, after, max_updates, since, through=side.time)
    deltas = [
        (sign, delta_since(reader_of(side.state.shard), shown, after, side.time, orders=False))
        for sign, side in ((-1, a), (1, b))
        for shown in [side.state if is_renamed else replace(side.state, schemas=newer.schemas)]
        if side.time > after
    ]
    if not deltas:
        nothing = (columns(schema, orders=False).empty_table() for columns in (updates_schema, errs_schema))
        deltas = [(1, Delta(*nothing))]
    oks = pa.concat_tables([signed(delta.oks, sign) for sign, delta in deltas])
    errs = pa.concat_tables([signed(delta.errs, sign) for sign, delta in deltas])
    return differences(Delta(oks, errs), schema)


def _has_other_ids(a: ShardState, b: ShardState) -> bool:
    """True if both show the same columns, though neither is a fork of the other: generations, for example."""
    shown = [
        [[(each.name, each.type) for each in columns] for columns in (schema.key, schema.values)]
        for schema in (a.schema, b.schema)
        if schema is not None
    ]
    versions = [[each.schema.to_json() for each in state.schemas.versions] for state in (a, b)]
    count = min(map(len, versions))
    return shown[0] == shown[1] and versions[0][:count] != versions[1][:count]


def shared_until(a: Side, b: Side) -> int:
    """The last time up to which both are the same by their batches, or `BEGINNING`."""
    if a.state.shard == b.state.shard:
        return min(a.time, b.time)
    until = BEGINNING
    for ours, theirs in zip(a.state.batches, b.state.batches, strict=False):
        if ours.manifest_key != theirs.manifest_key:
            break
        until = min(ours.last_time, theirs.last_time)
    return min(until, a.time, b.time)
