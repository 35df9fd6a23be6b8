"""`persist`: what is in a location, and running a collection without Airflow.

persist shards | describe | snapshot | changes | errors | checkpoints | conflicts | fsck | run

Every command takes the location from its options, the environment or a config file, prints tables for people or JSON
for programs (`--json`), and ends with an exit code that says what to do next (`persist_core.cli_output`).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from persist_core import cli_output as output
from persist_core.batch import check_shard_name
from persist_core.checkpoint.checkpointer import BlobCheckpointer
from persist_core.client import PersistClient
from persist_core.config import load_collection
from persist_core.conflicts import list_conflicts
from persist_core.errors import Corruption, InvalidInput, PersistError
from persist_core.fsck import FsckReport, fsck
from persist_core.local_run import RunReport, default_until, run_collection
from persist_core.location.open import PersistLocation, location_from, open_location
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME
from persist_core.spark_submit import LOCAL_MASTER, SparkSettings
from persist_core.state import ShardState
from persist_core.time_text import parse_time

DEFAULT_ROWS = 100  # rows of a table that people get without --limit; JSON has all
ENV_COLLECTIONS = "PERSIST_COLLECTIONS"
ENV_SPARK_MASTER = "PERSIST_SPARK_MASTER"
DEFAULT_COLLECTIONS = Path("dags") / "collections"
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@dataclass(frozen=True)
class Session:
    """What a command works with."""

    client: PersistClient
    location: PersistLocation
    as_json: bool

    def say(self, line: str) -> None:
        """Progress: always on stderr, so that stdout holds the result alone."""
        output.print_line(line, to_stderr=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="airflow-persist", prog_name="persist")
def persist() -> None:
    """Right, incremental, replayable tables out of change feeds.

    The location is taken from --blob-uri and --consensus-uri, or PERSIST_BLOB_URI and PERSIST_CONSENSUS_URI, or
    ./persist.toml. Times are ISO (2026-01-31, 2026-01-31T12:00:00Z; UTC where no offset is given) or integers
    (milliseconds since 1970).

    \b
    Exit codes: 0 done, 2 wrong arguments or files, 3 not readable (not there, or outside the frontiers),
    4 corruption found, 5 a run failed and committed nothing, 6 the store failed or did not answer.
    """


def _with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command has, and hand the command a `Session`."""

    @functools.wraps(command)
    def with_session(
        *, blob_uri: str | None, consensus_uri: str | None, config_file: Path | None, as_json: bool, **arguments: Any
    ) -> None:
        location = location_from(blob_uri, consensus_uri, config_file=config_file)
        with open_location(location) as opened:
            command(Session(PersistClient(opened), location, as_json), **arguments)

    options = (
        click.option("--json", "as_json", is_flag=True, help="JSON on stdout: one object, or one a line."),
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file with the location."),
        click.option("--consensus-uri", help="sqlite:////folder/consensus.db, mem:name"),
        click.option("--blob-uri", help="file:///folder, mem:name"),
    )
    for option in options:
        with_session = option(with_session)
    return with_session


@persist.command()
@_with_session
def shards(session: Session) -> None:
    """List the shards of the location, with their frontiers."""
    bodies = [_shard_body(session.client, name) for name in session.client.shards()]
    if session.as_json:
        output.print_ndjson(bodies)
        return
    rows = [
        (b["shard"], b["error"], "", "", "", "")
        if "error" in b
        else (
            b["shard"],
            output.show_time(b["since"]),
            output.show_time(b["upper"]),
            b["batches"],
            output.show_bytes(b["size_bytes"]),
            output.show_time(b["committed_ms"]) if b["committed_ms"] is not None else "never",
        )
        for b in bodies
    ]
    columns = ("shard", "since", "upper", "batches", "size", "last commit")
    output.print_table(columns, rows, empty=f"no shards in {session.client.location.consensus.uri}")


def _shard_body(client: PersistClient, name: str) -> dict[str, Any]:
    try:
        state = client.state(name)
    except Corruption as error:
        return {"shard": name, "error": f"{error.kind}: {error}"}
    newest = state.newest_commit
    return {
        "shard": name,
        "since": state.since.time,
        "upper": state.upper.time,
        "is_dropped": state.is_dropped,
        "batches": len(state.batches),
        "size_bytes": sum(batch.size_bytes for batch in state.batches),
        "committed_ms": newest.committed_ms if newest else None,
    }


