"""Write the reference pages that are made from the code: `make docs`.

    persist's own commands ------> docs/reference/cli.md
    persist_core.errors ---------> docs/reference/errors.md
    persist_core.inspection -----> docs/reference/inspection.md, docs/reference/metrics.md, docker/metrics/statsd.yaml

`make check` compares these files with `pages()`.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from persist_core import errors
from persist_core.alerts.facts import AlertFacts, Problem
from persist_core.cli.main import persist
from persist_core.cli.output import EXIT_CODES
from persist_core.errors import PersistError
from persist_core.inspection import facts
from persist_core.inspection.holders import Held
from persist_core.inspection.late import LateRecord
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.shard.state import Released
from tests.env.metrics_pages import reference_page, statsd_mapping

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
_MADE = "<!-- `make docs` writes this page. -->\n"

CLI_HEAD = """# Command line

{made}
`persist` reads and runs what is in a [location](../locations.md). It works without Airflow.

```console
{examples}
```

`CHECKPOINT_ID` stands for an id that `persist checkpoints` prints.

{group}

## Options of every command on a location

{shared}
"""

EXAMPLES = """
persist run customers --until 2026-01-08
persist shards
persist describe customers
persist commits customers --limit 10
persist snapshot customers --as-of 2026-01-03 --limit 5
persist changes customers --after 2026-01-03 --through 2026-01-04
persist errors customers
persist late customers
persist schema customers
persist plan customers
persist resolve customers --all --dry-run
persist checkpoints customers
persist metrics
persist maintain customers
persist gc customers --dry-run
persist holds customers
persist pin customers CHECKPOINT_ID
persist restore customers --to CHECKPOINT_ID --dry-run
persist unpin customers CHECKPOINT_ID
persist conflicts customers
persist alerts customers
persist fsck customers
persist doctor
persist init shop
persist demo
""".strip().splitlines()

NO_LOCATION = {"demo", "init", "warm-up"}  # these commands work without one, and have no options for it

ERRORS_HEAD = """# Errors and exit codes

{made}
Each error has a stable **kind**. It is in failure records, in the output of `--json`
(`{{"error": {{"kind": ..., "message": ...}}}}`) and at the start of the message of a failed Airflow task
(`kind: message`). The message names the object, the value found, the value expected, and what to do next. It can change
between releases, and it never contains a secret.

