"""`make up`, `make down`, `make airflow`, `make demo`: the embedded Airflow of the current folder, with its `dags/`.

python -m persist_airflow.embedded.run up|down|demo
python -m persist_airflow.embedded.run airflow ARGUMENTS...

Not `__main__.py`: Airflow imports each file of a plugins folder under its own name, and that name would run it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from persist_airflow.embedded import EmbeddedAirflowError
from persist_airflow.embedded.home import WITH_UI, LocalAirflow, project_airflow
from persist_airflow.embedded.ports import embedded_command, require_free

USAGE = "usage: python -m persist_airflow.embedded.run up|down|demo, or airflow ARGUMENTS...\n"
PORT_ENV, UI_PORT = "AIRFLOW__API__PORT", 8080  # Airflow's name for it, and its default
SLOW_MS = 30_000  # a process that shows no sign of life for so long is killed, and starts again


def up(root: Path) -> int:
    """Start Airflow with its UI in the background, or repair the one that runs; print where it is and how to log in."""
    console = Console()
    airflow = project_airflow(root)
    if airflow.kept.is_running():
        _repair(console, airflow)
    else:
        if left := airflow.stop():
            console.print(f"the keeper had ended; stopped what it had left: {', '.join(left)}")
        port = _port(os.environ.get(PORT_ENV) or str(UI_PORT))
        require_free(port, f"stop it, or choose another port: {PORT_ENV}={port + 1} {embedded_command(root, 'up')}")
        airflow = project_airflow(root, port=port)
        with console.status("starting Airflow: about half a minute"):
            airflow.start(WITH_UI, reads_dags=True)
    with console.status("waiting until every process does its work"):
        left_over = airflow.wait_until_healthy()
    if left_over:
        again = f"`{embedded_command(root, 'up')}` tries again, `{embedded_command(root, 'down')}` stops all"
        console.print(f"Airflow runs in part; {again}. Logs: {airflow.logs}", soft_wrap=True)
        for name, why in left_over.items():
            console.print(f"  {name}: {why}", soft_wrap=True, markup=False)
        return 1
    stop = embedded_command(root, "down")
    console.print(f"Airflow: {airflow.url}   {_login(airflow)}   `{stop}` stops it", soft_wrap=True)
    _print_paused(console, airflow)
    return 0


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 0 < port < 1 << 16:
        raise EmbeddedAirflowError(f"{PORT_ENV}={text}: expected a port, a number from 1 to 65535")
    return port


def _repair(console: Console, airflow: LocalAirflow) -> None:
    """Start again what shows no sign of life, and what the keeper gave up."""
    with console.status("checking each process"):
        troubles = airflow.wait_until_healthy(SLOW_MS)
    for name, why in troubles.items():
        console.print(f"starting {name} again: {why}", soft_wrap=True, markup=False)
    if troubles:
        airflow.kept.restart(troubles)


def _print_paused(console: Console, airflow: LocalAirflow) -> None:
    """Name our DAGs that are paused, and say how to go on: a new one waits until its definition is correct."""
    paused = airflow.query("select dag_id from dag where is_paused and not is_stale order by dag_id")
    ours = [dag_id for (dag_id,) in paused if dag_id.startswith("persist_")]
    if ours:
        unpause = embedded_command(airflow.dags.parent, "airflow", f"dags unpause {ours[0]}")
        console.print(
            f"paused: {', '.join(ours)}. New collections and views start so. Try one by `persist run NAME`; when its"
            f" rows are correct, let Airflow load it: the switch beside the DAG, or `{unpause}`",
            soft_wrap=True,
            markup=False,
        )


def _login(airflow: LocalAirflow) -> str:
    user, password = next(iter(airflow.passwords().items()), ("admin", ""))
    return f"user {user}, password {password}" if password else f"user {user}, password in {airflow.home}"


def down(root: Path) -> int:
    """Stop what `up` (or a demo that was killed) left running."""
    stopped = project_airflow(root, is_used=False).stop()
    Console().print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
    return 0


def demo(root: Path) -> int:
    """The demo. A folder without DAGs (`persist demo` makes one) gets the package's."""
    from persist_airflow.embedded.demo import COLLECTION, run_demo
    from persist_core.cli.project import bundled_dags

    if not (root / "dags").exists():
        shutil.copytree(bundled_dags(), root / "dags")
    elif not (file := root / "dags" / "collections" / f"{COLLECTION}.yaml").is_file():
        raise EmbeddedAirflowError(f"{file}: no such file, and the demo runs it; give the demo a folder of its own")
    return run_demo(root)


def airflow_command(root: Path, arguments: Sequence[str]) -> int:
    airflow = project_airflow(root)
    with airflow.database():
        airflow.migrate()
        command = [sys.executable, "-m", "airflow", *arguments]
        return subprocess.run(command, env={**os.environ, **airflow.environment()}, check=False).returncode


def main(arguments: Sequence[str]) -> int:
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
