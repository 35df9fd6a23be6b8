"""Keeps the processes of an embedded Airflow running: a process of its own, which outlives its starter.

    starter --writes--> programs.json  what has to run: command, environment        } in the home, for its owner alone
    keeper  --writes--> processes.json what runs, what waits, what was given up    }
            --writes--> logs/keeper.log  one line for each start and each end, with the reason

    python -m persist_airflow.embedded.keeper HOME

A program that ends is started again after 1, 2, 4, 8 and 16 s. One that ends sooner than `STEADY_MS` after each of
these starts is given up, until `programs.json` changes. What a dead program leaves behind (tasks of a scheduler) is
killed before it starts again: as its "subreaper" the keeper inherits it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from persist_airflow.embedded import EmbeddedAirflowError
from persist_core.clock import Clock, SystemClock
from persist_core.time_text import format_time

psutil: Any = importlib.import_module("psutil")  # comes with Airflow, without types

PROGRAMS, PROCESSES, LOCK = "programs.json", "processes.json", "keeper.lock"
RUNS, WAITS, GIVEN_UP = "runs", "waits", "given up"
PAUSES_MS = (1_000, 2_000, 4_000, 8_000, 16_000)  # before a start; as many starts as pauses, then it is given up
STEADY_MS = 60_000  # a program that ran so long has started well: its next end is a first one
STOP_TIMEOUT_S = 4.0  # then by force: a scheduler waits for its tasks, an API server for open connections
KILL_TIMEOUT_S = 10.0
_KEEPER_STOP_TIMEOUT_S = 2 * (STOP_TIMEOUT_S + KILL_TIMEOUT_S)  # PostgreSQL after all others
_POLL_MS = 100
_REASON_CHARS = 200
_TAIL_BYTES = 4000  # of a log, which is never rotated: where the reason of an end is looked for
_PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl


@dataclass(frozen=True)
class Program:
    """A program that has to run. `options` go to `subprocess.Popen`; `environment` goes over the keeper's own."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    stop_signal: int = signal.SIGTERM


@dataclass
class Process:
    """A program as it runs now, or why it does not. `created`, by `since_boot`, tells its process from a later one with
    the same pid."""

    name: str
    pid: int = 0
    created: float = 0.0
    state: str = WAITS
    ends: int = 0  # in a row, each soon after its start
    reason: str = ""
    stop_signal: int = signal.SIGTERM

    def alive(self) -> Any:
        """Its `psutil.Process`, `None` if it has ended or its pid belongs to another one by now."""
        try:
            process = psutil.Process(self.pid)
            same = abs(since_boot(self.pid) - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError):
            return None
        return process if self.pid and same else None


def since_boot(pid: int) -> float:
    """Seconds from the machine's start to the process's. psutil's time of creation moves if the clock is set."""
    boot = psutil.boot_time()  # which psutil adds
    return float(psutil.Process(pid).create_time() - boot)


