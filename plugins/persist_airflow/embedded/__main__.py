"""`make up`, `make down`, `make airflow`, `make demo`: the embedded Airflow of the current folder, with its `dags/`.

python -m persist_airflow.embedded up|down|demo
python -m persist_airflow.embedded airflow ARGUMENTS...
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from persist_airflow.embedded.commands import embedded_command
from persist_airflow.embedded.home import (
    UI_PORT,
    WITH_UI,
    EmbeddedAirflowError,
    LocalAirflow,
    free_port,
    project_airflow,
)

USAGE = "usage: python -m persist_airflow.embedded up|down|demo, or airflow ARGUMENTS...\n"


def up(root: Path) -> int:
    """Start Airflow with its UI in the background, unless it runs; print where it is and how to log in."""
    console = Console()
    airflow = project_airflow(root)
    if not airflow.is_running():
        airflow = project_airflow(root, port=free_port(UI_PORT))
        with console.status("starting Airflow: about half a minute"):
            airflow.prepare()
            airflow.start(WITH_UI)
    stop = embedded_command(root, "down")
    console.print(f"Airflow: {airflow.url}   {_login(airflow)}   `{stop}` stops it", soft_wrap=True)
    return 0


def _login(airflow: LocalAirflow) -> str:
    user, password = next(iter(airflow.passwords().items()), ("admin", ""))
    return f"user {user}, password {password}" if password else f"user {user}, password in {airflow.home}"


def down(root: Path) -> int:
    """Stop what `up` (or a demo that was killed) left running."""
    stopped = project_airflow(root).stop()
    Console().print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return 0


def demo(root: Path) -> int:
    """The demo. A folder without DAGs (`persist demo` makes one) gets those that are in the package."""
    from persist_airflow.embedded.demo import run_demo
    from persist_core.cli.project import bundled_dags

    if not (root / "dags").exists():
        shutil.copytree(bundled_dags(), root / "dags")
    return run_demo(root)


def airflow_command(root: Path, arguments: Sequence[str]) -> int:
    """Become `airflow ARGUMENTS`, with the embedded home, its DAGs and its location. Returns only before that."""
    airflow = project_airflow(root)
    airflow.migrate()
    command = [sys.executable, "-m", "airflow", *arguments]
    os.execve(command[0], command, {**os.environ, **airflow.environment()})


def main(arguments: Sequence[str]) -> int:
    """One command; the exit code."""
    commands: dict[str, Callable[[Path], int]] = {"up": up, "down": down, "demo": demo}
    name, *rest = arguments or [""]
    try:
        if name == "airflow":
            return airflow_command(Path.cwd(), rest)
        if name not in commands or rest:
            sys.stderr.write(USAGE)
            return 2
        return commands[name](Path.cwd())
    except EmbeddedAirflowError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; everything that was started is stopped\n")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
