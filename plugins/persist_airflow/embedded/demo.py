"""`make demo`: the whole path on this machine.

seven days of a change feed -> a real scheduler runs one dag run per day -> `persist` commands show the results

    backfill customers, days 1 to 6 -> backfill cities -> refresh the view -> customers, day 7 -> refresh the view
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from persist_airflow.embedded import EmbeddedAirflowError
from persist_airflow.embedded.home import SCHEDULER, LocalAirflow, project_airflow
from persist_airflow.embedded.ports import embedded_command, is_clone
from persist_core.cli.main import run_command
from persist_core.config.collection import load_collection
from persist_core.errors import ShardNotFound
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.time_text import DAY_MS, format_time, parse_time

COLLECTION = "customers"
DIMENSION = "cities"
VIEW = "regions"
UPSERT, VIEWS = "persist_upsert__", "persist_view__"  # of DAG ids; the factory has them, and would import Airflow here
DAYS = 7
FEW = ("--limit", "12")
POLL_MS = 500
FOLLOW_TIMEOUT_MS = 900_000
CLOSE_TIMEOUT_MS = 120_000  # the scheduler marks ended backfills as completed every 30 s
ENDED = ("success", "failed")
_UNCLOSED = "select id from backfill where dag_id = %s and completed_at is null"
_OPEN = f"{_UNCLOSED} and exists (select 1 from dag_run where backfill_id = backfill.id and state <> all(%s))"
_CHOSEN = "r.dag_id = %s and (r.backfill_id = %s or r.run_id = %s)"
_STATES = f"select r.state from dag_run r where {_CHOSEN}"
_RUNNING = (
    "select to_char(r.data_interval_end, 'YYYY-MM-DD'), t.task_id from task_instance t"
    f" join dag_run r using (dag_id, run_id) where t.state = 'running' and {_CHOSEN}"
)
_FAILED_TASKS = "select run_id, task_id from task_instance where state = 'failed' order by run_id limit 20"
SCHEDULE_OFF = {"AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False"}  # the demo starts what runs: the feed ends in January


@dataclass(frozen=True)
class Step:
    """A backfill of a DAG's days `first_ms` to `last_ms` (both included), or, without days, one manual dag run."""

    dag_id: str
    first_ms: int | None = None
    last_ms: int | None = None


def steps_from(first_ms: int) -> tuple[Step, ...]:
    last_ms = first_ms + (DAYS - 1) * DAY_MS
    customers, cities, view = f"{UPSERT}{COLLECTION}", f"{UPSERT}{DIMENSION}", f"{VIEWS}{VIEW}"
    return (
        Step(customers, first_ms, last_ms - DAY_MS),
        Step(cities, last_ms, last_ms),  # times are the files' own, so one run takes all days
        Step(view),  # with the schedule on, each append to an input starts it
        Step(customers, last_ms, last_ms),
        Step(view),
    )


def run_demo(root: Path) -> int:
    """Run the feed through Airflow and print the results; only print them if an earlier demo has run it already."""
    console = Console()
    config = load_collection(root / "dags" / "collections" / f"{COLLECTION}.yaml")
    first_ms = parse_time(config.start_date or "2026-01-01", what="start_date")
    end_ms = first_ms + DAYS * DAY_MS
    airflow = project_airflow(root, settings=SCHEDULE_OFF)
    with open_location(airflow.location) as location:
        client = PersistClient(location)
        shards = (COLLECTION, DIMENSION, VIEW)
        if all(_upper(client, shard) >= end_ms for shard in shards):
            console.print(f"[green]all is up to date:[/] {', '.join(shards)} hold everything before {_day(end_ms)}")
        elif not _run_steps(console, airflow, steps_from(first_ms)):
            return 1
    failed = _print_results(console, airflow.location, first_ms)
    _print_next(console, airflow)
    return failed


def _upper(client: PersistClient, shard: str) -> int:
    try:
        return client.state(shard).upper.time or 0
    except ShardNotFound:
        return 0


