"""The processes of one home from outside of their keeper: start it, add programs, see how they are, stop them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from persist_airflow.embedded import EmbeddedAirflowError, keeper
from persist_airflow.embedded.keeper import Process, Program, psutil, read_processes, write_private
from persist_core.clock import Clock

_POLL_MS = 100
_KEEPER_STOP_TIMEOUT_S = 2 * (keeper.STOP_TIMEOUT_S + keeper.KILL_TIMEOUT_S)  # PostgreSQL after all others


@dataclass
class KeptProcesses:
    """The processes of `home`, also if another process started them."""

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
                [sys.executable, "-m", keeper.__name__, str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop all in order
            )

    def add(self, program: Program) -> None:
        """Let the keeper run one more program."""
        self._programs.append(program)
        write_private(self.home / keeper.PROGRAMS, [asdict(known) for known in self._programs])

    def all(self) -> list[Process]:
        """The processes that the keeper keeps, as it last wrote them."""
        return read_processes(self.home)[1:]

    def named(self, name: str) -> Process | None:
        """The process of this name, if the keeper knows it."""
        return next((process for process in self.all() if process.name == name), None)

    def is_running(self) -> bool:
        """True if the keeper lives. It may still be starting programs, for the first time or again."""
        return any(process.alive() is not None for process in read_processes(self.home)[:1])

    def check(self) -> None:
        """Raise `EmbeddedAirflowError` with the reason if the keeper has ended or has given up a program."""
        if self._child is not None and self._child.poll() is not None:
            raise EmbeddedAirflowError(f"the keeper of the processes has ended:\n{self.log_tail('keeper')}")
        for process in self.all():
            if process.state == keeper.GIVEN_UP:
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
        keeper.kill_all(alive for process in self.all() if process.name in names and (alive := process.alive()))
        os.utime(self.home / keeper.PROGRAMS)

    def log_tail(self, name: str) -> str:
        """The end of a process's log, for error messages."""
        return keeper.log_tail(self.home, name)

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
            keeper.kill_all([alive])
        keeper.stop(recorded[1:])  # of a keeper that was killed
        if self._child is not None:
            self._child.poll()  # already reaped: this only lets Python forget it
            self._child = None
        for name in (keeper.PROCESSES, keeper.PROGRAMS):
            (self.home / name).unlink(missing_ok=True)
        return names
