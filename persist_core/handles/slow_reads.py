"""The error of a reader that GC has overtaken: it names the lease, and does not speak of corruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from persist_core.contents.batch import HollowBatch
from persist_core.errors import CorruptArtifact, ReadTooSlow, RunFailed
from persist_core.shard.machine import Machine
from persist_core.shard.state import ShardState


@contextmanager
def named_if_slow(machine: Machine, shard: str, batches: Sequence[HollowBatch]) -> Iterator[None]:
    """Raise `ReadTooSlow` instead of `CorruptArtifact` if the shard no longer has one of these batches."""
    try:
        yield
    except CorruptArtifact as error:
        state = machine.fetch(shard)
        if state is None or not set(batches) <= set(state.batches):
            raise ReadTooSlow(too_slow(shard, str(error))) from error
        raise


@contextmanager
def named_if_dropped(machine: Machine, state: ShardState) -> Iterator[None]:
    """Raise `RunFailed` instead of `CorruptArtifact` if the shard was dropped since `state`, and its files with it."""
    try:
        yield
    except CorruptArtifact as error:
        now = machine.fetch(state.shard)
        if now is None or now.origin.life != state.origin.life:
            raise RunFailed(
                f"shard {state.shard} was dropped in the meantime; nothing was changed ({error})"
            ) from error
        raise


def too_slow(shard: str, found: str) -> str:
    """The message of `ReadTooSlow`; `found` says which file is gone."""
    return (
        f"shard {shard} was merged, restored or dropped during this read, and it took longer than GC keeps the files"
        f" that it had begun to read: {found}. Read again; for reads that take days, open the reader with a lease"
        " (`open_leased_reader`) and give it heartbeats"
    )