def _run_steps(console: Console, airflow: LocalAirflow, steps: Sequence[Step]) -> bool:
    if airflow.kept.is_running():
        raise EmbeddedAirflowError(
            "Airflow is running already, and the demo would start a second scheduler; stop it with"
            f" `{embedded_command(airflow.dags.parent, 'down')}`"
        )
    with airflow.stopping():
        with console.status("preparing an Airflow home and its database"):
            airflow.launch_database()
            airflow.launch_spark()  # it is up when the first job needs it
            airflow.prepare()
        os.environ.update(airflow.environment())  # before this process imports Airflow
        with console.status("starting API server and scheduler"):
            airflow.launch()
        if all(_run_step(console, airflow, step) for step in steps):
            return True
    console.print("[red]a dag run failed; its failed tasks:[/]")
    for run_id, task_id in airflow.query(_FAILED_TASKS):
        console.print(f"  {run_id}: {task_id}", highlight=False)
    console.print(
        f"Their logs are below {airflow.logs}. `{embedded_command(airflow.dags.parent, 'demo')}` again goes on where"
        " this one stopped",
        soft_wrap=True,
    )
    return False


def _run_step(console: Console, airflow: LocalAirflow, step: Step) -> bool:
    """True if none of its dag runs failed."""
    dag_id = step.dag_id
    if step.first_ms is None or step.last_ms is None:
        run_id = f"demo__{airflow.clock.now_ms()}"
        _airflow("dags", "trigger", dag_id, "--run-id", run_id)
        console.print(f"dag run {run_id} of DAG {dag_id}")
        return follow(console, airflow, dag_id, run_id=run_id)
    for (interrupted,) in airflow.query(_OPEN, dag_id, list(ENDED)):
        console.print(f"backfill {interrupted} of an earlier demo goes on first")
        follow(console, airflow, dag_id, interrupted)
    backfill_id = create(airflow, dag_id, step.first_ms, step.last_ms)
    days = (step.last_ms - step.first_ms) // DAY_MS + 1
    console.print(f"backfill {backfill_id} of DAG {dag_id}: {days} {'days, one dag run each' if days > 1 else 'day'}")
    return follow(console, airflow, dag_id, backfill_id)


def create(airflow: LocalAirflow, dag_id: str, first_ms: int, last_ms: int) -> int:
    """The id of a new backfill of the days `first_ms` to `last_ms`, one dag run after the other.

    Airflow refuses it until its scheduler has marked the DAG's last backfill as completed. Raises
    `EmbeddedAirflowError` if that takes too long.
    """
    try:
        airflow.kept.wait_until(lambda: not airflow.query(_UNCLOSED, dag_id), SCHEDULER, CLOSE_TIMEOUT_MS)
    except EmbeddedAirflowError as error:
        raise EmbeddedAirflowError(
            f"Airflow creates no backfill of DAG {dag_id}: it has not marked the last one as completed. {error}"
        ) from error
    days = ("--from-date", format_time(first_ms), "--to-date", format_time(last_ms))
    # Runs of an earlier demo may be there whose data was deleted.
    options = ("--max-active-runs", "1", "--reprocess-behavior", "completed")
    _airflow("backfill", "create", "--dag-id", dag_id, *days, *options)
    ((backfill_id,),) = airflow.query("select max(id) from backfill where dag_id = %s", dag_id)
    return int(backfill_id)


def _airflow(*arguments: str) -> None:
    """Run `airflow ARGUMENTS` in this process: to import Airflow takes seconds."""
    from airflow.cli.cli_parser import get_parser

    parsed = get_parser().parse_args(arguments)
    with contextlib.redirect_stdout(io.StringIO()):
        parsed.func(parsed)


