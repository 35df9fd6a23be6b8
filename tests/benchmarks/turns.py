"""Engines in turns: each in a process (and JVM) of its own, one call at a time, so that other load hits all alike.

    Player("Iceberg merge-on-read", setting)
        .call("commit", 3, path) -> Turn(seconds, bytes newly written)

One JVM for all engines would be less work, but they would share its compiled code, its heap and its analyzer rules.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.benchmarks.engines import Engine, Setting
from tests.processes import Usage, usage

OURS, NEVER, ICEBERG = "airflow-persist", "airflow-persist, never maintained", "Iceberg merge-on-read"
REWRITE, DUCK = "rewrite by anti-join", "DuckDB, equal work"
SEQUENCE = "airflow-persist, sequence order"
COMPACTION, NO_HISTORY = "compaction of a whole shard", "airflow-persist, history: 0"
_ENGINES = {
    OURS: "engines.Ours",
    NEVER: "engines.NeverMaintained",
    ICEBERG: "iceberg.Iceberg",
    REWRITE: "engines.Rewrite",
    DUCK: "engines.Duck",
    COMPACTION: "engines.Compaction",
    NO_HISTORY: "engines.WithoutHistory",
    SEQUENCE: "engines.InSequence",
}
SHORT_NAMES = {
    "ours": OURS,
    "never": NEVER,
    "no-history": NO_HISTORY,
    "sequence": SEQUENCE,
    "iceberg": ICEBERG,
    "rewrite": REWRITE,
    "duckdb": DUCK,
}
CALL_SECONDS = 3600  # of one call: more than that is a hang
_STOP_SECONDS = 30


@dataclass(frozen=True)
class Turn:
    """One call: how long it took, and the bytes of the files that it left below `Engine.stored`."""

    seconds: float
    written_bytes: int


class Player:
    """One engine's process. `close` ends it."""

    def __init__(self, name: str, setting: Setting) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_play, args=(name, setting, other), daemon=False)
        self._process.start()
        other.close()
        self._receive()

    def call(self, method: str, *arguments: Any) -> Turn:
        """Call one method of the engine. Raises `AssertionError` with the traceback of what it raised."""
        self._pipe.send((method, arguments))
        turn: Turn = self._receive()
        return turn

    def can(self, method: str) -> bool:
        """True if the engine has this method."""
        self._pipe.send(("can", (method,)))
        return bool(self._receive())

    def stored_bytes(self) -> int:
        """All files below `Engine.stored`."""
        self._pipe.send(("stored_bytes", ()))
        return int(self._receive())

    def usage(self) -> Usage:
        """Usage of the engine's process and its JVM so far."""
        self._pipe.send(("usage", ()))
        used: Usage = self._receive()
        return used

    def close(self) -> None:
        """End the process; its JVM ends with it."""
        self._pipe.close()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()

    def _receive(self) -> Any:
        if not self._pipe.poll(CALL_SECONDS):
            raise AssertionError(f"{self.name}: no answer in {CALL_SECONDS} s")
        try:
            is_done, answer = self._pipe.recv()
        except EOFError:
            raise AssertionError(f"{self.name}: its process ended") from None
        if not is_done:
            raise AssertionError(f"{self.name} failed:\n{answer}")
        return answer


def _play(name: str, setting: Setting, pipe: Connection) -> None:
    """The engine's process: answer calls until the other end closes."""
    try:
        module, _, kind = _ENGINES[name].partition(".")
        engine: Engine = getattr(importlib.import_module(f"tests.benchmarks.{module}"), kind)(setting)
    except BaseException:  # noqa: BLE001 - it is raised again in the process that asked
        pipe.send((False, traceback.format_exc()))
        return
    pipe.send((True, None))
    seen: dict[str, int] = {}
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, _answer(engine, seen, method, arguments)))
        except BaseException:  # noqa: BLE001 - it is raised again in the process that asked
            pipe.send((False, traceback.format_exc()))


def _answer(engine: Engine, seen: dict[str, int], method: str, arguments: tuple[Any, ...]) -> Any:
    if method == "can":
        return hasattr(engine, arguments[0])
    if method == "stored_bytes":
        return sum(_files(engine.stored).values())
    if method == "usage":
        return usage()
    start = time.perf_counter()
    getattr(engine, method)(*arguments)
    seconds = time.perf_counter() - start
    found = _files(engine.stored)
    written = sum(size for path, size in found.items() if path not in seen)
    seen.clear()
    seen.update(found)
    return Turn(seconds, written)


def _files(folder: Path) -> dict[str, int]:
    """Every file below a folder with its size, checksums of local Hadoop files aside."""
    found, left = {}, [str(folder)]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    left.append(entry.path)
                elif not entry.name.endswith(".crc"):
                    found[entry.path] = entry.stat().st_size
    return found
