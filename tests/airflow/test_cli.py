"""The commands that Airflow 3 gets: `airflow persist backfill`, and the same as `airflow dags backfill`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROBE = """
import contextlib, io, json, sys
from airflow.cli import cli_config, cli_parser

def run(*arguments):
    out, code = io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            args = cli_parser.get_parser().parse_args(arguments)
            args.func(args)
        except SystemExit as end:
            code = end.code
    return {"out": out.getvalue(), "code": code}

print(json.dumps({
    "dags": run("dags", "backfill", "--help"),
    "persist": run("persist", "backfill", "--help"),
    "group": [command.name for command in cli_parser.ALL_COMMANDS_DICT["dags"].subcommands],
    "core": [command.name for command in cli_config.DAGS_COMMANDS],
    "groups": sorted(cli_parser.ALL_COMMANDS_DICT),
    "no_dates": run("dags", "backfill", "some_dag"),
    "both": run("dags", "backfill", "x", "-s", "2026-01-01", "--reset-dagruns", "--rerun-failed-tasks"),
    "bad_date": run("dags", "backfill", "x", "-s", "yesterday"),
}))
"""


@pytest.fixture(scope="module")
def shown() -> Any:
    """What the real parser makes of a few command lines, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], stdout=subprocess.PIPE, text=True, check=True, timeout=400
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("group", ["dags", "persist"])
def test_both_groups_have_the_command_with_the_old_flags(shown: Any, group: str) -> None:
    assert shown[group]["code"] == 0
    for flag in ("--start-date", "--end-date", "--reset-dagruns", "--rerun-failed-tasks", "--max-active-runs",
                 "--run-backwards", "--dry-run", "--conf"):  # fmt: skip
        assert flag in shown[group]["out"]


def test_nothing_of_airflows_own_commands_is_lost_or_changed(shown: Any) -> None:
    assert shown["group"] == [*shown["core"], "backfill"]
    assert {"backfill", "dags", "persist", "scheduler"} <= set(shown["groups"])


def test_wrong_arguments_end_with_an_explanation(shown: Any) -> None:
    assert "--start-date" in shown["no_dates"]["code"]
    assert "exclude each other" in shown["both"]["code"]
    assert shown["bad_date"]["code"] == 2