def follow(
    console: Console, airflow: LocalAirflow, dag_id: str, backfill_id: int | None = None, *, run_id: str | None = None
) -> bool:
    """Draw progress until the dag runs of the backfill, or this one, have ended; True if none failed.

    Raises `EmbeddedAirflowError` if the backfill has no dag runs (Airflow makes them when it creates it, or never), and
    if they have not ended after `FOLLOW_TIMEOUT_MS`.
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
            airflow.kept.check()
            runs = Counter(state for (state,) in airflow.query(_STATES, dag_id, backfill_id, run_id))
            if not runs:
                raise EmbeddedAirflowError(
                    f"Airflow made no dag run for backfill {backfill_id}: the days have dag runs that have not ended"
                )
            ended = sum(runs[state] for state in ENDED)
            is_over = ended == runs.total()
            tasks = airflow.query(_RUNNING, dag_id, backfill_id, run_id)
            now = "  ".join(f"until {end}: {task}" for end, task in tasks)
            progress.update(bar, total=runs.total(), completed=ended, now=now or ("" if is_over else "queued"))
            if is_over:
                return not runs["failed"]
            if airflow.clock.now_ms() > deadline_ms:
                raise EmbeddedAirflowError(
                    f"{ended} of {runs.total()} dag runs of {dag_id} have ended; the machine may be too busy. The end"
                    f" of the scheduler's log:\n{airflow.kept.log_tail(SCHEDULER)}"
                )
            airflow.clock.sleep_ms(POLL_MS)


def looks(first_ms: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The commands that show the results, each with its title."""
    early, before, last = (_day(first_ms + days * DAY_MS) for days in (2, DAYS - 2, DAYS - 1))
    between = ("--after", before, "--through", last)
    return (
        (f"the table as of {early}", ("snapshot", COLLECTION, "--as-of", early, *FEW)),
        (f"the table as of {last}", ("snapshot", COLLECTION, "--as-of", last, *FEW)),
        ("the changes of the last day", ("changes", COLLECTION, *between)),
        ("errors: bad input is kept, never lost, and fails no run", ("errors", COLLECTION)),
        ("the shard", ("describe", COLLECTION)),
        ("its checkpoints", ("checkpoints", COLLECTION)),
        (f"the view {VIEW}: a query over {COLLECTION} and {DIMENSION}, kept as a shard", ("snapshot", VIEW)),
        ("how the last day's changes flowed into it", ("changes", VIEW, "--after", last)),
        ("a view shows the errors of its inputs", ("errors", VIEW)),
    )


def _print_results(console: Console, location: PersistLocation, first_ms: int) -> int:
    options = ("--blob-uri", location.blob_uri, "--consensus-uri", location.consensus_uri)
    for title, command in looks(first_ms):
        console.print(f"\n[bold]{title}[/]\n$ persist {' '.join(command)}", highlight=False, soft_wrap=True)
        if code := run_command([*command, *options]):
            return code
    return 0


def _print_next(console: Console, airflow: LocalAirflow) -> None:
    console.print("\n[bold]What to do next[/]", highlight=False)
    for name, value in airflow.location.to_env().items():
        console.print(f"  export {name}={shlex.quote(value)}", highlight=False, soft_wrap=True)
    root = airflow.dags.parent
    persist = ".venv/bin/persist" if is_clone(root) else "persist"
    console.print(f"  cd {shlex.quote(str(root))}", highlight=False, soft_wrap=True)
    for command, what in (
        (f"{persist} errors {COLLECTION}", "what could not be read, byte for byte"),
        (f"{persist} fsck {COLLECTION}", "checks what is stored, digests included"),
        (f"{persist} run {VIEW} --read-only", "what a refresh of the view would write"),
        (embedded_command(root, "up"), "Airflow's UI with these DAGs"),
        (embedded_command(root, "airflow", f"dags details {UPSERT}{COLLECTION}"), "Airflow's own command line"),
    ):
        console.print(f"  {command:<72} # {what}", highlight=False, soft_wrap=True, markup=False)
    console.print("A table of your own: write dags/collections/<name>.yaml", highlight=False, markup=False)


def _day(time_ms: int) -> str:
    return format_time(time_ms)[:10]
