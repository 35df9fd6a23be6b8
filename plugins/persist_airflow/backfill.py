"""Create a backfill on Airflow 3 and follow it until it ends.

    backfill(args) -> core's `airflow backfill create` -> follow(id): poll the metadata database, draw, say how it ended

Airflow's own command does the creating, so that its checks and rules stay the only ones. Of Airflow's tables this
changes one column: it marks ended backfills as completed. The scheduler does so every 30 s, and until then Airflow
refuses the DAG's next backfill.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from persist_core.clock import Clock, SystemClock

POLL_MS = 500
NO_SCHEDULER_GRACE_MS = 30_000  # a scheduler that is just starting shows up within this, on a machine that has time
SCHEDULER_DEAD_AFTER = timedelta(seconds=60)  # its heartbeat comes every 5 s
ENDED = ("success", "failed")


@dataclass(frozen=True)
class BackfillStatus:
    """A backfill as the metadata database has it now. `runs` counts dag runs by state; `existing` were not created."""

    backfill_id: int
    dag_id: str
    runs: Counter[str]
    existing: Counter[str]
    now_running: tuple[str, ...] = ()  # "<end of interval> <task>"
    has_scheduler: bool = True

    @property
    def total(self) -> int:
        """Dag runs that this backfill made."""
        return self.runs.total()

    @property
    def ended(self) -> int:
        """Those that have ended."""
        return sum(self.runs[state] for state in ENDED)

    @property
    def is_over(self) -> bool:
        """True if all have ended."""
        return self.ended == self.total


@dataclass
class Follower:
    """Draws progress on `console`; `check`, called at every look, may raise to stop following.

    After `no_scheduler_grace_ms` without a scheduler's heartbeat it gives up.
    """

    console: Console = field(default_factory=Console)
    check: Callable[[], None] = lambda: None
    no_scheduler_grace_ms: int = NO_SCHEDULER_GRACE_MS
    clock: Clock = field(default_factory=SystemClock)

    def follow(self, backfill_id: int, *, timeout_s: int) -> BackfillStatus:
        """Wait until the backfill is over, `timeout_s` have passed, or no scheduler is there; the last status."""
        start_ms = seen_scheduler_ms = self.clock.now_ms()
        with self._progress() as draw:
            while True:
                self.check()
                status = read_status(backfill_id)
                draw(status)
                now_ms = self.clock.now_ms()
                if status.has_scheduler:
                    seen_scheduler_ms = now_ms
                waited_in_vain = now_ms - seen_scheduler_ms > self.no_scheduler_grace_ms
                if status.is_over or waited_in_vain or now_ms - start_ms > timeout_s * 1000:
                    return status
                self.clock.sleep_ms(POLL_MS)

    @contextmanager
    def _progress(self) -> Iterator[Any]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", style="cyan"),
        )
        with Progress(*columns, console=self.console) as progress:
            bar = progress.add_task("dag runs", total=None, now="waiting for the scheduler")

            def draw(status: BackfillStatus) -> None:
                now = "  ".join(status.now_running) or ("" if status.is_over else "queued")
                progress.update(bar, total=status.total, completed=status.ended, now=now)

            yield draw


def backfill(args: Namespace) -> None:
    """The command. Exits with 1 if a dag run failed, if no dag run could be created, or if no scheduler runs them."""
    console = Console()
    if args.start_date is None and args.end_date is None:
        raise SystemExit("give --start-date, --end-date or both")
    if args.reset_dagruns and args.rerun_failed_tasks:
        raise SystemExit("--reset-dagruns and --rerun-failed-tasks exclude each other: the first includes the second")
    model = _dag_model(args.dag_id)
    if model is None:
        raise SystemExit(f"no DAG {args.dag_id!r} in the metadata database; `airflow dags reserialize` reads the files")
    if model.is_paused and not args.dry_run:
        raise SystemExit(
            f"DAG {args.dag_id!r} is paused, so the scheduler would leave its runs queued; unpause it first:"
            f" airflow dags unpause {args.dag_id}"
        )
    backfill_id = create(args, default_max_active_runs=model.max_active_runs)
    if backfill_id is None:
        return
    status = Follower(console).follow(backfill_id, timeout_s=args.timeout_s)
    close_ended(args.dag_id)
    raise SystemExit(_conclude(console, status))


def create(args: Namespace, *, default_max_active_runs: int) -> int | None:
    """Let Airflow create the backfill; its id, `None` after a dry run. Raises `SystemExit` if Airflow refuses it."""
    from airflow.cli.commands.backfill_command import create_backfill
    from airflow.models.backfill import AlreadyRunningBackfill

    close_ended(args.dag_id)
    reprocess = "completed" if args.reset_dagruns else "failed" if args.rerun_failed_tasks else "none"
    translated = Namespace(
        **{
            **vars(args),
            "from_date": args.start_date or args.end_date,
            "to_date": args.end_date or args.start_date,
            "dag_run_conf": args.conf,
            "max_active_runs": args.max_active_runs or default_max_active_runs,
            "reprocess_behavior": reprocess,
            "run_on_latest_version": None,
        }
    )
    try:
        create_backfill(translated)
    except AlreadyRunningBackfill as error:
        raise SystemExit(f"{error} Wait until it has ended, or cancel it in Airflow's UI") from error
    return None if args.dry_run else _newest_backfill(args.dag_id)


def close_ended(dag_id: str) -> None:
    """Mark the DAG's backfills as completed whose dag runs have all ended.

    The scheduler does the same, every 30 s; until it has, Airflow refuses the next backfill of the DAG.
    """
    from airflow.models.backfill import Backfill, BackfillDagRun
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import exists, select, update

    has_runs = exists(select(BackfillDagRun.id).where(BackfillDagRun.backfill_id == Backfill.id))
    unended = exists(select(DagRun.id).where(DagRun.backfill_id == Backfill.id, DagRun.state.not_in(ENDED)))
    open_ones = (Backfill.dag_id == dag_id, Backfill.completed_at.is_(None), has_runs, ~unended)
    with create_session() as session:
        session.execute(
            update(Backfill).where(*open_ones).values(completed_at=_now()).execution_options(synchronize_session=False)
        )


def open_backfill(dag_id: str) -> int | None:
    """The id of the DAG's backfill whose dag runs have not all ended, if there is one."""
    from airflow.models.backfill import Backfill
    from airflow.utils.session import create_session
    from sqlalchemy import select

    close_ended(dag_id)
    with create_session() as session:
        is_open = (Backfill.dag_id == dag_id, Backfill.completed_at.is_(None))
        return session.scalars(select(Backfill.id).where(*is_open)).first()


