"""The append task after a lost append: the loop of `persist_core.protocol.run`, with the write task's job.

lost description -> mint from the new upper to the same end -> write -> append -> committed, covered, or lost again
"""

from __future__ import annotations

from collections.abc import Callable

from persist_airflow.failures import PersistCasConflict
from persist_core.config.shard import ShardConfig
from persist_core.handles.client import PersistClient
from persist_core.protocol.run import Round, Step, Write, rounds
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.shard.batch import BatchDescription

MAX_HEALS = 5  # per try: each costs a Spark job; Airflow tries a run again, later, that loses more often


def heal(
    client: PersistClient,
    config: ShardConfig,
    lost: BatchDescription,
    *,
    write: Write,
    on_step: Callable[[Step], None],
) -> Round | NothingToDo:
    """Commit what is still missing of `lost`'s interval; `NothingToDo` if others have committed all of it.

    `on_step` sees each step first. Raises `PersistCasConflict` after `MAX_HEALS` lost appends.
    """
    steps = rounds(
        client,
        config,
        until=lost.upper,
        writer=lost.writer,
        write=write,
        max_conflicts=MAX_HEALS,
        is_forced=True,  # the mint that made `lost` has checked its end
    )
    for step in steps:
        on_step(step)
        if isinstance(step, Round | NothingToDo):
            return step
        if isinstance(step, Conflict):
            conflict = step
    raise PersistCasConflict(conflict.record)
