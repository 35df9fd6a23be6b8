"""The processor time, memory, reads and writes of processes, by Linux's `/proc`."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """The most resident memory so far, and processor seconds, of a process and its descendants together."""

    peak_memory_bytes: int
    processor_s: float


def usage(pid: int | None = None) -> Usage:
    """Usage of this process, or another one, and its descendants that still run, or were waited for."""
    peak, ticks, left = 0, 0, [pid or os.getpid()]
    while left:
        process = Path(f"/proc/{left.pop()}")
        try:
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            peak += int(status.get("VmHWM", "0").split()[0]) * 1024  # one that ended but was not waited for has none
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
            for task in (process / "task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return Usage(peak, ticks / os.sysconf("SC_CLK_TCK"))


def io_bytes(pid: int) -> dict[str, int]:
    """The counts of a process's reads and writes so far, by the kernel's names."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def live_objects(pid: int) -> tuple[dict[str, int], int]:
    """How many objects of each class a JVM holds after a full collection, and the bytes of all."""
    for _ in range(2):  # the first one ends what was kept by weak references
        answer = subprocess.run(["jcmd", str(pid), "GC.class_histogram"], check=True, capture_output=True, text=True)
    rows = [line.split() for line in answer.stdout.splitlines() if line]
    return {row[3]: int(row[1]) for row in rows[3:-1]}, int(rows[-1][2])


def busy_seconds() -> float:
    """Processor seconds that all of the machine has used since it started."""
    user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")
