"""`persist run`: bring collections and views up to date, or try a view, and print the results."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import click

from persist_core.cli import output
from persist_core.cli.configs import all_of, collections_option, find_config, is_path, project_here, views_option
from persist_core.cli.session import Session, with_session
from persist_core.config.project import KEEP_LONGEST, MaintenanceConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.err_groups import lines_of
from persist_core.contents.stats import DryRun
from persist_core.errors import ConfigError, InvalidInput, PersistError, RunFailed
from persist_core.maintenance.drop import create_again
from persist_core.maintenance.maintain import maintain_inline
from persist_core.protocol.run import RunReport, RunRequest, bring_up_to_date, describe_dry_run
from persist_core.sources.shards import check_closable
from persist_core.spark_job.launch import Start, dry_run_view, write_batches
from persist_core.spark_job.process import LOCAL_MASTER, SparkProcess
from persist_core.time_text import show_time

ENV_SPARK_MASTER = "PERSIST_SPARK_MASTER"
DRY_RUN_COUNTS = ("inserted", "retracted", "errs_inserted", "errs_retracted", "corrections", "rows", "errs")
_DIGESTS = ("contents_0", "contents_1")  # among a view's stats; only the next refresh uses them

_master_option = click.option("--master", help=f"Spark master (default: {ENV_SPARK_MASTER}, or {LOCAL_MASTER}).")
_conf_option = click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated.")


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--all", "is_all", is_flag=True, help="All collections and views of the folders, views after their inputs."
)
@click.option("--group", metavar="NAME", help="All collections of a group.")
@click.option(
    "--until",
    help="The input's frontier: files and records before it are final (default: now; of `time: path`, the start of the"
    " day or hour that is not over).",
)
@click.option("--force", is_flag=True, help="Accept a --until more than an hour from now. See docs/operations.md.")
@click.option("--close", is_flag=True, help="The input has ended: take all of it and close the shard.")
@click.option("--recreate", is_flag=True, help="Begin a dropped shard again, empty: it takes in all its input.")
@click.option("--read-only", is_flag=True, help="For a view: print what a refresh would write, and write nothing.")
@collections_option
@views_option
@_master_option
@_conf_option
@click.option("--logs", type=click.Path(path_type=Path), help="Folder that keeps the Spark jobs' logs.")
@with_session
def run(
    session: Session,
    names: tuple[str, ...],
    is_all: bool,
    group: str | None,
    until: str | None,
    force: bool,
    close: bool,
    recreate: bool,
    read_only: bool,
    collections: Path | None,
    views: Path | None,
    master: str | None,
    conf: tuple[str, ...],
    logs: Path | None,
) -> None:
    """Bring NAME (a collection or view in the folders of files, or a file) up to date, without Airflow.

    Several share one Spark; one that fails leaves the others alone, and the exit code is 5.
    """
    if close and until is not None:
        raise InvalidInput("--close and --until exclude each other: after --close the shard takes no later times")
    if sum((bool(names), is_all, group is not None)) != 1:
        raise InvalidInput("expected a NAME, several, --all, or --group")
    if (close or recreate) and len(names) != 1:
        raise InvalidInput("--close and --recreate are for one NAME")
    spark = spark_of(session, master, conf, logs)
    wrong: list[PersistError] = []
    if is_all or group is not None:
        configs, wrong = all_of(collections, views, group)
    else:
        configs = [find_config(name, collections, views) for name in names]
    if len({config.name for config in configs}) < len(configs):
        raise InvalidInput(f"{' '.join(names)}: found a shard twice; give each once")
    if read_only or (len(configs) == 1 and configs[0].writes_nothing):
        if close or recreate:
            raise InvalidInput("a read-only run writes nothing; expected no --close, --recreate")
        _try_views(session, configs, wrong, until, spark)
        return
    for config in configs:
        if recreate:
            create_again(session.client, config.name)
        if close and isinstance(config, ViewConfig):
            check_closable(session.client, config)
    for name in (config.name for config in configs if config.writes_nothing):
        session.say(f"{name} is read-only and left out; `persist run {name}` shows what a refresh would write")
    wanted = [_wanted(session, config, until, force, close) for config in configs if not config.writes_nothing]
    bounds = _bounds(session, next((Path(name).parent for name in names if is_path(name)), collections))
    if len(wanted) == 1 and names:
        with spark.kept() as start:
            ((_, report),) = _reports(session, wanted, spark, start, bounds)
        if isinstance(report, PersistError):
            raise report
        _print_run(session, wanted[0].config, report)
        if report.checkpoint_error is not None:  # `bring_up_to_date` has said it
            sys.exit(output.exit_code(report.checkpoint_error))
        return
    _run_several(session, wanted, wrong, spark, bounds)


def _bounds(session: Session, collections: Path | None) -> MaintenanceConfig:
    """The bounds of maintenance after each commit. A wrong `persist.yaml` stops no run."""
    try:
        return project_here(collections).maintenance
    except ConfigError as error:
        session.say(f"{error}")
        session.say("warning: until that is corrected, runs merge by the default bounds, and delete no files")
        return KEEP_LONGEST


def _wanted(session: Session, config: ShardConfig, until: str | None, force: bool, close: bool) -> RunRequest:
    frontier = session.time(until, "--until", config.timezone)
    if frontier is None and not close:
        frontier = config.default_until(session.client.clock.now_ms())
    return RunRequest(config, frontier, force)


def _run_several(
    session: Session,
    wanted: list[RunRequest],
    wrong: list[PersistError],
    spark: SparkProcess,
    bounds: MaintenanceConfig,
) -> None:
    counts: Counter[str] = Counter()
    incomplete: dict[str, PersistError] = {}
    failed = _wrong_files(session, wrong)
    with spark.kept() as start:
        for config, report in _reports(session, wanted, spark, start, bounds):
            if isinstance(report, PersistError):
                failed.append(config.name)
                _print_failed(session, config, report)
            else:
                counts["committed" if report.rounds else "up to date"] += 1
                if report.checkpoint_error is not None:
                    incomplete[config.name] = report.checkpoint_error
                _print_run(session, config, report)
    counted = ", ".join(
        f"{count} {what}" for what, count in [*sorted(counts.items()), ("failed", len(failed))] if count
    )
    total = len(wanted) + len(wrong)
    session.say(f"{total} shards: {counted}")
    if incomplete:
        session.say(f"committed without a checkpoint, which the next run makes: {', '.join(incomplete)}")
    _check_none_failed(failed, total)
    for error in incomplete.values():
        sys.exit(output.exit_code(error))


def _try_views(
    session: Session,
    configs: Sequence[ShardConfig],
    wrong: Sequence[PersistError],
    until: str | None,
    spark: SparkProcess,
) -> None:
    """Try each without writing; of several, one that fails leaves the others alone."""
    wanted: list[tuple[ViewConfig, int | None]] = []
    for config in configs:
        if not isinstance(config, ViewConfig):
            raise InvalidInput(f"--read-only: {config.name} is a collection; expected a view")
        wanted.append((config, session.time(until, "--until", config.timezone)))
    failed = _wrong_files(session, wrong)
    for view, frontier in wanted:
        try:
            _print_dry_run(session, view, _dry_run(session, view, frontier, spark))
        except PersistError as error:
            if len(wanted) + len(wrong) == 1:
                raise
            failed.append(view.name)
            _print_failed(session, view, error)
    _check_none_failed(failed, len(wanted) + len(wrong))


def _wrong_files(session: Session, wrong: Sequence[PersistError]) -> list[str]:
    """Print what is wrong with files that cannot be loaded; their names."""
    for error in wrong:
        output.print_error(error, as_json=session.as_json)
    return [str(error).partition(":")[0] for error in wrong]


def _check_none_failed(failed: Sequence[str], total: int) -> None:
    if failed:
        others = ", the others are done" if len(failed) < total else ""
        raise RunFailed(f"{len(failed)} of {total} failed{others}: {', '.join(failed)}")


def _reports(
    session: Session, wanted: Sequence[RunRequest], spark: SparkProcess, start: Start, bounds: MaintenanceConfig
) -> Iterator[tuple[ShardConfig, RunReport | PersistError]]:
    """Yield the report of each, or its error; those first that need none of the others."""

    def write(asked: Sequence[tuple[ShardConfig, BatchDescription]]) -> list[str | PersistError]:
        shown = [f"{config.name} {description.interval}" for config, description in asked]
        session.say(f"writing {', '.join(shown)} with Spark ({spark.shown_master})")
        return write_batches(session.client, start, asked)

    for wave in _waves(wanted):
        maintain = functools.partial(maintain_inline, given=bounds)
        reports = bring_up_to_date(session.client, wave, write=write, say=session.say, maintain=maintain)
        yield from zip([each.config for each in wave], reports, strict=True)


def _waves(wanted: Sequence[RunRequest]) -> Iterator[list[RunRequest]]:
    by_name = {each.config.name: each for each in wanted}
    order = TopologicalSorter({name: each.config.read_shards for name, each in by_name.items()})
    order.prepare()
    while order.is_active():
        ready = order.get_ready()
        if wave := [by_name[name] for name in ready if name in by_name]:
            yield wave
        order.done(*ready)


def _dry_run(session: Session, config: ViewConfig, until: int | None, spark: SparkProcess) -> DryRun:
    as_of, description = describe_dry_run(session.client, config, until)
    session.say(f"trying {config.name} as of {show_time(as_of)} with Spark ({spark.shown_master}); nothing is written")
    return dry_run_view(session.client, spark, config, description, as_of)


def with_spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options `collections`, `master` and `conf` of a command that runs Spark for one collection."""
    return collections_option(_master_option(_conf_option(command)))


