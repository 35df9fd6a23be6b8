"""A process that merges the first batches of a shard and kills itself by SIGKILL before its `number`-th write.

python -m tests.core.compaction.kill_driver FOLDER NUMBER [steps]

Writes go to blob storage and to consensus; they are counted from 0.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from persist_core.compaction.merge import Merge, merge_here
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation

SHARD, INPUTS = "s", slice(1, 5)


def opened(folder: Path) -> OpenLocation:
    return open_location(PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db"))


def merge(client: PersistClient) -> None:
    state = client.state(SHARD)
    merge_here(client, Merge.of(client, state, state.batches[INPUTS]), attempt=client.ids.uuid7(), rows_at_once=5)


def merge_in_steps(client: PersistClient) -> None:
    """Merge all batches, as many steps as it takes; or do the rest of such a merge."""
    while len(client.state(SHARD).batches) > 1 or client.state(SHARD).batches[0].is_partial:
        state = client.state(SHARD)
        chosen = Merge.of(client, state, [each for each in state.batches if each.is_partial] or state.batches)
        step = replace(chosen, budget_bytes=25000, min_file_bytes=1)
        merge_here(client, step, attempt=client.ids.uuid7(), rows_at_once=5)


def count_writes(client: PersistClient, die_before: int | None = None) -> list[str]:
    """The names of the writes so far; the process ends before the one with this number."""
    writes: list[str] = []
    for owner, name in ((client.blob, "set"), (client.location.consensus, "compare_and_set")):
        inner = getattr(owner, name)

        def wrapped(*arguments: Any, _inner: Any = inner, _name: str = name) -> Any:
            if len(writes) == die_before:
                os.kill(os.getpid(), signal.SIGKILL)
            writes.append(_name)
            return _inner(*arguments)

        setattr(owner, name, wrapped)
    return writes


if __name__ == "__main__":
    client = PersistClient(opened(Path(sys.argv[1])))
    count_writes(client, int(sys.argv[2]))
    (merge_in_steps if sys.argv[3:] else merge)(client)
    os.kill(os.getpid(), signal.SIGKILL)
