"""`persist reprocess` corrects a collection by its inputs as they are now, `rebuild` makes it by another definition,
`fill` fills columns; `generations` lists what `rebuild` has swapped, `diff` compares."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import pyarrow.parquet as pq
from click.core import ParameterSource

from persist_core.cli import output
from persist_core.cli.configs import find_collection
from persist_core.cli.run import spark_of, with_spark_options
from persist_core.cli.session import Session, this_user, with_session
from persist_core.config.collection import CollectionConfig
from persist_core.config.limits import read_limits
from persist_core.errors import InvalidInput
from persist_core.inspection.values import json_rows
from persist_core.maintenance.actions import Done
from persist_core.maintenance.differences import SAMPLES, facts_of, line_of, report_of
from persist_core.maintenance.fill import Filled, Wishes, fill
from persist_core.maintenance.hidden import end, generations, give_up_rebuild, hidden_of, kept_generations
from persist_core.maintenance.rebuild import Rebuilt, Request, rebuild
from persist_core.maintenance.reprocess import Reprocessed, reprocess, request_of
from persist_core.protocol.compare import compare, side_of
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.protocol.difference import Differences
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from persist_core.time_text import format_time, show_time

_OF_LOCATION = ("blob_uri", "consensus_uri", "config_file", "as_json")


@click.command("reprocess")
@click.argument("name")
@click.option("--from", "begin", help="The first day (or time) whose input is replayed.")
@click.option("--through", help="The last day whose files may differ; the days after it are replayed too.")
@click.option(
    "--dry-run", is_flag=True, help="Replay and report; commit nothing. The replay is kept for the next call."
)
@click.option("--yes", is_flag=True, help="Confirm a correction that changes more than --max-changed.")
@click.option("--take-back-gone", is_flag=True, help="Undo the records of consumed files that are gone now.")
@click.option("--max-changed", help="A number of rows, or a share such as '10 %' (default: limits.max_changed).")
@click.option("--max-updates", type=output.COUNT, default=MAX_UPDATES, help="As of `persist restore`.")
@click.option("--reason", default="", help="Why: the commit keeps it.")
@click.option(
    "--give-up", "give_up_only", is_flag=True, help="Delete a replay that has not ended, and do nothing else."
)
@with_spark_options
@with_session
def reprocess_command(
    session: Session,
    name: str,
    begin: str | None,
    through: str | None,
    dry_run: bool,
    yes: bool,
    take_back_gone: bool,
    max_changed: str | None,
    max_updates: int,
    reason: str,
    give_up_only: bool,
    collections: Path | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Correct the collection NAME: replay its files from a day on, as they are now, and commit the difference.

    For files that were replaced, added late or taken away. No reader sees the replay; the correction is one commit,
    with the rows that differ. History before it stays. Runs may go on meanwhile.
    """
    config = find_collection(name, collections, "it follows its inputs, and its next refresh corrects it")
    if give_up_only:
        _check_alone()
        hidden = hidden_of(config.name)
        _print_given_up(session, config.name, [hidden] if end(session.client, hidden) else [])
        return
    if begin is None:
        raise InvalidInput("expected --from DAY: the first day whose input is replayed")
    session.time(begin, "--from", config.timezone)  # says what other words mean
    request = request_of(
        config,
        begin=begin,
        through=through,
        now_ms=session.client.clock.now_ms(),
        takes_back_gone=take_back_gone,
        is_dry_run=dry_run,
        is_confirmed=yes,
        max_updates=max_updates,
        reason=reason,
        **({} if max_changed is None else {"max_changed": _limits(max_changed)}),
    )
    _carry_out(session, spark_of(session, master, conf), reprocess, config, request)