def read_processes(home: Path) -> list[Process]:
    """The processes that the keeper wrote last, itself first."""
    try:
        return [Process(**entry) for entry in json.loads((home / PROCESSES).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []


def write_private(path: Path, content: Any) -> None:
    """Replace a JSON file of the home, which its owner alone may read."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)


def log_tail(home: Path, name: str) -> str:
    """The end of a program's log; empty if the log is missing."""
    with contextlib.suppress(OSError), (home / "logs" / f"{name}.log").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return log.read(_TAIL_BYTES).decode(errors="replace")
    return ""


def stop(processes: Sequence[Process]) -> None:
    """End these processes and all that descends from them, the first one last."""
    living = [(entry, process) for entry in processes if (process := entry.alive()) is not None]
    first = [pair for pair in living if pair[0].name == processes[0].name]
    for group in ([pair for pair in living if pair not in first], first):
        _end_trees(group)


def _end_trees(living: Sequence[tuple[Process, Any]]) -> None:
    processes = [process for _, process in living]
    family = {*processes, *_descendants(processes)}
    for entry, process in living:
        with contextlib.suppress(psutil.Error):
            process.send_signal(entry.stop_signal)
    psutil.wait_procs(processes, timeout=STOP_TIMEOUT_S)
    kill_all(family | _descendants(processes))


def kill_all(processes: Iterable[Any]) -> None:
    """Kill the processes, and wait until they are gone."""
    family = list(processes)
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(family, timeout=KILL_TIMEOUT_S)


def _descendants(processes: Sequence[Any]) -> set[Any]:
    found: set[Any] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.update(process.children(recursive=True))
    return found


@dataclass
class KeptProcesses:
    """The processes of `home` from outside of their keeper, also if another process started them."""

    home: Path
    clock: Clock
    _programs: list[Program] = field(default_factory=list, init=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False)  # the keeper, if we started it

    def start(self, first: Program) -> None:
        """Start the keeper, which starts `first`; it stops `first` after all others. Nothing may run yet."""
        self._programs = []
        self.add(first)
        with (self.home / "logs" / "keeper.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop all in order
            )

    def add(self, program: Program) -> None:
        """Let the keeper run one more program."""
        self._programs.append(program)
        write_private(self.home / PROGRAMS, [asdict(known) for known in self._programs])

    def all(self) -> list[Process]:
        """The processes that the keeper keeps, as it last wrote them."""
        return read_processes(self.home)[1:]

    def named(self, name: str) -> Process | None:
        return next((process for process in self.all() if process.name == name), None)

    def is_running(self) -> bool:
        """True if the keeper lives. It may still be starting programs, for the first time or again."""
        return any(process.alive() is not None for process in read_processes(self.home)[:1])

    def check(self) -> None:
        """Raise `EmbeddedAirflowError` with the reason if the keeper has ended or has given up a program."""
        if self._child is not None and self._child.poll() is not None:
            raise EmbeddedAirflowError(f"the keeper of the processes has ended:\n{self.log_tail('keeper')}")
        for process in self.all():
            if process.state == GIVEN_UP:
                raise EmbeddedAirflowError(
                    f"{process.name} was started {process.ends} times and ended each time; at last:"
                    f" {process.reason}\n{self.log_tail(process.name)}"
                )

    def wait_until(self, holds: Callable[[], bool], name: str, timeout_ms: int) -> None:
        """Return once `holds()`. Raises what `check` does, or `EmbeddedAirflowError` after `timeout_ms`."""
        deadline_ms = self.clock.now_ms() + timeout_ms
        while not holds():
            self.check()
            if self.clock.now_ms() > deadline_ms:
                raise EmbeddedAirflowError(f"{name} does not answer after {timeout_ms} ms:\n{self.log_tail(name)}")
            self.clock.sleep_ms(_POLL_MS)

    def restart(self, names: Collection[str]) -> None:
        """Kill the running processes of these names, which start again, and what was given up too."""
        kill_all(alive for process in self.all() if process.name in names and (alive := process.alive()))
        os.utime(self.home / PROGRAMS)

    def log_tail(self, name: str) -> str:
        """The end of a process's log, for error messages."""
        return log_tail(self.home, name)

    def stop(self) -> list[str]:
        """End the keeper, what it keeps and everything that descends from it; names of the programs ended.

        A pid that meanwhile belongs to another process (its start time differs) is left alone.
        """
        recorded = read_processes(self.home)
        names = [process.name for process in recorded[1:] if process.alive() is not None]
        if recorded and (alive := recorded[0].alive()) is not None:
            with contextlib.suppress(psutil.Error):
                alive.send_signal(signal.SIGTERM)
            psutil.wait_procs([alive], timeout=_KEEPER_STOP_TIMEOUT_S)
            kill_all([alive])
        stop(recorded[1:])  # of a keeper that was killed
        if self._child is not None:
            self._child.poll()  # already reaped: this only lets Python forget it
            self._child = None
        for name in (PROCESSES, PROGRAMS):
            (self.home / name).unlink(missing_ok=True)
        return names


class _Kept:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.process = Process(program.name, stop_signal=program.stop_signal)
        self.due_ms = self.started_ms = 0
        self.child: subprocess.Popen[bytes] | None = None


class Keeper:
    """The keeping process. `look` once does what is due."""

    def __init__(self, home: Path, clock: Clock) -> None:
        self._home, self._clock = home, clock
        self._me = psutil.Process()
        self._created = since_boot(self._me.pid)
        self._others = {child.pid for child in self._me.children()}  # of who started the keeper in its own process
        self._kept: dict[str, _Kept] = {}
        self._read = (0, 0)  # inode and modification time of the programs that are known
        self._written: list[Any] = []
        self.stopping = False

    def run(self) -> None:
        """Look again and again until `stopping`; then stop everything."""
        while not self.stopping:
            self.look()
            self._clock.sleep_ms(_POLL_MS)
        self._log("stops everything")
        stop([kept.process for kept in self._kept.values()])

    def look(self) -> None:
        """Read new programs, notice ends, start what is due, write it down."""
        self._read_programs()
        for kept in self._kept.values():
            if kept.child is not None and kept.child.poll() is not None:
                self._ended(kept, kept.child)
        now_ms = self._clock.now_ms()
        for kept in self._kept.values():
            if kept.process.state == WAITS and now_ms >= kept.due_ms:
                self._start(kept)
        me = Process("keeper", self._me.pid, self._created, RUNS)
        entries = [asdict(process) for process in (me, *(kept.process for kept in self._kept.values()))]
        if entries != self._written:
            write_private(self._home / PROCESSES, entries)
            self._written = entries

    def _read_programs(self) -> None:
        path = self._home / PROGRAMS
        if not path.exists():  # everything is being stopped
            return
        found = path.stat()
        version = (found.st_ino, found.st_mtime_ns)
        if version == self._read:
            return
        self._read = version
        for entry in json.loads(path.read_text(encoding="utf-8")):
            program = Program(**entry)
            kept = self._kept.setdefault(program.name, _Kept(program))
            kept.program = program
            if kept.process.state == GIVEN_UP:
                kept.process.state, kept.process.ends = WAITS, 0

    def _start(self, kept: _Kept) -> None:
        program = kept.program
        with (self._home / "logs" / f"{program.name}.log").open("ab") as log:
            try:
                kept.child = subprocess.Popen(
                    program.command,
                    env={**os.environ, **program.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    **program.options,
                )
            except OSError as error:
                self._wait(kept, f"can't start: {error}")
                return
        kept.started_ms = self._clock.now_ms()
        kept.process.pid, kept.process.state = kept.child.pid, RUNS
        kept.process.created = since_boot(kept.child.pid)
        self._log(f"{program.name} starts as pid {kept.child.pid}")

    def _ended(self, kept: _Kept, child: subprocess.Popen[bytes]) -> None:
        lived_ms = self._clock.now_ms() - kept.started_ms
        kept.child = None
        if lived_ms >= STEADY_MS:
            kept.process.ends = 0
        code = child.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = "" if code < 0 else self._last_line(kept.program.name)
        self._kill_orphans()
        self._wait(kept, f"pid {child.pid} {how} after {lived_ms / 1000:.0f} s{last}")

    def _wait(self, kept: _Kept, reason: str) -> None:
        ends = kept.process.ends
        kept.process.ends, kept.process.reason, kept.process.pid = ends + 1, reason, 0
        if ends < len(PAUSES_MS):
            kept.due_ms, kept.process.state = self._clock.now_ms() + PAUSES_MS[ends], WAITS
            self._log(f"{kept.program.name}: {reason}; it starts again in {PAUSES_MS[ends] // 1000} s")
        else:
            kept.process.state = GIVEN_UP
            self._log(f"{kept.program.name}: {reason}; given up after {ends + 1} starts")

    def _kill_orphans(self) -> None:
        known = self._others | {kept.child.pid for kept in self._kept.values() if kept.child is not None}
        orphans = [child for child in self._me.children() if child.pid not in known]
        kill_all({*orphans, *_descendants(orphans)})

    def _last_line(self, name: str) -> str:
        lines = [line.strip()[:_REASON_CHARS] for line in log_tail(self._home, name).split("\n") if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return f": {(errors or lines)[-1]}" if lines else ""

    def _log(self, text: str) -> None:
        with (self._home / "logs" / "keeper.log").open("a", encoding="utf-8") as log:
            log.write(f"{format_time(self._clock.now_ms())} {text}\n")


def main(home: Path) -> int:
    """Keep the programs of `home` running until SIGTERM. Two keepers of one home exclude each other."""
    with (home / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write(f"another keeper has {lock.name}\n")
            return 1
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        keeper = Keeper(home, SystemClock())

        def ask_to_stop(*_: object) -> None:
            keeper.stopping = True

        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, ask_to_stop)
        keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