def spark_of(session: Session, master: str | None, conf: tuple[str, ...], logs: Path | None = None) -> SparkProcess:
    pairs = [pair.partition("=") for pair in conf]
    bad = next((name for name, equals, _ in pairs if not (name and equals)), None)
    if bad is not None:
        raise InvalidInput(f"--conf {bad}: expected NAME=VALUE")
    return SparkProcess(
        session.location,
        master=master or os.environ.get(ENV_SPARK_MASTER) or LOCAL_MASTER,
        conf={name: value for name, _, value in pairs},
        log_folder=logs,
    )


def _print_dry_run(session: Session, config: ViewConfig, dry_run: DryRun) -> None:
    if session.as_json:
        output.print_json(
            {
                "shard": config.name,
                "status": "read_only",
                "as_of": dry_run.as_of,
                "stats": dict(dry_run.stats),
                "sample": [dict(update) for update in dry_run.sample],
            }
        )
        return
    counts = ", ".join(f"{name} {dry_run.stats.get(name, 0)}" for name in DRY_RUN_COUNTS)
    output.print_line(f"{config.name} as of {show_time(dry_run.as_of)} would write: {counts}. Nothing was written")
    for update in dry_run.sample:
        output.print_line("  " + json.dumps(update, ensure_ascii=False))
    more = dry_run.stats.get("updates", 0) - len(dry_run.sample)
    if more > 0:
        output.print_line(f"  and {more} more updates")