@persist.command()
@click.argument("shard")
@_with_session
def describe(session: Session, shard: str) -> None:
    """Frontiers, schema, sizes, progress and holders of SHARD."""
    state = session.client.state(shard)
    body = _description_of(state)
    if session.as_json:
        output.print_json(body)
        return
    newest = state.newest_commit
    output.print_facts(
        [
            ("shard", shard),
            ("since", output.show_frontier(state.since)),
            ("upper", output.show_frontier(state.upper)),
            ("batches", f"{len(state.batches)}, {body['updates']} updates, {output.show_bytes(body['size_bytes'])}"),
            (
                "last commit",
                "never"
                if newest is None
                else f"{output.show_time(newest.committed_ms)} by {newest.writer}, checkpoint {newest.checkpoint_id}",
            ),
            ("state", f"version {state.seqno}"),
            *((f"source {name}", _progress(offsets)) for name, offsets in body["sources"].items()),
            *(
                (f"lease {lease['reader']}", f"holds {output.show_time(lease['since'])}, until {lease['expires_ms']}")
                for lease in body["leases"]
            ),
            *((f"hold {hold['holder']}", f"holds {output.show_time(hold['since'])}") for hold in body["holds"]),
        ]
    )
    if state.schema is not None:
        keys = state.schema.key_names
        rows = [
            (c.name, c.type, "key" if c.name in keys else "" if c.nullable else "not null")
            for c in state.schema.columns
        ]
        output.print_table(("column", "type", ""), rows)


def _description_of(state: ShardState) -> dict[str, Any]:
    newest = state.newest_commit
    return {
        "shard": state.shard,
        "seqno": state.seqno,
        "since": state.since.time,
        "upper": state.upper.time,
        "is_dropped": state.is_dropped,
        "schema": state.schema.to_json() if state.schema else None,
        "batches": len(state.batches),
        "updates": sum(batch.counts.updates for batch in state.batches),
        "size_bytes": sum(batch.size_bytes for batch in state.batches),
        "newest_commit": asdict(newest) if newest else None,
        "sources": {name: _offsets(source.offsets) for name, source in state.sources.items()},
        "leases": [
            {"reader": name, "since": lease.since.time, "expires_ms": lease.heartbeat_ms + lease.duration_ms}
            for name, lease in sorted(state.leases.items())
        ],
        "holds": [{"holder": name, "since": hold.since.time} for name, hold in sorted(state.holds.items())],
    }


def _offsets(offsets: Mapping[str, Any]) -> dict[str, Any]:
    """A source's progress, with long lists as their length."""
    return {name: len(value) if isinstance(value, list | tuple) else value for name, value in offsets.items()}


def _progress(offsets: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(offsets.items()))


@persist.command()
@click.argument("shard")
@click.option("--as-of", help="Time to read at (default: the newest).")
@click.option("--limit", type=click.IntRange(min=0), help=f"Rows to print (default: {DEFAULT_ROWS}; with --json all).")
@_with_session
def snapshot(session: Session, shard: str, as_of: str | None, limit: int | None) -> None:
    """The rows of SHARD as of a time, ordered by key."""
    reader = session.client.open_reader(shard)
    table = reader.snapshot(_time(as_of, "--as-of"))
    schema = session.client.state(shard).schema
    keys = schema.key_names if schema else ()
    _print_rows(session, table.sort_by([(name, "ascending") for name in keys]) if keys else table, limit, "no rows")


@persist.command()
@click.argument("shard")
@click.option("--after", required=True, help="Updates after this time ...")
@click.option("--through", help="... up to and including this one (default: the newest).")
@click.option("--errs", is_flag=True, help="The updates of the errors instead of the rows'.")
@click.option("--limit", type=click.IntRange(min=0), help=f"Rows to print (default: {DEFAULT_ROWS}; with --json all).")
@_with_session
def changes(session: Session, shard: str, after: str, through: str | None, errs: bool, limit: int | None) -> None:
    """The updates of SHARD between two times: what was inserted (diff 1) and retracted (diff -1), and when."""
    reader = session.client.open_reader(shard)
    read = reader.error_changes if errs else reader.changes
    table = read(parse_time(after, what="--after"), _time(through, "--through"))
    schema = session.client.state(shard).schema
    keys = [name for name in (schema.key_names if schema else ()) if name in table.column_names]
    order = [TIME, *keys, DIFF]
    others = [name for name in table.column_names if name not in (TIME, DIFF)]
    table = table.sort_by([(name, "ascending") for name in order]).select([TIME, DIFF, *others])
    _print_rows(session, table, limit, "no changes")


