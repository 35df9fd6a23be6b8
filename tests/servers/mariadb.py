"""A real MariaDB for tests: Debian's package, if it is installed. It has a binlog, and replicas that can take over."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from persist_airflow.embedded.ports import free_port
from persist_airflow.embedded.postgres import as_ordinary_user, own
from tests import real_parts
from tests.servers.lifeline import ServerFolder, end, wait_until

USER, PASSWORD = "persist", "s3cr/t"
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_LAST_BINLOG = 999_998  # the next but one has a name of seven digits


class MariaDbServer:
    """One server. `remove` it at the end."""

    def __init__(self, server_id: int) -> None:
        self._folder = ServerFolder("mariadb")
        self._data = self._folder.path / "data"
        self._socket = self._folder.path / "socket"
        self.port = free_port()
        self._data.mkdir()
        own(self._data)
        self._call(
            "mariadb-install-db",
            f"--datadir={self._data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        options = {
            "datadir": self._data, "socket": self._socket, "port": self.port, "bind-address": "127.0.0.1",
            "pid-file": self._folder.path / "mariadb.pid", "server-id": server_id, "log-bin": "mysql-bin",
            "binlog-format": "ROW", "log-slave-updates": "ON", "default-time-zone": "+00:00",
            "character-set-server": "utf8mb4", "skip-name-resolve": "ON", "innodb-flush-log-at-trx-commit": 0,
        }  # fmt: skip
        with (self._folder.path / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program("mariadbd"), "--no-defaults", *(f"--{name}={value}" for name, value in options.items())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_ENVIRONMENT,
                start_new_session=True,
                **as_ordinary_user(),
            )
        wait_until(self._answers, what=f"a start of MariaDB (its log: {self._folder.path}/log)")
        self.query(f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO {USER}@'%'")
        self.query(f"RESET MASTER TO {_LAST_BINLOG}")

    def query(self, statements: str, *, database: str = "") -> list[list[str]]:
        """Run statements in one session; what they print, by line and cell. A null is the text NULL."""
        command = [_program("mariadb"), "--no-defaults", f"--socket={self._socket}", "--user=root", "--batch", "--raw"]
        command += ["--skip-column-names", "--default-character-set=utf8mb4", *([database] if database else [])]
        done = subprocess.run(
            command, input=statements.encode(), capture_output=True, env=_ENVIRONMENT, timeout=120, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{statements[:500]}: {done.stderr.decode(errors='replace')}")
        return [line.split("\t") for line in done.stdout.decode().split("\n")[:-1]]

    def replica(self, server_id: int) -> MariaDbServer:
        """A server that follows this one by GTID from now on; this one must be empty."""
        position = self.query("SELECT @@gtid_binlog_pos")[0][0]
        server = MariaDbServer(server_id)
        server.query(
            f"SET GLOBAL gtid_slave_pos = '{position}'; CHANGE MASTER TO master_host = '127.0.0.1',"
            f" master_port = {self.port}, master_user = '{USER}', master_password = '{PASSWORD}',"
            " master_use_gtid = slave_pos; START SLAVE"
        )
        return server

    def take_over(self, primary: MariaDbServer) -> None:
        """End the primary once this replica has all of it, and take its place."""
        position = primary.query("SELECT @@gtid_binlog_pos")[0][0]
        assert self.query(f"SELECT MASTER_GTID_WAIT('{position}', 60)") == [["0"]]
        primary.remove()
        self.query("STOP SLAVE; RESET SLAVE ALL")

    def is_read(self) -> bool:
        """True while a session reads its binlog."""
        return any("Binlog Dump" in row for row in self.query("SHOW PROCESSLIST"))

    def remove(self) -> None:
        """Stop it and remove its folder."""
        end(self._process, signal.SIGTERM)
        self._folder.remove()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"MariaDB ended at once: {(self._folder.path / 'log').read_text()[-2000:]}")
        try:
            self.query("SELECT 1")
        except RuntimeError:
            return False
        return True

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), "--no-defaults", *arguments],
            capture_output=True, text=True, env=_ENVIRONMENT, timeout=120, check=False, **as_ordinary_user(),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


def start_mariadb(server_id: int) -> MariaDbServer:
    """A new server; skips if MariaDB is not installed."""
    if not Path(_program("mariadbd")).exists():
        why = "not installed (Debian's package is mariadb-server)"
        real_parts.missing("MariaDB", why)
        pytest.skip(f"MariaDB: {why}")
    server = MariaDbServer(server_id)
    real_parts.used("MariaDB", server.query("SELECT version()")[0][0])
    return server


def _program(name: str) -> str:
    return shutil.which(name, path=_ENVIRONMENT["PATH"]) or name