def read_status(backfill_id: int) -> BackfillStatus:
    """The backfill's dag runs by state, and which tasks are running now."""
    from airflow.models.backfill import Backfill, BackfillDagRun
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        dag_id = session.scalars(select(Backfill.dag_id).where(Backfill.id == backfill_id)).one()
        made = session.execute(
            select(DagRun.run_id, DagRun.state, DagRun.data_interval_end)
            .join(BackfillDagRun, BackfillDagRun.dag_run_id == DagRun.id)
            .where(BackfillDagRun.backfill_id == backfill_id)
        ).all()
        reasons = session.scalars(
            select(BackfillDagRun.exception_reason).where(
                BackfillDagRun.backfill_id == backfill_id, BackfillDagRun.exception_reason.is_not(None)
            )
        ).all()
        running = session.execute(
            select(TaskInstance.run_id, TaskInstance.task_id).where(
                TaskInstance.dag_id == dag_id,
                TaskInstance.run_id.in_([run.run_id for run in made]),
                TaskInstance.state == "running",
            )
        ).all()
        ends = {run.run_id: run.data_interval_end for run in made}
        return BackfillStatus(
            backfill_id=backfill_id,
            dag_id=dag_id,
            runs=Counter(str(run.state) for run in made),
            existing=Counter(str(reason) for reason in reasons),
            now_running=tuple(f"until {ends[task.run_id]:%Y-%m-%d %H:%M}: {task.task_id}" for task in running),
            has_scheduler=_has_scheduler(session),
        )


def _has_scheduler(session: Any) -> bool:
    from airflow.jobs.job import Job
    from sqlalchemy import select

    beats = session.scalars(
        select(Job.latest_heartbeat).where(Job.job_type == "SchedulerJob", Job.state == "running")
    ).all()
    return any(beat is not None and _now() - beat < SCHEDULER_DEAD_AFTER for beat in beats)


def _now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)


def _dag_model(dag_id: str) -> Any:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        model = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).one_or_none()
        if model is not None:
            session.expunge(model)
        return model


def _newest_backfill(dag_id: str) -> int:
    """The id of the DAG's newest backfill; 0 without one."""
    from airflow.models.backfill import Backfill
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        newest = select(Backfill.id).where(Backfill.dag_id == dag_id).order_by(Backfill.id.desc()).limit(1)
        return session.scalars(newest).one_or_none() or 0


def _conclude(console: Console, status: BackfillStatus) -> int:
    """Print how it ended; the exit code."""
    counted = ", ".join(f"{count} {state}" for state, count in sorted(status.runs.items())) or "no new dag runs"
    existing = "".join(f", {count} not created ({reason})" for reason, count in sorted(status.existing.items()))
    console.print(f"backfill {status.backfill_id} of {status.dag_id}: {counted}{existing}", soft_wrap=True)
    if not status.is_over:
        reason = (
            "the timeout has passed" if status.has_scheduler else "no scheduler is running; start `airflow scheduler`"
        )
        console.print(f"stopped following: {reason}. The backfill stays queued", soft_wrap=True)
    return 0 if status.is_over and not status.runs["failed"] else 1
