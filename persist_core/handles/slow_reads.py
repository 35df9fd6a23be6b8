"""What a reader gets if GC was faster: an error that names the lease, and not one that speaks of corruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from persist_core.errors import CorruptArtifact, ReadTooSlow
from persist_core.shard.batch import HollowBatch
from persist_core.shard.machine import Machine


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


def too_slow(shard: str, found: str) -> str:
    """The message of `ReadTooSlow`; `found` says which file is gone."""
    return (
        f"shard {shard} was merged, restored or dropped during this read, and it took longer than GC keeps the files"
        f" that it had begun to read: {found}. Read again; for reads that take days, open the reader with a lease"
        " (`open_leased_reader`) and give it heartbeats"
    )
