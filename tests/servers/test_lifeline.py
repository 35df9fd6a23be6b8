"""The tests' own servers leave nothing behind, however a session ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.servers.lifeline import any_alive, wait_until
from tests.servers.postgres import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
SESSION = """
import sys
from tests.servers.postgres import start_postgres
server = start_postgres()
print(server.pid, server._folder.path, flush=True)
sys.stdin.read()
"""


def test_servers_of_a_killed_session_end_and_their_folder_goes(postgres: PostgresServer) -> None:
    assert postgres.version.startswith("PostgreSQL")  # so that a server exists
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None
    pid, folder = session.stdout.readline().split()
    assert (Path(folder) / "data" / "postmaster.pid").exists()
    session.send_signal(signal.SIGKILL)
    session.communicate(timeout=30)
    wait_until(lambda: not Path(folder).exists(), what="the removal of a killed session's folder")
    wait_until(lambda: not any_alive([int(pid)]), what="the end of a killed session's server")