@persist.command()
@click.argument("shard")
@click.option("--as-of", help="Time to read at (default: the newest).")
@click.option("--limit", type=click.IntRange(min=0), help=f"Rows to print (default: {DEFAULT_ROWS}; with --json all).")
@_with_session
def errors(session: Session, shard: str, as_of: str | None, limit: int | None) -> None:
    """The errors of SHARD as of a time: records that could not be decoded, and why."""
    table = session.client.open_reader(shard).errors(_time(as_of, "--as-of"))
    first = [name for name in (TIME, ERR_KIND, ERR_KEY, ERR_MESSAGE, ERR_PAYLOAD) if name in table.column_names]
    others = [name for name in table.column_names if name not in first]
    table = table.sort_by([(name, "ascending") for name in (TIME, ERR_KIND, ERR_KEY) if name in first])
    _print_rows(session, table.select(first + ([] if not session.as_json else others)), limit, "no errors")


def _print_rows(session: Session, table: pa.Table, limit: int | None, empty: str) -> None:
    """Rows as NDJSON, or as a table with its system columns under short names."""
    if session.as_json:
        output.print_ndjson(output.rows_of(table if limit is None else table.slice(0, limit)))
        return
    shown = table.slice(0, DEFAULT_ROWS if limit is None else limit)
    rows = (
        [output.show_time(v) if name == TIME else v if not isinstance(v, dict) else v["hex"] for name, v in row.items()]
        for row in output.rows_of(shown)
    )
    names = [name.removeprefix("_persist_") for name in table.column_names]
    output.print_table(names, rows, empty=empty)
    if len(shown) < len(table):
        output.print_line(f"{len(table) - len(shown)} more rows; --limit {len(table)} shows all, --json too")


def _time(text: str | None, what: str) -> int | None:
    return None if text is None else parse_time(text, what=what)


@persist.command()
@click.argument("shard")
@_with_session
def checkpoints(session: Session, shard: str) -> None:
    """The checkpoints of SHARD, oldest first."""
    session.client.state(shard)
    checkpointer = BlobCheckpointer(session.client.blob, shard)
    latest = checkpointer.read_latest()
    bodies = [_checkpoint_body(checkpointer, name, latest) for name in checkpointer.list_checkpoints()]
    if session.as_json:
        output.print_ndjson(bodies)
        return
    rows = [
        (
            b["checkpoint_id"] + (" (latest)" if b["is_latest"] else ""),
            b["epoch"],
            output.show_time(b["timestamp_ms"]),
            output.show_time(b["upper"]),
            output.show_bytes(b["total_size_bytes"]),
            b["parent_id"],
        )
        for b in bodies
    ]
    output.print_table(("checkpoint", "epoch", "made", "upper", "state size", "parent"), rows, empty="no checkpoints")


@persist.command()
@click.argument("shard")
@_with_session
def conflicts(session: Session, shard: str) -> None:
    """Lost appends of SHARD: who expected which upper, what was there, and who won. Oldest first."""
    session.client.state(shard)
    records = list_conflicts(session.client.blob, shard)
    if session.as_json:
        output.print_ndjson(asdict(record) for record in records)
        return
    rows = [
        (
            output.show_time(r.detected_ms),
            output.show_time(r.expected_upper),
            output.show_time(r.found_upper),
            r.loser,
            r.winner,
        )
        for r in records
    ]
    output.print_table(("detected", "expected upper", "found upper", "lost", "won"), rows, empty="no conflicts")


@persist.command("fsck")
@click.argument("shard", required=False)
@_with_session
def check(session: Session, shard: str | None) -> None:
    """Check SHARD, or all shards, whole: state, manifests, parts, digests, invariants. Exit code 4 on findings."""
    names = session.client.shards() if shard is None else [check_shard_name(shard)]
    is_clean = True
    for name in names:
        report = fsck(session.client, name)
        is_clean = is_clean and report.is_clean
        _print_report(session, report)
    if not is_clean:
        raise SystemExit(4)