What an operator does about each kind is in [operations](../operations.md#a-dag-run-failed).

| exit code of `persist` | meaning |
| --- | --- |
| 0 | done |
| 1 | `doctor` found a problem; or an unexpected error |
{codes}
| 129, 130, 143 | interrupted by SIGHUP, SIGINT or SIGTERM |
| 141 | The reader of the output closed it (`persist run --all \\| head -1`). The command ended there. |
"""


INSPECTION_HEAD = """# Facts about shards, as JSON

{made}
The [page for shards](../page.md) reads these objects, and `persist ... --json` prints them. Names and meanings are
stable; later releases may add fields. Times are integers (milliseconds since 1970 for schedules). `null` is a closed
frontier or an unknown fact.

| command | endpoint of the page | object |
| --- | --- | --- |
| `persist shards --json` (one a line) | `api/shards` | [ShardSummary](#shardsummary) |
| `persist describe SHARD --json` | `api/shard` | [ShardDescription](#sharddescription) |
| `persist commits SHARD --json` | `api/commits` | [CommitsPage](#commitspage) |
| `persist metrics --json` (one value a line) | | name, labels, value of the [metrics of shards](metrics.md#of-shards) |
| | `api/batches` | [BatchesPage](#batchespage) |
| `persist checkpoints SHARD --json` (one a line) | `api/checkpoints` | [CheckpointFacts](#checkpointfacts) |
| `persist holds SHARD --json` | | [Holders](#holders) |
| `persist late SHARD --json` (one a line) | | [LateRecord](#laterecord) |
| `persist conflicts SHARD --json` (one a line) | `api/conflicts` | [ConflictRecord](#conflictrecord) |
| `persist alerts [SHARD] --json` (one a line), `persist ack` | `alerts` in `api/shard` | [AlertFacts](#alertfacts) |
| | `api/rows`, `api/changes`, `api/errors` | [RowsPage](#rowspage) |
"""


def pages() -> dict[Path, str]:
    """Every page and its text."""
    return {
        FOLDER / "cli.md": cli_page(),
        FOLDER / "errors.md": errors_page(),
        FOLDER / "inspection.md": inspection_page(),
        FOLDER / "metrics.md": reference_page(_MADE),
        ROOT / "docker" / "metrics" / "statsd.yaml": statsd_mapping(),
    }


def inspection_page() -> str:
    """The objects of an inspection, with the type of each field."""
    text = INSPECTION_HEAD.format(made=_MADE)
    found = [each for each in vars(facts).values() if dataclasses.is_dataclass(each) and isinstance(each, type)]
    for kind in (*found, AlertFacts, Problem, LateRecord, Held, Released, ConflictRecord):
        own = [(f"`{field.name}`", f"`{field.type}`") for field in dataclasses.fields(kind)]
        about = "\n\n".join(" ".join(each.split()) for each in (kind.__doc__ or "").split("\n\n"))
        text += f"\n## {kind.__name__}\n\n{about}\n\n{_table(('field', 'type'), own)}\n"
    return text


def cli_page() -> str:
    """The command line, as its own help describes it."""
    context = click.Context(persist, info_name="persist", **persist.context_settings)
    commands = [persist.commands[name] for name in sorted(persist.commands)]
    options = [_options(command, context) for command in commands]
    on_locations = [found for command, found in zip(commands, options, strict=True) if command.name not in NO_LOCATION]
    shared = [record for record in on_locations[0] if all(record in others for others in on_locations)]
    head = CLI_HEAD.format(
        made=_MADE,
        examples="\n".join(f"$ {command}" for command in EXAMPLES),
        group=_paragraphs(persist.help),
        shared=_table(("option", "meaning"), shared),
    )
    return head + "".join(
        _command(command, [record for record in found if record not in shared], context)
        for command, found in zip(commands, options, strict=True)
    )


def errors_page() -> str:
    """Every kind of error, below the kind that says what to do next."""
    codes = "\n".join(f"| {code} | {_cell(_meaning(group))} |" for group, code in EXIT_CODES)
    text = ERRORS_HEAD.format(made=_MADE, codes=codes)
    for group, code in EXIT_CODES:
        rows = [(f"`{kind.kind}`", f"`{kind.__name__}`", _meaning(kind)) for kind in family(group)]
        text += f"\n## Exit code {code}\n\n{_table(('kind', 'class', 'meaning'), rows)}\n"
    return text


def family(group: type[PersistError]) -> Iterator[type[PersistError]]:
    """The error class and its subclasses in `persist_core.errors`, parents first."""
    yield group
    for kind in group.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from family(kind)


def _meaning(kind: type[PersistError]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _command(command: click.Command, options: list[tuple[str, str]], context: click.Context) -> str:
    own = click.Context(command, info_name=command.name, parent=context)
    arguments = [piece for parameter in command.params if isinstance(parameter, click.Argument)
                 for piece in parameter.get_usage_pieces(own)]  # fmt: skip
    usage = " ".join(["persist", str(command.name), *arguments, *(["[OPTIONS]"] if options else [])])
    text = f"\n## persist {command.name}\n\n```\n{usage}\n```\n\n{_paragraphs(command.help)}\n"
    return text + (f"\n{_table(('option', 'meaning'), options)}\n" if options else "")


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    own = click.Context(command, info_name=command.name, parent=context)
    given = [option for option in command.get_params(own) if isinstance(option, click.Option)]
    records = [option.get_help_record(own) for option in given]
    return [(f"`{record[0]}`", " ".join(record[1].split())) for record in records if record]


def _paragraphs(text: str | None) -> str:
    """A help text as Markdown. Click marks with `\\b` a paragraph that it must not wrap."""
    found = re.split(r"\n\s*\n", re.sub(r"[\b\f]\n?", "", text or "").strip())
    return "\n\n".join(" ".join(_cell(paragraph).split()) for paragraph in found)


def _table(head: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text that no Markdown takes for a table's border or for HTML. Code in backticks needs only the first."""
    parts = re.split(r"(`[^`]*`)", text)
    safe = [part if part.startswith("`") else re.sub(r"([<>*])", r"\\\1", part) for part in parts]
    return "".join(safe).replace("|", r"\|")


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
