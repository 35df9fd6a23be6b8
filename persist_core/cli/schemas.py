"""`persist schema`, `plan` and `columns`: how columns have changed, what a changed file will do, what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from persist_core.cli import output
from persist_core.cli.configs import all_of, collections_option, find_collection, find_config, views_option
from persist_core.cli.session import Session, with_session
from persist_core.contents.evolution import changes_between
from persist_core.errors import InvalidInput, SchemaMismatch
from persist_core.protocol.planned import planned
from persist_core.sample.found import found_by
from persist_core.sample.propose import new_columns
from persist_core.sources.feeds import feed_of
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
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All collections and views of the folders.")
@collections_option
@views_option
@with_session
def plan(session: Session, names: tuple[str, ...], is_all: bool, collections: Path | None, views: Path | None) -> None:
    """Say what the next run of NAME (a collection or view, or its file) will do to the schema.

    Nothing, evolve, be refused; a changed view refreshes with the new query. Writes nothing. A refused or wrong file
    ends the command with the reason and exit code 2.
    """
    if bool(names) == is_all:
        raise InvalidInput("expected a NAME, several, or --all")
    if is_all:
        configs, wrong = all_of(collections, views, None)
    else:
        configs, wrong = [find_config(name, collections, views) for name in names], []
    plans = [planned(session.client, config) for config in configs]
    for each in plans:
        if session.as_json:
            output.print_json(
                {"shard": each.shard, "plan": each.status, "changes": each.changes, "refused": each.refused}
            )
        elif each.status != "refused":
            output.print_line(f"{each.shard}: {_HEADS[each.status]}")
            for line in each.changes:
                output.print_line(f"  {line}")
    refused = [f"{each.shard}: {each.refused}" for each in plans if each.status == "refused"]
    if refused:
        raise SchemaMismatch("\n".join([*refused, *map(str, wrong)]))
    for error in wrong[1:]:
        output.print_error(error, as_json=session.as_json)
    if wrong:
        raise wrong[0]


@click.command("columns")
@click.argument("name")
@click.argument("more", nargs=-1)
@click.option("--from", "glob", metavar="FILES", help="Look at these files: a path or glob (default: source.path).")
@collections_option
@with_session
def columns(session: Session, name: str, more: tuple[str, ...], glob: str | None, collections: Path | None) -> None:
    """Print lines to paste into `columns` of NAME (a collection, or its file), for fields that have no column yet.

    Each line says why. It looks at a sample: the first records of the oldest and of the newest files. It also asks
    about columns whose values would fit another type better. Writes nothing.
    """
    config = find_collection(name, collections, "its query says its columns")
    if more and glob is None:
        raise InvalidInput(f"persist columns {name}: expected the files behind --from")
    location, connection = session.client.location, config.source.connection
    if glob is None:
        feed = feed_of(location, config)
        files = FileSource(config, session.client.blob, feed).freeze(None, until=None, is_look=True).frozen.files
    else:
        given = found_by([glob, *more], location, connection)
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
    "refresh": "its query has changed: the next refresh writes the difference; `persist run --read-only` shows it",
}
