"""A backfill in the embedded Airflow, followed to its end.

create -> Airflow's own `airflow backfill create` -> follow: poll the metadata database, draw
"""

from __future__ import annotations

import contextlib
import io
from argparse import Namespace
from collections import Counter
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from persist_airflow.embedded import EmbeddedAirflowError
from persist_airflow.embedded.home import LocalAirflow

POLL_MS = 500
FOLLOW_TIMEOUT_MS = 900_000
CLOSE_TIMEOUT_MS = 120_000  # the scheduler marks ended backfills as completed every 30 s
ENDED = ("success", "failed")
_OPEN = (
    "select b.id from backfill b where b.dag_id = %s and exists (select 1 from dag_run r where r.backfill_id = b.id"
    " and r.state not in ('success', 'failed'))"
)
_RUNS = "select r.state from backfill_dag_run b join dag_run r on r.id = b.dag_run_id where b.backfill_id = %s"
_TASKS = (
    "select to_char(r.data_interval_end, 'YYYY-MM-DD'), t.task_id from task_instance t"
    " join dag_run r on r.dag_id = t.dag_id and r.run_id = t.run_id where r.backfill_id = %s and t.state = 'running'"
)


def create(airflow: LocalAirflow, dag_id: str, first_ms: int, last_ms: int) -> int:
    """The id of a new backfill of the days `first_ms` to `last_ms`, one dag run after the other.

    Airflow refuses it until its scheduler has marked the DAG's last backfill as completed. Raises
    `EmbeddedAirflowError` if that takes too long.
    """
    from airflow.cli.commands.backfill_command import create_backfill
    from airflow.models.backfill import AlreadyRunningBackfill

    arguments = Namespace(
        subcommand="backfill",
        dag_id=dag_id,
        from_date=datetime.fromtimestamp(first_ms / 1000, UTC),
        to_date=datetime.fromtimestamp(last_ms / 1000, UTC),
        dag_run_conf=None,
        dry_run=False,
        run_backwards=False,
        reprocess_behavior="completed",  # runs of an earlier demo may be there whose data was deleted
        max_active_runs=1,
        run_on_latest_version=None,
    )
    deadline_ms = airflow.clock.now_ms() + CLOSE_TIMEOUT_MS
    while True:
        airflow.check()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                create_backfill(arguments)
        except AlreadyRunningBackfill as error:
            if airflow.clock.now_ms() > deadline_ms:
                raise EmbeddedAirflowError(f"Airflow creates no backfill of DAG {dag_id}: {error}") from error
            airflow.clock.sleep_ms(POLL_MS)
        else:
            ((backfill_id,),) = airflow.query("select max(id) from backfill where dag_id = %s", dag_id)
            return int(backfill_id)


def open_backfill(airflow: LocalAirflow, dag_id: str) -> int | None:
    """The id of the DAG's backfill with dag runs that have not ended, if there is one."""
    found = airflow.query(_OPEN, dag_id)
    return int(found[0][0]) if found else None


def follow(console: Console, airflow: LocalAirflow, backfill_id: int) -> Counter[str]:
    """Draw progress until the backfill is over or `FOLLOW_TIMEOUT_MS` have passed; its dag runs, counted by state.

    Raises `EmbeddedAirflowError` if it has none: Airflow makes them when it creates the backfill, or never.
    """
    deadline_ms = airflow.clock.now_ms() + FOLLOW_TIMEOUT_MS
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", style="cyan"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("dag runs", total=None, now="waiting for the scheduler")
        while True:
            airflow.check()
            runs = Counter(state for (state,) in airflow.query(_RUNS, backfill_id))
            if not runs:
                raise EmbeddedAirflowError(
                    f"Airflow made no dag run for backfill {backfill_id}: the days have dag runs that have not ended"
                )
            ended = sum(runs[state] for state in ENDED)
            is_over = ended == runs.total()
            now = "  ".join(f"until {end}: {task}" for end, task in airflow.query(_TASKS, backfill_id))
            progress.update(bar, total=runs.total(), completed=ended, now=now or ("" if is_over else "queued"))
            if is_over or airflow.clock.now_ms() > deadline_ms:
                return runs
            airflow.clock.sleep_ms(POLL_MS)