def _print_failed(session: Session, config: ShardConfig, error: PersistError) -> None:
    if session.as_json:
        output.print_json({"shard": config.name, "status": "failed", "error": _shown(error)})
    else:
        output.print_line(f"{config.name} failed: {error}")


def _shown(error: PersistError) -> dict[str, str]:
    return {"kind": error.kind, "message": str(error)}


def _print_run(session: Session, config: ShardConfig, report: RunReport) -> None:
    if session.as_json:
        output.print_json(
            {
                "shard": report.shard,
                "status": "committed" if report.rounds else "up_to_date",
                "reason": report.reason,
                "conflicts": report.conflicts,
                **({"checkpoint_error": _shown(report.checkpoint_error)} if report.checkpoint_error else {}),
                "commits": [
                    {
                        "lower": r.commit.lower,
                        "upper": r.commit.upper,
                        "checkpoint_id": r.commit.checkpoint_id,
                        "input_files": r.input_files,
                        "input_bytes": r.input_bytes,
                        "stats": dict(r.stats),
                        "warnings": [asdict(each) for each in r.warnings],
                        "errors": [asdict(group) for group in r.err_groups],
                        "notices": list(r.notices),
                    }
                    for r in report.rounds
                ],
            }
        )
        return
    for done in report.rounds:
        counts = ", ".join(f"{name} {value}" for name, value in done.stats.items() if value and name not in _DIGESTS)
        output.print_line(
            f"{report.shard} {done.interval}: {done.input_files} {config.input_noun}; {counts or 'no records'}"
        )
        for line in lines_of(done.err_groups):
            output.print_line(f"  {line}")
    if not report.rounds:
        state = "is up to date" if report.pending == 0 else "has nothing to run yet"
        output.print_line(f"{report.shard} {state}: {report.reason}")
