"""Real S3-speaking servers for tests: versitygw, a gateway over a folder, and MinIO if `make minio` has built it.

    make s3-servers -> .cache/servers/versitygw --S3Server.start--> 127.0.0.1:<free port>, ended with the session

A server that could not be built is named in the session's summary, and its tests are skipped.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from persist_core.clock import SystemClock
from tests import real_parts
from tests.processes import io_bytes

if TYPE_CHECKING:
    from tests.servers.certificates import Certificate  # cryptography is not in every environment

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "servers"
ACCESS_KEY, SECRET_KEY = "persist-tests", "persist-tests-secret"
START_MS = 20_000  # longest that a server may take to answer
_START_TRIES = 3  # another process may take the port between our finding it free and the server's taking it
STOP_S = 10.0

# Of the machine's own AWS settings none may reach a test, and no test the machine's own account.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}

CommandLine = Callable[[Path, int, Path, "Certificate | None"], Sequence[str]]


def _versitygw(binary: Path, port: int, folder: Path, certificate: Certificate | None) -> Sequence[str]:
    tls = ["--cert", str(certificate.path), "--key", str(certificate.key)] if certificate else []
    # The address is given in full: without it the gateway binds every interface, or none that answers.
    return [str(binary), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", *tls, *_posix(folder)]


def _posix(folder: Path) -> Sequence[str]:
    """Buckets have versions if a test asks for them."""
    versions = folder.with_name(f"{folder.name}-versions")
    versions.mkdir(exist_ok=True)
    return ["posix", "--versioning-dir", str(versions), str(folder)]


def _minio(binary: Path, port: int, folder: Path, certificate: Certificate | None) -> Sequence[str]:
    assert certificate is None, "MinIO wants its certificate in a folder, and no test asks for that"
    return [str(binary), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder)]


COMMAND_LINES: dict[str, CommandLine] = {"versitygw": _versitygw, "minio": _minio}


class S3Server:
    """One server with a folder of its own. Its port stays the same over restarts. With a certificate it speaks TLS.

    `region`: the only one whose signatures it accepts (versitygw). `users`: a folder for what `add_user` stores.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        certificate: Certificate | None = None,
        *,
        region: str = "us-east-1",
        users: Path | None = None,
    ) -> None:
        self.region = region
        self._users = users
        self.name = name
        self.folder = folder
        self._certificate = certificate
        self._buckets = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._raw: Any = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def endpoint(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, on the port of the last time. Returns once requests are answered."""
        for _ in range(_START_TRIES):
            port = self._port or _free_port()
            if self._try_port(port):
                self._port = port
                return
        raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        if self._raw is not None:
            self._raw.close()
            self._raw = None
        self._end(signal.SIGTERM)

    @property
    def raw(self) -> Any:
        """A boto3 client of the tests' own, beside the code under test."""
        if self._raw is None:
            self._raw = self.client()
        return self._raw

    def client(self) -> Any:
        """Another one, which the test has to close."""
        import boto3
        from botocore.config import Config

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            verify=str(self._certificate.authority) if self._certificate else None,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
        )

    @property
    def pid(self) -> int:
        """The process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def sent_bytes(self) -> int:
        """The bytes that it has written so far: answers, and objects into files."""
        return io_bytes(self.pid)["wchar"]

    def make_bucket(self) -> str:
        """A new, empty bucket; its name."""
        name = f"{self.region}-bucket-{next(self._buckets)}"
        self.raw.create_bucket(Bucket=name)
        return name

    def uri(self, path: str) -> str:
        """The location's URI for `bucket` or `bucket/prefix`."""
        return f"s3://{path}?endpoint={self.endpoint}"

    def new_uri(self, prefix: str = "") -> str:
        """`uri` in a bucket of its own."""
        return self.uri(f"{self.make_bucket()}/{prefix}".rstrip("/"))

    def add_user(self, name: str, secret: str) -> None:
        """Someone who may do nothing but what the policies of buckets allow (versitygw)."""
        keys = {"ADMIN_ACCESS_KEY_ID": ACCESS_KEY, "ADMIN_SECRET_ACCESS_KEY": SECRET_KEY}
        where = ["--region", self.region, "--endpoint-url", self.endpoint]
        command = [str(FOLDER / self.name), "admin", *where, "create-user", "--access", name, "--secret", secret]
        subprocess.run([*command, "--role", "user"], check=True, capture_output=True, env=os.environ | keys)

    def _try_port(self, port: int) -> bool:
        command = [
            *_die_with_parent(),
            *COMMAND_LINES[self.name](FOLDER / self.name, port, self.folder, self._certificate),
        ]
        users = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        users |= {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "VGW_REGION": self.region}
        if self._users is not None:
            self._users.mkdir(exist_ok=True)
            users["VGW_IAM_DIR"] = str(self._users)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | users, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        clock = SystemClock()
        deadline_ms = clock.now_ms() + START_MS
        while self._process.poll() is None and clock.now_ms() < deadline_ms:
            if _answers(port):
                return True
            clock.sleep_ms(20)
        self.kill()
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def running(name: str, folder: Path, certificate: Certificate | None = None, **options: Any) -> Iterator[S3Server]:
    """A server for a fixture; skips if it was not built."""
    binary = FOLDER / name
    if not binary.is_file():
        real_parts.missing(f"S3 server {name}", _why_missing(name))
        pytest.skip(f"no S3 server {name}: {_why_missing(name)}")
    server = S3Server(name, folder / name, certificate, **options)
    try:
        server.start()
        real_parts.used(f"S3 server {name}", version_of(name))
        yield server
    finally:
        server.stop()


def own_environment() -> None:
    """Give this process and its children the credentials of the tests' servers, and no other AWS settings."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[variable]
    os.environ.update(ENVIRONMENT)


def version_of(name: str) -> str:
    """The program that `make` has built."""
    note = FOLDER / f"{name}.version"
    return note.read_text().strip() if note.is_file() else "of unknown version"


def _why_missing(name: str) -> str:
    note = FOLDER / f"{name}.failed"
    target = "s3-servers" if name == "versitygw" else name
    return note.read_text().strip() if note.is_file() else f"not built; `make {target}` does it"


def _die_with_parent() -> Sequence[str]:
    """The servers of a killed test session end too, if the machine supports it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
