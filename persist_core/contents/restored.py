"""The facts of a batch that goes back to a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Correction:
    """A batch from a replay since the upper `start_ms`; inputs before `end_ms` (`None`: all) were to be corrected."""

    from_ms: int
    end_ms: int | None
    start_ms: int
    reason: str = ""


@dataclass(frozen=True)
class Restored:
    """Where a restore took contents, progress and operator state from: a checkpoint, of another shard for a fork.

    `watermark`: what the operator state holds from there on is in the shard's contents no more than it was then, though
    its time may be final by now. The next batch takes it in. `correction` is set for one, of a replay in `shard`.
    """

    shard: str
    checkpoint_id: str
    watermark: int | None
    correction: Correction | None = None