@click.command("fill")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Report; commit nothing.")
@click.option("--yes", is_flag=True, help="Confirm a change of more rows than limits.max_changed.")
@with_spark_options
@with_session
def fill_command(
    session: Session,
    name: str,
    dry_run: bool,
    yes: bool,
    collections: Path | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Fill new columns of the collection NAME from its column `rest`, which has kept their fields.

    Each row that changes is updated, in one commit. No file of the source is read. A second call has nothing to do.
    """
    config = find_collection(name, collections, "it follows its inputs")
    wishes = Wishes(is_dry_run=dry_run, is_confirmed=yes, max_changed=config.limits.max_changed)
    _carry_out(session, spark_of(session, master, conf), fill, config, wishes)


@click.command("rebuild")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Build and report; swap nothing in. What was built is kept.")
@click.option("--yes", is_flag=True, help="Confirm: rows that cannot be compared, or more than limits.max_changed.")
@click.option("--take-back-gone", is_flag=True, help="Do without the records of consumed files that are gone now.")
@click.option("--swap-back", is_flag=True, help="Bring the newest kept generation up to date, and swap that in.")
@click.option("--generation", type=output.COUNT, help="With --swap-back or --give-up: this one.")
@click.option("--max-updates", type=output.COUNT, default=MAX_UPDATES, help="Rows to compare, at most.")
@click.option(
    "--give-up",
    "give_up_only",
    is_flag=True,
    help="Delete a rebuild that has not ended, or with --generation a kept one; do nothing else.",
)
@with_spark_options
@with_session
def rebuild_command(
    session: Session,
    name: str,
    dry_run: bool,
    yes: bool,
    take_back_gone: bool,
    swap_back: bool,
    generation: int | None,
    max_updates: int,
    give_up_only: bool,
    collections: Path | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Build the collection NAME again by its file as it is now, beside the old one, and swap it in.

    For another key, type, time, order or time zone. All input is read again; readers see the old generation until one
    commit shows them the new one. The old one is kept for retention.keep_generations, to be swapped back.
    """
    config = find_collection(name, collections, "its next refresh makes it again by its file and its inputs")
    if give_up_only:
        _check_alone("generation")
        kept = kept_generations(session.client, session.client.state(config.name))
        if generation is None:
            did = give_up_rebuild(session.client, config.name)
        else:
            doomed = [each.state.shard for each in kept if each.number == generation]
            did = [name for name in doomed if end(session.client, name)]
        _print_given_up(session, config.name, did)
        return
    if generation is not None and not swap_back:
        raise InvalidInput("--generation is for --swap-back and --give-up: a rebuild makes a new one")
    request = Request(
        back_to=(-1 if generation is None else generation) if swap_back else None,
        takes_back_gone=take_back_gone,
        is_dry_run=dry_run,
        is_confirmed=yes,
        max_changed=config.limits.max_changed,
        max_updates=max_updates,
    )
    _carry_out(session, spark_of(session, master, conf), rebuild, config, request)


@click.command("generations")
@click.argument("shard")
@with_session
def generations_command(session: Session, shard: str) -> None:
    """The generations of SHARD that can be read: the present one, and the ones that were swapped out."""
    found = generations(session.client, shard)
    if session.as_json:
        output.print_ndjson(found)
        return
    rows = [
        (
            each["generation"],
            each["shard"],
            ", ".join(each["key"]),
            show_time(each["upper"]),
            "" if each["swapped_out_ms"] is None else format_time(each["swapped_out_ms"]),
            "" if each["kept_until_ms"] is None else format_time(each["kept_until_ms"]),
        )
        for each in found
    ]
    output.print_table(("generation", "shard", "key", "upper", "swapped out", "kept until"), rows)


@click.command("diff")
@click.argument("name")
@click.option("--a", "old", required=True, help="A time, a checkpoint of NAME, or another shard, such as a fork.")
@click.option("--b", "new", help="The same (default: NAME as it is now).")
@click.option("--limit", type=output.COUNT, default=SAMPLES, show_default=True, help="Rows to print.")
@click.option("--to", "file", type=click.Path(path_type=Path), help="Write all rows that differ to a Parquet file.")
@click.option("--max-updates", type=output.COUNT, default=MAX_UPDATES, help="As of `persist restore`.")
@with_session
def diff_command(
    session: Session, name: str, old: str, new: str | None, limit: int, file: Path | None, max_updates: int
) -> None:
    """Compare the shard NAME (a collection or view) with itself at another time, or with a fork of it.

    Rows added, removed and changed from A to B, by column. The cost follows the changes between them.
    """
    zone = session.client.state(name).schemas.zone
    a, b = (side_of(session.client, name, text, zone=zone) for text in (old, new))
    found = compare(session.client, a, b, max_updates=max_updates)
    if file is not None:
        try:
            with file.open("wb") as target:  # Arrow opens no path that is not UTF-8
                pq.write_table(found.rows, target)
        except OSError as error:
            raise InvalidInput(
                f"--to {file}: {error.strerror or error}; expected a file that can be written"
            ) from error
    if session.as_json:
        sides = {"a": {"shard": a.state.shard, "time": a.time}, "b": {"shard": b.state.shard, "time": b.time}}
        output.print_json({**sides, **facts_of(found, limit)})
        return
    output.print_line(f"from {a} to {b}: {line_of(found)}")
    _print_samples(found, limit)


def _limits(text: str) -> tuple[int | str, ...] | None:
    try:
        return read_limits(int(text) if text.isdigit() else text)
    except ValueError as error:
        raise InvalidInput(f"--max-changed {text}: {error}") from None


def _carry_out(
    session: Session,
    spark: SparkProcess,
    do: Callable[..., Reprocessed | Rebuilt | Filled],
    config: CollectionConfig,
    wishes: Wishes,
) -> None:
    """`reprocess`, `rebuild` or `fill`; print the report before the commit, and then what was done."""

    def show(found: Reprocessed | Rebuilt | Filled) -> None:
        report = report_of(found)
        for line in report.lines:
            output.print_line(line, to_stderr=session.as_json)  # stdout is for JSON
        for line in () if session.as_json else report.samples:
            output.print_line(f"  {line}")
        if not session.as_json and report.differing is not None:
            _print_samples(report.differing, SAMPLES)

    with spark.kept() as start:
        write = functools.partial(write_batch, session.client, start)
        writer = f"cli/{do.__name__} {this_user()}"
        found = do(session.client, config, wishes, write=write, writer=writer, say=session.say, report=show)
    report = report_of(found)
    output.print_done(Done(report.facts, (report.done,)), as_json=session.as_json)


def _check_alone(*more: str) -> None:
    """Raise `InvalidInput` for options that `--give-up` does not use. `more`: names of some that it does."""
    context = click.get_current_context()
    used = {"give_up_only", "collections", *_OF_LOCATION, *more}
    unused = [
        option.opts[0]
        for option in context.command.params
        if isinstance(option, click.Option)
        and option.name is not None
        and option.name not in used
        and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if unused:
        raise InvalidInput(f"--give-up deletes, and does nothing else; expected no {', '.join(unused)}")


def _print_given_up(session: Session, shard: str, deleted: Sequence[str]) -> None:
    facts = {"shard": shard, "status": "given_up" if deleted else "up_to_date", "deleted": list(deleted)}
    said = f"{' and '.join(deleted)} deleted" if deleted else "there is nothing to give up"
    output.print_done(Done(facts, (f"{shard}: {said}",)), as_json=session.as_json)


def _print_samples(found: Differences, limit: int) -> None:
    shown = found.rows.slice(0, limit)
    if len(shown):
        output.print_table(output.short_names(shown.column_names), [list(row.values()) for row in json_rows(shown)])
    if len(shown) < len(found.rows):
        output.print_line(f"{len(found.rows) - len(shown)} more")