def _print_report(session: Session, report: FsckReport) -> None:
    if session.as_json:
        output.print_json({**asdict(report), "is_clean": report.is_clean})
        return
    verdict = "clean" if report.is_clean else f"{len(report.findings)} findings"
    output.print_line(
        f"{report.shard}: {verdict} ({report.batches} batches, {report.parts} parts, {report.updates} updates,"
        f" {output.show_bytes(report.size_bytes)})"
    )
    for finding in report.findings:
        output.print_line(f"  {finding.check}: {finding.message}")


@persist.command()
@click.argument("collection")
@click.option("--until", help="The input's frontier: files and records before it are final (default: now).")
@click.option("--close", is_flag=True, help="The input has ended: take all of it and close the shard.")
@click.option("--collections", type=click.Path(path_type=Path), help="Folder of collection files.")
@click.option("--master", help=f"Spark master (default: {ENV_SPARK_MASTER}, or {LOCAL_MASTER}).")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
@click.option("--logs", type=click.Path(path_type=Path), help="Folder that keeps the Spark jobs' logs.")
@_with_session
def run(
    session: Session,
    collection: str,
    until: str | None,
    close: bool,
    collections: Path | None,
    master: str | None,
    conf: tuple[str, ...],
    logs: Path | None,
) -> None:
    """Bring COLLECTION (a name in the folder of collection files, or a file) up to date, without Airflow."""
    if close and until is not None:
        raise InvalidInput("--close and --until exclude each other: a closed shard has no more times")
    config = load_collection(_collection_file(collection, collections))
    pairs = [pair.partition("=") for pair in conf]
    bad = next((name for name, equals, _ in pairs if not (name and equals)), None)
    if bad is not None:
        raise InvalidInput(f"--conf {bad}: wanted NAME=VALUE")
    settings = SparkSettings(
        master=master or os.environ.get(ENV_SPARK_MASTER) or LOCAL_MASTER,
        conf={name: value for name, _, value in pairs},
        log_folder=logs,
    )
    frontier = None if close else _time(until, "--until")
    if frontier is None and not close:
        frontier = default_until(config, session.client.clock.now_ms())
    report = run_collection(
        session.client, session.location, config, until=frontier, settings=settings, say=session.say
    )
    _print_run(session, report)


def _collection_file(collection: str, folder: Path | None) -> Path:
    """The file meant by a name or a path."""
    if collection.endswith((".yaml", ".yml")) or "/" in collection:
        return Path(collection)
    folder = folder or Path(os.environ.get(ENV_COLLECTIONS) or DEFAULT_COLLECTIONS)
    found = [
        path for path in (folder / f"{check_shard_name(collection)}{s}" for s in (".yaml", ".yml")) if path.is_file()
    ]
    if not found:
        raise InvalidInput(
            f"no collection file {folder / collection}.yaml; give --collections FOLDER, set {ENV_COLLECTIONS}, or name"
            " the file itself"
        )
    return found[0]


def _print_run(session: Session, report: RunReport) -> None:
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
                        "notices": list(r.notices),
                    }
                    for r in report.rounds
                ],
            }
        )
        return
    for done in report.rounds:
        counts = ", ".join(f"{name} {value}" for name, value in done.stats.items() if value)
        output.print_line(f"{report.shard} {done.interval}: {done.input_files} files; {counts or 'no records'}")
    if not report.rounds:
        output.print_line(f"{report.shard} is up to date: {report.reason}")


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: runs one command and exits with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run_command(given))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Errors are printed, not raised."""
    as_json = "--json" in arguments
    try:
        persist.main(list(arguments), prog_name="persist", standalone_mode=False)
        sys.stdout.flush()
    except PersistError as error:
        output.print_error(error, as_json=as_json)
        return output.exit_code(error)
    except click.ClickException as error:
        output.print_error(InvalidInput(error.format_message()), as_json=as_json)
        return output.exit_code(InvalidInput())
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BrokenPipeError:
        # whoever read our output has seen enough; keep Python from failing again on its last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
