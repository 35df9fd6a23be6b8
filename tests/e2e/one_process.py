"""Several of Airflow's commands in one process: most of them take less time than importing Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from persist_airflow.embedded.home import COMMAND_TIMEOUT_S, LocalAirflow

_SCRIPT = """
import json, sys
from airflow.__main__ import main
for arguments in json.loads(sys.argv.pop()):
    sys.argv[1:] = arguments
    main()
"""


def run_commands(airflow: LocalAirflow, *commands: Sequence[str], first: str = "") -> None:
    """Run `airflow ARGUMENTS` for each of them, in this order, after the Python code `first`."""
    airflow.migrate()
    done = subprocess.run(
        [sys.executable, "-c", first + _SCRIPT, json.dumps(commands)],
        env={**os.environ, **airflow.environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
