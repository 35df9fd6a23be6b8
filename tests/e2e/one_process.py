"""Several of Airflow's commands in one process: most of them take less time than importing Airflow."""

from __future__ import annotations

import json
from collections.abc import Sequence

from persist_airflow.embedded.home import LocalAirflow

_SCRIPT = """
import json, sys
from airflow.__main__ import main
for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    main()
"""


def run_commands(airflow: LocalAirflow, *commands: Sequence[str], first: str = "") -> None:
    """Run `airflow ARGUMENTS` for each of them, in order, after the Python code `first`. Raises as `command` does."""
    airflow.migrate()
    airflow.python(f"airflow {commands}", "-c", first + _SCRIPT, json.dumps(commands))
