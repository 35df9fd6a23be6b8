"""`persist run`: bring one collection or view up to date, or try a view, and print the result."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.config.collection import load_collection
from persist_core.config.files import SUFFIXES, read_mapping
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig, load_view
from persist_core.contents.batch import BatchDescription
from persist_core.contents.err_groups import lines_of
from persist_core.contents.stats import DryRun
from persist_core.errors import InvalidInput
from persist_core.gc.drop import create_again
from persist_core.keys import check_shard_name
from persist_core.maintenance.maintain import maintain_inline
from persist_core.protocol.run import RunReport, bring_up_to_date, default_until, describe_dry_run, input_noun
from persist_core.sources.shards import check_closable
from persist_core.spark_job.launch import dry_run_view, write_batch
from persist_core.spark_job.process import LOCAL_MASTER, SparkProcess
from persist_core.time_text import show_time

ENV_COLLECTIONS = "PERSIST_COLLECTIONS"
ENV_VIEWS = "PERSIST_VIEWS"
ENV_SPARK_MASTER = "PERSIST_SPARK_MASTER"
DEFAULT_COLLECTIONS = Path("dags") / "collections"
VIEWS_FOLDER = "views"  # beside the folder of collections
DRY_RUN_COUNTS = ("inserted", "retracted", "errs_inserted", "errs_retracted", "corrections", "rows", "errs")
_DIGESTS = ("contents_0", "contents_1")  # among a view's stats; only the next refresh uses them


@click.command()
@click.argument("name")
@click.option("--until", help="The input's frontier: files and records before it are final (default: now).")
@click.option("--force", is_flag=True, help="Accept a --until more than an hour from now. See docs/operations.md.")
@click.option("--close", is_flag=True, help="The input has ended: take all of it and close the shard.")
@click.option("--recreate", is_flag=True, help="Begin a dropped shard again, empty: it takes in all its input.")
@click.option("--read-only", is_flag=True, help="For a view: print what a refresh would write, and write nothing.")
@click.option("--collections", type=click.Path(path_type=Path), help="Folder of collection files.")
@click.option("--views", type=click.Path(path_type=Path), help="Folder of view files (default: `views` beside it).")
@click.option("--master", help=f"Spark master (default: {ENV_SPARK_MASTER}, or {LOCAL_MASTER}).")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
@click.option("--logs", type=click.Path(path_type=Path), help="Folder that keeps the Spark jobs' logs.")
@with_session
def run(
    session: Session,
    name: str,
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
    """Bring NAME (a collection or view in the folders of files, or a file) up to date, without Airflow."""
    if close and until is not None:
        raise InvalidInput("--close and --until exclude each other: after --close the shard takes no later times")
    config = find_config(name, collections, views)
    frontier = session.time(until, "--until", config.timezone)
    spark = _spark(session, master, conf, logs)
    if read_only or (isinstance(config, ViewConfig) and config.read_only):
        if not isinstance(config, ViewConfig):
            raise InvalidInput(f"--read-only: {config.name} is a collection; expected a view")
        _print_dry_run(session, config, _dry_run(session, config, frontier, spark))
        return
    if recreate:
        create_again(session.client, config.name)
    if close and isinstance(config, ViewConfig):
        check_closable(session.client, config)
    if frontier is None and not close:
        frontier = default_until(config, session.client.clock.now_ms())
    write = functools.partial(_write, session, config, spark)
    report = bring_up_to_date(
        session.client,
        config,
        until=frontier,
        write=write,
        say=session.say,
        maintain=maintain_inline,
        is_forced=force,
    )
    _print_run(session, config, report)


def _write(session: Session, config: ShardConfig, spark: SparkProcess, description: BatchDescription) -> str:
    session.say(f"writing {description.interval} with Spark ({spark.shown_master})")
    return write_batch(session.client, spark, config, description)


def _dry_run(session: Session, config: ViewConfig, until: int | None, spark: SparkProcess) -> DryRun:
    as_of, description = describe_dry_run(session.client, config, until)
    session.say(f"trying {config.name} as of {show_time(as_of)} with Spark ({spark.shown_master}); nothing is written")
    return dry_run_view(session.client, spark, config, description, as_of)


def _spark(session: Session, master: str | None, conf: tuple[str, ...], logs: Path | None) -> SparkProcess:
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


def find_config(name: str, collections: Path | None, views: Path | None) -> ShardConfig:
    """The collection or view meant by a name or a path. A file with a query or a function is a view's."""
    collections = collections or Path(os.environ.get(ENV_COLLECTIONS) or DEFAULT_COLLECTIONS)
    views = views or Path(os.environ.get(ENV_VIEWS) or collections.parent / VIEWS_FOLDER)
    if name.endswith(SUFFIXES) or "/" in name:
        fields = read_mapping(Path(name), None, first_fields="source: or query:")
        is_view = "query" in fields or "function" in fields
        return load_view(Path(name)) if is_view else load_collection(Path(name))
    check_shard_name(name)
    for suffix in SUFFIXES:
        if (path := collections / f"{name}{suffix}").is_file():
            return load_collection(path)
        if (path := views / f"{name}{suffix}").is_file():
            return load_view(path, collections=collections)
    raise InvalidInput(
        f"no collection file {collections / name}.yaml and no view file {views / name}.yaml; give --collections FOLDER"
        f" or --views FOLDER, set {ENV_COLLECTIONS} or {ENV_VIEWS}, or name the file itself"
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


def _print_run(session: Session, config: ShardConfig, report: RunReport) -> None:
    if session.as_json:
        output.print_json(
            {
                "shard": report.shard,
                "status": "committed" if report.rounds else "up_to_date",
                "reason": report.reason,
                "conflicts": report.conflicts,
                "commits": [
                    {
                        "lower": r.commit.lower,
                        "upper": r.commit.upper,
                        "checkpoint_id": r.commit.checkpoint_id,
                        "input_files": r.input_files,
                        "input_bytes": r.input_bytes,
                        "stats": dict(r.stats),
                        "warnings": [asdict(each) for each in r.warnings],
                        "errors": [group.to_json() for group in r.err_groups],
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
            f"{report.shard} {done.interval}: {done.input_files} {input_noun(config)}; {counts or 'no records'}"
        )
        for line in lines_of(done.err_groups):
            output.print_line(f"  {line}")
    if not report.rounds:
        output.print_line(f"{report.shard} is up to date: {report.reason}")
