"""Chains of operator state: from a checkpoint back to the last full snapshot of each operator.

    checkpoint 7   stash: delta      order_index: delta (no artifact: unchanged)
    checkpoint 6   stash: snapshot   order_index: delta
    checkpoint 5   stash: delta      order_index: snapshot

The chain of `stash` is 6, 7 and the chain of `order_index` 5, 6, 7: each operator has its own interval between full
snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.contents.operator_state import OperatorState
from persist_core.errors import CorruptArtifact

MAX_CHAIN = 200  # checkpoints from a delta to its full snapshot; `retention.snapshot_every` is at most 100


@dataclass(frozen=True)
class Link:
    """One checkpoint in a chain, by its batch manifest: its artifacts are the staged ones."""

    checkpoint_id: str
    parent_id: str | None
    operators: Mapping[str, OperatorState]
    stash_rows: int | None = None


LinkT = TypeVar("LinkT", Link, CheckpointManifest)


def walk(newest: LinkT, load: Callable[[str], LinkT]) -> Iterator[tuple[LinkT, frozenset[str]]]:
    """The checkpoints that make up the state of `newest`, newest first, each with the operators that need it.

    `load` gives a checkpoint by its id. Raises `CorruptArtifact` for a chain without a full snapshot.
    """
    link, needed = newest, frozenset(newest.operators)
    for _ in range(MAX_CHAIN):
        absent = sorted(needed - link.operators.keys())
        if absent:
            raise CorruptArtifact(
                f"checkpoint {link.checkpoint_id} has no state of {', '.join(absent)}, which the deltas of checkpoint"
                f" {newest.checkpoint_id} build on"
            )
        yield link, needed
        needed = frozenset(name for name in needed if link.operators[name].is_delta)
        if not needed:
            return
        if link.parent_id is None:
            break
        link = load(link.parent_id)
    raise CorruptArtifact(
        f"checkpoint {newest.checkpoint_id}: found no full snapshot of {', '.join(sorted(needed))} in the chain of its"
        f" parents, which ends at checkpoint {link.checkpoint_id}; expected one within {MAX_CHAIN} checkpoints"
    )
