"""The facts of batches that no input made: they go back to a checkpoint, or are merged from their neighbors."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.contents.key_range import Key


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


@dataclass(frozen=True)
class Run:
    """The facts that make a batch a run: it was merged from neighbors (docs/storage.md).

    `inputs`: the digests of their manifests, oldest first. What ended at or before `since` may be missing. Nothing
    changed after `changed_at` (`None`: nothing ever did), so a reader of changes can pass the run over. `merged_to`:
    the run is of a step, and from this key on its files hold the updates of its inputs; `None` after the last step.
    """

    inputs: tuple[str, ...]
    since: int
    changed_at: int | None
    merged_to: Key | None = None
