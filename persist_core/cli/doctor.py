"""`persist doctor`: does this location keep what it promises?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from persist_core.cli import output
from persist_core.cli.session import location_options
from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.ids import RandomIds
from persist_core.location.file.blob import FileBlob
from persist_core.location.finding import Finding, Grade
from persist_core.location.open import open_blob, open_consensus, open_location, roles_of
from persist_core.location.settings import location_from
from persist_core.location.sqlite.consensus import SqliteConsensus
from persist_core.location.uri import redact_uri
from persist_core.maintenance.doctor import COMMITS, Examiner

PROBLEM_STATUS = 1


@click.command()
@click.argument("uris", nargs=-1, metavar="[URI]...")
@click.option("--commits", type=click.IntRange(1, 100_000), default=COMMITS, help=f"Commits to time ({COMMITS}).")
@location_options
def doctor(
    uris: tuple[str, ...],
    commits: int,
    blob_uri: str | None,
    consensus_uri: str | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Examine the stores that the URIs name, or the configured location: rights, races, clocks, speed, settings.

    Writes under keys of its own and removes them; creates no folder or database that a URI names. Exit status 1 if
    there is a problem; 2 if the two stores of the configured location do not belong together.
    """
    location = None
    if uris and (blob_uri or consensus_uri or config_file):
        raise InvalidInput("expected either URIs or a location (--blob-uri, --consensus-uri, --config): found both")
    if uris:
        stores = [(role, uri) for uri in uris for role in roles_of(uri)]
    else:
        location = location_from(blob_uri, consensus_uri, config_file=config_file)
        stores = [("blob", location.blob_uri), ("consensus", location.consensus_uri)]
    clock = SystemClock()
    examiner = Examiner(clock, RandomIds(clock), commits)
    examine: dict[str, Callable[[str], list[Finding]]] = {
        "blob": lambda uri: _examined(open_blob, examiner.blob, uri),
        "consensus": lambda uri: _examined(open_consensus, examiner.consensus, uri),
    }
    healthy = True
    for role, uri in stores:
        findings = examine[role](uri)
        healthy = healthy and all(finding.grade is not Grade.PROBLEM for finding in findings)
        (_print_json if as_json else _print_table)(role, redact_uri(uri), findings)
    if not healthy:
        raise SystemExit(PROBLEM_STATUS)
    if location is not None:
        with open_location(location) as opened:
            PersistClient(opened, clock).pair.check()


def _examined(open_store: Callable[[str], Any], examine: Callable[[Any], list[Finding]], uri: str) -> list[Finding]:
    with closing(open_store(uri)) as store:
        path = store.path if isinstance(store, FileBlob | SqliteConsensus) else None
        if path is None or not _is_missing(path):
            return examine(store)
    # Nothing is made in its place: after a wrong URI was examined, it would look like a store.
    there = next(each for each in path.parents if not _is_missing(each))
    found = f"{path} does not exist; {there} was examined in its place"
    expected, remedy = "an existing folder or database, or a new location", "check the URI; the first run creates it"
    try:
        with (
            TemporaryDirectory(prefix=".persist-doctor-", dir=there) as folder,
            closing(type(store)(Path(folder, path.name))) as made,
        ):
            findings = examine(made)
    except OSError as error:
        return [Finding("exists", Grade.PROBLEM, f"{path} does not exist; {there}: {error.strerror}", expected, remedy)]
    return [Finding("exists", Grade.WARNING, found, expected, remedy), *findings]


def _is_missing(path: Path) -> bool:
    """False too if it may not be looked at: then an examination says why."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _print_json(role: str, uri: str, findings: Iterable[Finding]) -> None:
    rows = [asdict(each) | {"grade": each.grade.value} for each in findings]
    healthy = all(row["grade"] != Grade.PROBLEM.value for row in rows)
    output.print_json({"role": role, "uri": uri, "healthy": healthy, "findings": rows})


def _print_table(role: str, uri: str, findings: Iterable[Finding]) -> None:
    output.print_line(f"{role} {uri}")
    for finding in findings:
        output.print_line(f"  {finding.grade.value:<8} {finding.check:<19} {finding.found}")
        if finding.grade is not Grade.OK:
            output.print_line(f"  {'':<8} {'':<19} expected: {finding.expected}")
            output.print_line(f"  {'':<8} {'':<19} do: {finding.remedy}")
