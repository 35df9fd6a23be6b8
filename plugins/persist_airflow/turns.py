"""Dag runs of one DAG take turns, from mint to append: so a backfill neither conflicts with itself nor wastes Spark.

    mint --another run goes first?--> the task is put off --> mint looks again --> its turn

On 3.x a backfill runs up to 10 dag runs at the same time by default and ignores the DAG's `max_active_runs`. All of
them would mint from the same upper, and all but one would conflict. Here the earliest running one goes first, and a run
that has minted is never overtaken. The turn of a group ends with `retry_failed`. Nothing is locked: two runs that start
in the same moment, or two DAGs, may still conflict, and the append then heals. A turn that does not end within a day is
not waited for any longer.

The task waits deferred, in the triggerer, if Airflow's `[operators] default_deferrable` is on: it wakes when the shard
reaches the start of its interval, and costs nothing meanwhile. Otherwise it is put off by the clock
(`up_for_reschedule`); each look then costs a task start, so a run looks more seldom the more intervals are ahead of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from persist_airflow.compat import BaseOperator, Context, reschedule, run_ahead
from persist_airflow.triggers import ShardUpperTrigger
from persist_core.errors import Corruption
from persist_core.handles.client import PersistClient
from persist_core.handles.side_by_side import side_by_side
from persist_core.time_text import format_time, show_time

NEXT_LOOK_MS = 10_000  # of the run that is next; if it came sooner, a busy scheduler could count it as a lost try
LAST_LOOK_MS = 60_000  # of the runs far behind it
LOOK_S, LAST_LOOK_S = 2.0, 60.0  # in the triggerer: between two looks, and until the task itself looks again
SOON_S = 5.0  # the shard has come far enough, and the task before is just ending
_THREADS = 8  # for reading states
PATIENCE_MS = 24 * 3_600_000  # a turn that takes longer is stuck


def wait_for_turn(
    operator: BaseOperator, context: Context, client: PersistClient, shards: Sequence[str], *, deferrable: bool
) -> None:
    """Return if it is this dag run's turn to mint for these shards; else put the task off, which takes neither a try
    nor a slot.

    `operator` has a `persist_conn_id`, and `execute_complete`, which looks again.
    """
    now_ms = client.clock.now_ms()
    started: datetime | None = getattr(context["dag_run"], "start_date", None)
    if started is not None and now_ms - started.timestamp() * 1000 > PATIENCE_MS:
        return
    dag: Any = context["dag"]  # tasks for several shards take turns by the first
    of_first = (task for task in dag.tasks if getattr(task, "shard", None) == shards[0])
    append: Any = next((task for task in of_first if hasattr(task, "write_task_id")), None)
    if append is None:  # a DAG of single operators
        return
    last = getattr(append, "retry_task_id", append.task_id)  # of a group: it appends too
    ahead = run_ahead(context, append=last, staging=[append.write_task_id, append.task_id, last])
    awaited = _awaited(context, client, shards) if ahead else None
    if awaited is None:
        return
    shard, upper, start, intervals = awaited
    if deferrable:
        is_near = start <= upper
        operator.log.info("%s; waiting for shard %s to reach %s", ahead, shard, show_time(start))
        operator.defer(
            trigger=ShardUpperTrigger(
                shard,
                max(start, upper + 1),
                persist_conn_id=vars(operator)["persist_conn_id"],
                poll_s=LOOK_S,
                timeout_s=SOON_S if is_near else LAST_LOOK_S,
            ),
            method_name="execute_complete",
        )
    look_ms = now_ms + int(min(max(intervals, 1) * NEXT_LOOK_MS, LAST_LOOK_MS))
    operator.log.info("%s; looking again at %s", ahead, format_time(look_ms))
    reschedule(look_ms)


def _awaited(context: Context, client: PersistClient, shards: Sequence[str]) -> tuple[str, int, int, float] | None:
    """The shard to wait for, its upper and the start of this run's interval, in ms, and the intervals between them.

    Of several it is the one that the run ahead brings to that start: the nearest before it. A closed or damaged one is
    not waited for: mint says what it is, and of that shard alone.
    """

    def upper_of(shard: str) -> int | None:
        with suppress(Corruption):
            state = client.machine.fetch(shard)
            return state.upper.time if state else 0
        return None

    found = zip(shards, side_by_side(upper_of, shards, threads=_THREADS), strict=True)
    uppers = {shard: upper for shard, upper in found if upper is not None}
    if not uppers:
        return None
    start: Any = context.get("data_interval_start")
    end: Any = context.get("data_interval_end")
    has_interval = start is not None and end is not None and end > start
    start_ms = int(start.timestamp() * 1000) if has_interval else 0
    behind = {shard: upper for shard, upper in uppers.items() if upper < start_ms}
    shard = max(behind or uppers, key=uppers.__getitem__)
    upper = uppers[shard]
    if not has_interval:
        return shard, upper, upper, 1
    return shard, upper, start_ms, (start_ms - upper) / ((end - start).total_seconds() * 1000)
