"""`persist schema`, `plan` and `columns`: how columns have changed, what a changed file will do, what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from persist_core.cli import output
from persist_core.cli.run import find_config
from persist_core.cli.session import Session, with_session
from persist_core.config.collection import CollectionConfig
from persist_core.contents.evolution import changes_between
from persist_core.errors import InvalidInput, SchemaMismatch
from persist_core.sample.propose import found_by, new_columns
from persist_core.sources.feeds import feed_at, feed_of
from persist_core.sources.files import FileSource
from persist_core.time_text import show_time


@click.command("schema")
@click.argument("shard")
@with_session
def schema_command(session: Session, shard: str) -> None:
    """The schema versions of SHARD: what each changed, and since when."""
    schemas = session.client.state(shard).schemas
    before, rows = None, []
    for each in schemas.versions:
        changed = changes_between(before, each.schema)
        end = schemas.readable_before(each.schema.version)
        rows.append((each.schema.version, each.lower, each.seqno, changed, end))
        before = each.schema
    names = ("version", "since", "seqno", "changes", "readable_before")
    if session.as_json:
        output.print_ndjson({**dict(zip(names, row, strict=True)), "schema": each.schema.to_json()}
                            for row, each in zip(rows, schemas.versions, strict=True))  # fmt: skip
        return
    shown = [
        (version, show_time(lower), change, "" if end is None else show_time(end))
        if change is changed[0]
        else ("", "", change, "")
        for version, lower, _, changed, end in rows
        for change in changed
    ]
    output.print_table(("version", "since", "changes", "readable before"), shown, empty="no data yet")


@click.command("plan")
@click.argument("name")
@click.option("--collections", type=click.Path(path_type=Path), help="Folder of collection files.")
@with_session
def plan(session: Session, name: str, collections: Path | None) -> None:
    """Say what the next run of NAME (a collection, or its file) will do to the schema: nothing, evolve, be refused.

    Writes nothing. A refused file ends the command with the reason and exit code 2.
    """
    config = find_config(name, collections, None)
    if not isinstance(config, CollectionConfig):
        raise InvalidInput(f"{name} is a view: its columns are known at its refresh. Expected a collection")
    state = session.client.machine.fetch(config.name)
    newest = None if state is None else state.schemas.newest
    refused, words = "", list[str]()
    try:
        schemas = None if state is None else state.schemas
        found = config.collection_schema() if schemas is None else schemas.placed(config.collection_schema())
        words = [] if newest is found else changes_between(newest, found)
    except SchemaMismatch as error:
        refused = str(error)
    status = "refused" if refused else "nothing" if not words else "new" if newest is None else "evolve"
    if session.as_json:
        output.print_json({"shard": config.name, "plan": status, "changes": words, "refused": refused})
    elif not refused:
        output.print_line(f"{config.name}: {_HEADS[status]}")
        for line in words:
            output.print_line(f"  {line}")
    if refused:
        raise SchemaMismatch(f"{config.name}: {refused}")


@click.command("columns")
@click.argument("name")
@click.argument("more", nargs=-1)
@click.option("--from", "glob", metavar="FILES", help="Look at these files: a path or glob (default: source.path).")
@click.option("--collections", type=click.Path(path_type=Path), help="Folder of collection files.")
@with_session
def columns(session: Session, name: str, more: tuple[str, ...], glob: str | None, collections: Path | None) -> None:
    """Print lines to paste into `columns` of NAME (a collection, or its file), for fields that have no column yet.

    Each line says why. It looks at a sample: the first records of the oldest and of the newest files. It also asks
    about columns whose values would fit another type better. Writes nothing.
    """
    config = find_config(name, collections, None)
    if not isinstance(config, CollectionConfig) or (more and glob is None):
        raise InvalidInput(f"persist columns {name}: expected a collection, and its files behind --from")
    location, connection = session.client.location, config.source.connection
    if glob is None:
        feed = feed_of(location, config)
        files = FileSource(config, session.client.blob, feed).freeze(None, until=None).frozen.files
    else:
        given = found_by([glob, *more], lambda pattern: feed_at(location, pattern, connection), connection)
        feed, files = given.feed, tuple(given.files)
    lines, hints = new_columns(config, feed, files)
    if session.as_json:
        output.print_ndjson({"field": each.field, "column": each.text, "reason": each.reason} for each in lines)
        return
    for line in ("columns:", *(each.line for each in lines)) if lines else ("# each field has a column",):
        output.print_line(line)
    for hint in hints:
        output.print_line(f"# QUESTION: {hint}")


_HEADS = {
    "nothing": "nothing changes",
    "new": "the first run makes the shard",
    "evolve": "the next run evolves the schema in place; no file is written again",
}
