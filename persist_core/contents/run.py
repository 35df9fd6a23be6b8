"""The facts that a merge adds to a manifest."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.contents.key_range import Key


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
