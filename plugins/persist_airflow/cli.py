"""Commands for Airflow 3: `airflow dags backfill` as in 2.x, and `airflow persist backfill`, the same.

3.x has only `airflow backfill create`, which queues and returns. The command here creates the same backfill and then
follows it until it ends. Airflow lets a provider add top-level commands, not extend one of its groups; a command of the
name `dags` would be refused as a duplicate. So the group is extended in Airflow's list of commands while it is being
built. If this list is not as expected, it is left as it is, and `airflow persist backfill` remains.
"""

from __future__ import annotations

import sys
from typing import Any

from airflow.cli import cli_config
from airflow.cli.cli_config import ActionCommand, GroupCommand, lazy_load_command

_config: Any = cli_config  # Airflow has no types for these
Arg, parsedate, positive_int = _config.Arg, _config.parsedate, _config.positive_int

_ARGS = (
    Arg(("dag_id",), help="The id of the DAG"),
    Arg(("-s", "--start-date"), type=parsedate, help="First logical date (inclusive); default: the end date"),
    Arg(("-e", "--end-date"), type=parsedate, help="Last logical date (inclusive); default: the start date"),
    Arg(("-c", "--conf"), help="JSON string that becomes the dag runs' conf"),
    Arg(("-n", "--dry-run"), action="store_true", help="List the dag runs that would be created, and stop"),
    Arg(("-B", "--run-backwards"), action="store_true", help="Start with the latest logical date"),
    Arg(("--reset-dagruns",), action="store_true", help="Run dag runs again that exist already and have ended"),
    Arg(("--rerun-failed-tasks",), action="store_true", help="Run dag runs again that exist already and have failed"),
    Arg(
        ("--max-active-runs",),
        type=positive_int(allow_zero=False),
        help="How many dag runs at the same time; default: the DAG's own max_active_runs",
    ),
    Arg(
        ("--timeout-s",),
        type=positive_int(allow_zero=False),
        default=7 * 24 * 3600,
        help="Stop following after so many seconds; the backfill itself goes on (default: %(default)s, a week)",
    ),
    Arg(("-y", "--yes"), action="store_true", help="Accepted for old scripts; this command asks no questions"),
)


def get_cli_commands() -> list[GroupCommand]:
    """Called once by Airflow while it builds its list of commands."""
    backfill = ActionCommand(
        name="backfill",
        help="Run a DAG for a range of dates and follow it until it ends",
        description=(
            "Creates a backfill (like `airflow backfill create`) and follows it with progress until it ends."
            " Exit code 0: every dag run succeeded or existed already; 1: some failed, or nothing can run them."
        ),
        func=lazy_load_command("persist_airflow.backfill.backfill"),
        args=_ARGS,
    )
    _extend_group("dags", backfill)
    return [GroupCommand(name="persist", help="Commands of airflow-persist", subcommands=[backfill])]


def _extend_group(name: str, command: ActionCommand) -> None:
    """Replace the group in the parser's own copy of the list by one with `command`; Airflow's constants stay."""
    commands = getattr(sys.modules.get("airflow.cli.cli_parser"), "airflow_commands", None)
    if not isinstance(commands, list):
        return
    for index, group in enumerate(commands):
        if isinstance(group, GroupCommand) and group.name == name:
            subcommands = tuple(group.subcommands)
            if all(existing.name != command.name for existing in subcommands):
                commands[index] = group._replace(subcommands=(*subcommands, command))
