"""A real Debezium for tests: its embedded engine in a process of its own, which lands a database's changes as a feed.

    database --Debezium--> LandFeed.java --> FEED/VARIANT/TABLE/dt=DAY/part-N.jsonl

The jars are in requirements/spark-jars/debezium.txt, and the machine's Java compiles LandFeed.java.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from tests import real_parts
from tests.env.spark_jars import JARS, ROOTS
from tests.servers.lifeline import ServerFolder, wait_until

PREFIX = "persist"  # of Debezium's names for topics
MARKS = "marks"  # the table in which a row begins a day
_CONSUMER = Path(__file__).with_name("LandFeed.java")
# A small JVM that starts fast, and (-Xrs) ends at the signal by which a killed session ends its servers.
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xrs")
_TIMEOUT_MS = 120_000  # of seconds of work, on a machine that does other things too
# How the lines of each variant are written: settings of Kafka's JSON converter.
VARIANTS = {
    "plain": {"schemas.enable": "false", "replace.null.with.default": "false"},
    "schema": {"schemas.enable": "true", "replace.null.with.default": "false"},
    "bare": {"schemas.enable": "false", "decimal.format": "NUMERIC", "replace.null.with.default": "false"},
}


class Debezium:
    """One engine. `start` it, and `remove` it at the end; in between it may be killed and started again.

    `settings` are the connector's. Everything that is landed lies below `feed`.
    """

    def __init__(self, classes: Path, settings: Mapping[str, str], feed: Path, day: str) -> None:
        feed.mkdir(parents=True, exist_ok=True)
        self._classes = classes
        self._folder = ServerFolder("debezium")
        self._feed = feed
        self.day = day
        self._process: subprocess.Popen[bytes] | None = None
        path = self._folder.path
        self._settings = {
            "name": PREFIX,
            "topic.prefix": PREFIX,
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{path}/offsets",
            "offset.flush.interval.ms": "500",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": f"{path}/history",
            "poll.interval.ms": "50",
            "skipped.operations": "none",
            "land.feed": str(feed),
            "land.variants": ",".join(VARIANTS),
            **{f"land.{variant}.{name}": text for variant, of in VARIANTS.items() for name, text in of.items()},
            **settings,
        }

    def start(self) -> None:
        """Start it; it goes on where its offsets say."""
        path = self._folder.path
        lines = {**self._settings, "land.day": self.day}.items()
        escaped = "".join(f"{name}={text}\n" for name, text in lines).replace("\\", r"\\")
        (path / "settings").write_text(escaped)
        with (path / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_java("java"), *_OPTIONS, "-cp", f"{self._classes}:{JARS}/debezium/*", _CONSUMER.stem, "settings"],
                cwd=path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (path / "engine.pid").write_text(str(self._process.pid))

    def move_to(self, port: int) -> None:
        """Read from another server from the next start on."""
        self._settings["database.port"] = str(port)

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_for(self, day: str) -> None:
        """Return once everything before the mark of `day` is landed; the files of earlier days stay as they are."""
        wait_until(lambda: self._has_begun(day), what=f"the landing of all before {day}", timeout_ms=_TIMEOUT_MS)
        self.day = day

    def wait_for_end(self) -> str:
        """Return its log once it has ended by itself."""
        process = self._process
        assert process is not None
        wait_until(lambda: process.poll() is not None, what="the end of the engine", timeout_ms=_TIMEOUT_MS)
        return self.log()

    def log(self) -> str:
        """Its log."""
        return (self._folder.path / "log").read_text(errors="replace")

    def remove(self) -> None:
        """End it and remove its folder."""
        self.kill()
        self._folder.remove()

    def _has_begun(self, day: str) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Debezium's engine ended: {self.log()[-4000:]}")
        return (self._feed / f"_begun-{day}").exists()


def compiled(into: Path) -> Path:
    """The consumer's classes; skips if there are no jars, or no compiler."""
    if not (JARS / "debezium").is_dir():
        _skip("no jars: `python -m tests.env.spark_jars debezium` brings them")
    compiler = _java("javac")
    if shutil.which(compiler) is None:
        _skip("no Java compiler (a JDK, 17 or newer)")
    subprocess.run(
        [compiler, "-cp", f"{JARS}/debezium/*", "-d", str(into), str(_CONSUMER)], check=True, capture_output=True
    )
    real_parts.used("Debezium", ROOTS["debezium"][0].rpartition(":")[2])
    return into


def postgres_settings(port: int, user: str, password: str, database: str) -> dict[str, str]:
    """The connector's settings for a PostgreSQL on this machine."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": user,
        "database.password": password,
        "database.dbname": database,
        "slot.name": database,
        "publication.name": database,
        "publication.autocreate.mode": "all_tables",
    }


def _java(program: str) -> str:
    """A program of the Java that Spark uses, or on PATH."""
    found = (real_parts.java() or "").rpartition(" at ")[2]
    beside = Path(found).resolve().with_name(program)
    return str(beside) if found and beside.exists() else program


def _skip(why: str) -> NoReturn:
    real_parts.missing("Debezium", why)
    pytest.skip(f"Debezium: {why}")
