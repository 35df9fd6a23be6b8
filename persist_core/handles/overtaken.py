"""Errors of readers that were overtaken: by GC, which names the lease, not corruption; and by a new generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from persist_core.contents.batch import HollowBatch
from persist_core.errors import CorruptArtifact, GenerationChanged, ReadTooSlow, RunFailed
from persist_core.shard.machine import Machine
from persist_core.shard.state import ShardState
from persist_core.time_text import show_time


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
        f"shard {shard} was merged, restored or dropped during this read, which took longer than GC keeps the files"
        f" that it had begun to read, or a key was erased: {found}. Read again; for reads that take days, open the"
        " reader with a lease (`open_leased_reader`) and give it heartbeats"
    )


def check_generation(state: ShardState, after: int, known: int | None) -> None:
    """Raise `GenerationChanged` if what the reader knows as of `after` may be of an earlier generation.

    `known`: the generation that the reader names; `None` if it only knows the time.
    """
    swaps = state.origin.swaps
    if known == len(swaps) or (known is None and (not swaps or after >= swaps[-1].upper)):
        return
    if known is not None and known not in range(len(swaps)):
        raise GenerationChanged(
            f"shard {state.shard} has no generation {known!r}; it is in generation {len(swaps)}. A dropped shard begins"
            " again with 0: take a whole snapshot, and go on from its time"
        )
    raise GenerationChanged(
        f"shard {state.shard} was rebuilt: generation {len(swaps)} was swapped in at {show_time(swaps[-1].upper)}, and"
        f" the changes asked for begin at {show_time(after)}"
        + (f" of generation {known}" if known is not None else ", before it")
        + ". What a consumer has kept since then may differ. Take a whole snapshot, and go on from its time; or, if"
        f" key and columns are the same, apply the difference: `persist diff {state.shard} --a {swaps[-1].kept}`, while"
        " that one is kept. To read this generation's own history, name it (`generation`, `--generation`)"
    )
