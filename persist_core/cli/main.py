"""`persist`: what is in a location, and running a collection or view without Airflow.

persist shards | describe | snapshot | changes | errors | late | checkpoints | pin | unpin | restore | reprocess |
        fill | rebuild | generations | diff | erase | conflicts | fsck | doctor | run | metrics | maintain | gc | drop |
        holds | release | copy | alerts | ack | preview | warm-up | init | demo

Every command takes the location from its options, the environment or a config file, prints tables for people or JSON
for programs (`--json`), and ends with an exit code that says what to do next (`persist_core.cli.output`).
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from click.exceptions import NoArgsIsHelpError

from persist_core.cli import output
from persist_core.cli.doctor import doctor
from persist_core.cli.maintain import copy_command, drop_command, erase_command, gc_command, maintain_command
from persist_core.cli.project import demo, init, preview_command, warm_up
from persist_core.cli.reprocess import (
    diff_command,
    fill_command,
    generations_command,
    rebuild_command,
    reprocess_command,
)
from persist_core.cli.restore import (
    holds_command,
    pin_command,
    release_command,
    resolve_command,
    restore_command,
    unpin_command,
)
from persist_core.cli.run import run
from persist_core.cli.schemas import columns, plan, schema_command
from persist_core.cli.session import Session, with_session
from persist_core.cli.shards import DEFAULT_ROWS, check, checkpoints, commits, conflicts, describe, late_command, shards
from persist_core.cli.watch import ack_command, alerts_command, metrics
from persist_core.contents.err_groups import grouped, rows_of_errs
from persist_core.errors import InvalidInput, PersistError, StorageError
from persist_core.handles.limited import LimitedReader, ReadBudget
from persist_core.handles.read import ReadHandle, check_as_of, in_schema
from persist_core.inspection.rows import ERR_COLUMNS, errors_in_order, first_changes, first_rows, key_of
from persist_core.inspection.values import json_rows
from persist_core.schema import ERR_KEY, ERR_KIND, ERR_PAYLOAD, MISSING_ORDER, TIME
from persist_core.spark_job.answer import newest_rejected
from persist_core.time_text import format_time, show_time

MAX_BYTES_HELD = 512 << 20  # decoded, of a read with a limit
_INTERRUPTED = 130  # 128 + SIGINT, as in shells
_CLOSED = 128 + signal.SIGPIPE


class _Commands(click.Group):
    """If the reader of the output has closed it, ends with the exit code of SIGPIPE: the command may not be done."""

    def invoke(self, ctx: click.Context) -> None:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
            sys.exit(_CLOSED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="airflow-persist", prog_name="persist")
def persist() -> None:
    """Correct, incremental, replayable tables from change feeds.

    The location is taken from --blob-uri and --consensus-uri, or --config, or PERSIST_BLOB_URI and
    PERSIST_CONSENSUS_URI, or ./persist.toml, or ~/.config/persist/config.toml. Times are ISO (2026-01-31,
    "2026-01-31 12:00 +01:00", "2026-01-31 12:00 Europe/Berlin"), now, today, yesterday (the start of that day),
    "2 hours ago", or integers (milliseconds since 1970). Without an offset they are in the time zone of the collection,
    or UTC.

    \b
    Exit codes: 0 done, 1 doctor found a problem, 2 wrong arguments or files, 3 not readable (not there, or outside the
    frontiers), 4 corruption found, 5 a run failed and committed nothing, 6 the store failed or did not answer.
    """


_schema_option = click.option(
    "--schema", type=output.COUNT, help="Show this version of the schema (`persist schema` lists them)."
)
_limit_option = click.option(
    "--limit", type=output.COUNT, help=f"Rows to print (default: {DEFAULT_ROWS}; with --json all)."
)
_key_option = click.option(
    "--key",
    multiple=True,
    help="Only rows with this key. Repeat it for each key column, in order; a key prefix is enough.",
)


@persist.command()
@click.argument("shard")
@click.option("--as-of", help="Time to read at (default: the newest).")
@_key_option
@_schema_option
@_limit_option
@with_session
def snapshot(
    session: Session, shard: str, as_of: str | None, key: tuple[str, ...], schema: int | None, limit: int | None
) -> None:
    """The rows of SHARD (a collection or view) as of a time, ordered by key; of a view, by all columns."""
    state = in_schema(session.client.state(shard), schema)
    time, keys = session.time(as_of, "--as-of", state.schemas.zone), key_of(state, key)
    rows = _limit(session, limit)
    found = first_rows(_reader(session, shard, rows), state, check_as_of(state, time), keys, 0, rows)
    _print_rows(session, found, "no rows")


@persist.command()
@click.argument("shard")
@click.option("--after", required=True, help="Updates after this time ...")
@click.option("--through", help="... up to and including this one (default: the newest).")
@click.option("--errs", is_flag=True, help="Print changes of the errors instead of the rows.")
@click.option("--generation", type=output.COUNT, help="The one that you know: `persist generations`.")
@_key_option
@_schema_option
@_limit_option
@with_session
def changes(
    session: Session,
    shard: str,
    after: str,
    through: str | None,
    errs: bool,
    generation: int | None,
    key: tuple[str, ...],
    schema: int | None,
    limit: int | None,
) -> None:
    """The updates of SHARD between two times: what was inserted (diff > 0) and retracted (diff < 0), and when."""
    state = in_schema(session.client.state(shard), schema)
    begin = session.time(after, "--after", state.schemas.zone) or 0
    end = check_as_of(state, session.time(through, "--through", state.schemas.zone))
    keys, rows = key_of(state, key), _limit(session, limit)
    reader = _reader(session, shard, rows, generation)
    found = first_changes(reader, state, begin, end, keys, 0, rows, of_errors=errs, schema=schema)
    _print_rows(session, found, "no changes")


@persist.command()
@click.argument("shard")
@click.option("--as-of", help="Time to read at (default: the newest).")
@_limit_option
@click.option("--rejected", is_flag=True, help="Samples of the newest batch that was refused for too many errors.")
@click.option("--summary", is_flag=True, help="Group them by kind and message, the most frequent first.")
@with_session
def errors(session: Session, shard: str, as_of: str | None, limit: int | None, rejected: bool, summary: bool) -> None:
    """The errors of SHARD as of a time: records that could not be decoded, and why."""
    if rejected:
        if as_of is not None or summary:
            raise InvalidInput("--rejected excludes --as-of and --summary: a refused batch is not in the shard")
        print_rejected(session, shard, limit)
        return
    rows = _limit(session, limit)
    reader, state = _reader(session, shard, None if summary else rows), session.client.state(shard)
    table = errors_in_order(state, reader.errors(session.time(as_of, "--as-of", state.schemas.zone)))
    if summary:
        bodies = [asdict(group) for group in grouped(rows_of_errs(table))[:rows]]
        if session.as_json:
            output.print_ndjson(bodies)
        else:
            columns = ("count", "kind", "message", "position", "payload")
            empty = "" if len(table) else "no errors"
            output.print_table(columns, [[body[name] for name in columns] for body in bodies], empty=empty)
        return
    columns = table.column_names if session.as_json else table.column_names[: len(ERR_COLUMNS)]
    _print_rows(session, (table.select(columns).slice(0, rows), len(table)), "no errors")
    if not session.as_json and MISSING_ORDER in table[ERR_KIND].to_pylist():
        output.print_line(f"no record removes errors of kind {MISSING_ORDER}; `persist resolve {shard}` does")


def _limit(session: Session, limit: int | None) -> int | None:
    return DEFAULT_ROWS if limit is None and not session.as_json else limit


def _reader(session: Session, shard: str, rows: int | None, generation: int | None = None) -> ReadHandle:
    """A reader of so many rows, within bounds; without bounds for all of them."""
    if rows is None:
        return session.client.open_reader(shard, generation=generation)
    return LimitedReader(session.client, shard, ReadBudget(MAX_BYTES_HELD), generation=generation)


def _print_rows(session: Session, found: tuple[pa.Table, int], empty: str) -> None:
    """Rows as NDJSON, or as a table with its system columns under short names, and how many rows were left out."""
    shown, total = found
    if session.as_json:
        output.print_ndjson(json_rows(shown))
        return
    rows = (_row_for_people(row) for row in json_rows(shown))
    output.print_table(output.short_names(shown.column_names), rows, empty="" if total else empty)
    if len(shown) < total:
        output.print_line(f"{total - len(shown)} more rows; --limit {total} shows all, --json too")


def _row_for_people(row: Mapping[str, Any]) -> list[Any]:
    """Times as ISO, bytes that are not text as hex; a raw key that is the whole record is not shown twice."""
    shown = {name: value["hex"] if isinstance(value, dict) else value for name, value in row.items()}
    if TIME in shown:
        shown[TIME] = show_time(shown[TIME])
    if shown.get(ERR_KEY) is not None and shown[ERR_KEY] == shown.get(ERR_PAYLOAD):
        shown[ERR_KEY] = "(the payload)"
    return list(shown.values())


for _command in (
    shards, describe, commits, checkpoints, pin_command, unpin_command, restore_command, conflicts, late_command,
    resolve_command, reprocess_command, fill_command, rebuild_command, generations_command, diff_command, check,
    doctor, run, metrics, maintain_command, gc_command, drop_command, holds_command, release_command, copy_command,
    alerts_command, ack_command, preview_command, warm_up, schema_command, plan, columns, init, demo, erase_command,
):  # fmt: skip
    persist.add_command(_command)


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        output.print_line(record.getMessage(), to_stderr=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: runs one command and exits with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for name in ("stdout", "stderr"):  # closed (`>&-`): a file that is opened next must not take its place
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):  # a locale may know few characters; JSON is UTF-8 whatever it knows
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8" if "--json" in given else None, errors="backslashreplace")
    logging.basicConfig(handlers=[_Told()])
    logging.getLogger("persist_core.spark_job").setLevel(logging.INFO)  # a long job says what it does
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that a Spark job that runs ends too
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    sys.exit(run_command(given))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are printed, not raised."""
    as_json = "--json" in arguments
    try:
        persist.main(list(arguments), prog_name="persist", standalone_mode=False)
    except PersistError as error:
        output.print_error(error, as_json=as_json)
        return output.exit_code(error)
    except NoArgsIsHelpError as error:
        sys.stderr.write(error.format_message() + "\n")
        return output.exit_code(InvalidInput())
    except click.ClickException as error:
        output.print_error(InvalidInput(error.format_message()), as_json=as_json)
        return output.exit_code(InvalidInput())
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except OSError as error:  # stores, and files that are parsed, have errors of their own
        failed: PersistError
        if error.filename is None:
            sys.stdout = io.StringIO()  # else Python tries to write the rest when it ends
            failed = StorageError(f"the output can't be written: {error.strerror}")
        else:
            failed = InvalidInput(f"{error.filename}: {error.strerror}; check the path, and the rights of this user")
        output.print_error(failed, as_json=as_json)
        return output.exit_code(failed)
    return 0


def print_rejected(session: Session, shard: str, limit: int | None) -> None:
    """Samples of the errors of the refused batch, with the position of each. With `--json` one object a line."""
    found = newest_rejected(session.client, shard)
    samples = () if found is None else found.samples[:limit]
    if session.as_json:
        output.print_ndjson(asdict(each) for each in samples)
        return
    if found is None:
        output.print_line(f"no batch of {shard} was refused for its errors, or GC has deleted the record of it")
        return
    output.print_line(f"refused at {format_time(found.refused_ms)}: {found.message.splitlines()[0]}")
    columns = ("kind", "key", "message", "payload", "time", "read from")
    rows = [(s.kind, s.key, s.message, s.payload, show_time(s.time), s.position or "unknown") for s in samples]
    output.print_table(columns, rows)
