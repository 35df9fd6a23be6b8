"""Concurrent work of several threads or processes on one store, and a command line to do it from another process.

    parent --stdin: "go"--> child: `python -m tests.suites.races MODE URI KEY WORKER COUNT`
    parent <--stdout: "ready", then one JSON line per acknowledged operation-- child

The conformance suites start these, compare what was acknowledged with what is stored, and kill some of them half way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from persist_core.location.blob import Blob
from persist_core.location.consensus import CaSResult, Consensus, VersionedData
from persist_core.location.open import open_blob, open_consensus

# A compare-and-set that loses this often in a row shows a broken store, not competition.
MAX_ATTEMPTS = 10_000

# Sizes that make a torn value likely to be caught: less and more than a page, a pipe buffer, a write-back unit.
VALUE_SIZES = (1, 4095, 70_000, 300_000)

# The longest time that a child may take, in seconds: to start, to finish its work, to die.
CHILD_TIMEOUT_S = 60.0


def race(consensus: Consensus, key: str, worker: int, rounds: int) -> Iterator[int]:
    """Try to be the one who commits each of the seqnos 0, 1, ... `rounds - 1`; yields the won ones."""
    for seqno in range(rounds):
        expected = seqno - 1 if seqno else None
        if consensus.compare_and_set(key, expected, VersionedData(seqno, _mark(worker, seqno))) is CaSResult.COMMITTED:
            yield seqno


def increment(consensus: Consensus, key: str, worker: int, times: int) -> Iterator[int]:
    """Add 1 to the counter in `key` so many times by read and compare-and-set; yields the seqnos committed."""
    for _ in range(times):
        for _attempt in range(MAX_ATTEMPTS):
            head = consensus.head(key)
            count = int(head.data.split(b":")[1]) + 1 if head else 1
            new = VersionedData(head.seqno + worker + 1 if head else worker, b"%d:%d" % (worker, count))
            if consensus.compare_and_set(key, head.seqno if head else None, new) is CaSResult.COMMITTED:
                yield new.seqno
                break
        else:
            raise AssertionError(f"worker {worker} lost {MAX_ATTEMPTS} compare-and-sets in a row on {key!r}")


def increment_forked(consensus: Consensus, key: str, worker: int, times: int) -> Iterator[int]:
    """`increment` in this process and, with the very same object, in a forked child; raises if the child failed."""
    consensus.head(key)  # so that what the backend keeps open is open at the fork
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for _ in increment(consensus, key, worker + 1, times):
                pass
            status = 0
        finally:
            os._exit(status)
    yield from increment(consensus, key, worker, times)
    _, status = os.waitpid(child, 0)
    if status:
        raise AssertionError(f"the forked child ended with status {status}")


def overwrite(blob: Blob, key: str, worker: int, times: int) -> Iterator[int]:
    """Overwrite `key` so many times with `stamped` values of changing sizes."""
    for number in range(times):
        blob.set(key, stamped(worker, number))
        yield number


def write_new(blob: Blob, key: str, worker: int, times: int) -> Iterator[int]:
    """Write `stamped` values under new keys `<key>/<worker>/<number>`."""
    for number in range(times):
        blob.set(f"{key}/{worker}/{number}", stamped(worker, number))
        yield number


def write_and_delete(blob: Blob, key: str, worker: int, times: int) -> Iterator[int]:
    """Write and delete keys that share a directory, so that it appears and disappears while others use it."""
    for number in range(times):
        data = stamped(worker, 4 * number)
        blob.set(f"{key}/x/{worker}", data)
        size_bytes = blob.delete(f"{key}/x/{worker}")
        if size_bytes != len(data):
            raise AssertionError(f"deleted {size_bytes} bytes; expected {len(data)}")
        yield number


def stamped(worker: int, number: int) -> bytes:
    """A value that shows whether it is whole: it says who wrote it, and its filling and its length follow from that."""
    head = b"%d:%d:" % (worker, number)
    size_bytes = VALUE_SIZES[number % len(VALUE_SIZES)]
    return head + bytes([(worker * 31 + number) % 256]) * size_bytes


def read_stamp(data: bytes) -> tuple[int, int]:
    """`(worker, number)` of a `stamped` value; `AssertionError` if it is torn."""
    worker, number = (int(field) for field in data.split(b":", 2)[:2])
    if data != stamped(worker, number):
        raise AssertionError(f"torn value of {len(data)} bytes, beginning {data[:20]!r}")
    return worker, number


def in_threads(work: Sequence[Callable[[], Iterable[int]]]) -> list[list[int]]:
    """Run all of `work` concurrently, from one start; what each yielded. Raises what any of them raised."""
    barrier = threading.Barrier(len(work))

    def run(job: Callable[[], Iterable[int]]) -> list[int]:
        barrier.wait(CHILD_TIMEOUT_S)
        return list(job())

    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(run, job) for job in work]]


class Racer:
    """A child process that runs one of `MODES`. Created ready, waiting for `go`."""

    def __init__(self, mode: str, address: str, key: str, worker: int, count: int) -> None:
        command = [sys.executable, "-m", "tests.suites.races", mode, address, key, str(worker), str(count)]
        # Unbuffered: `communicate` reads past a buffer, so that what `readline` had put there would be lost.
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def wait_ready(self) -> None:
        """Return when the child has opened its store."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != b"ready\n":
            raise AssertionError(f"the child did not start: {line!r}, {self._rest_of_errors()}")

    def go(self) -> None:
        """Let the child begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def acknowledged(self) -> list[int]:
        """All numbers that the child acknowledged, if it succeeded; else `AssertionError` with its error output."""
        output, errors = self._process.communicate(timeout=CHILD_TIMEOUT_S)
        if self._process.returncode != 0:
            raise AssertionError(f"the child ended with {self._process.returncode}: {errors.decode()}")
        return [json.loads(line) for line in output.splitlines()]

    def kill_after(self, acknowledgements: int) -> list[int]:
        """Kill the child (SIGKILL) after it acknowledged so many operations; everything that it acknowledged."""
        numbers = [self.next_acknowledgement() for _ in range(acknowledgements)]
        self._process.kill()
        return numbers + self.last_words()

    def next_acknowledgement(self) -> int:
        """Wait for the next number that the child acknowledges."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise AssertionError(f"the child ended too early: {self._rest_of_errors()}")
        number: int = json.loads(line)
        return number

    def last_words(self) -> list[int]:
        """The remaining acknowledgments of a child that is dead or dies soon: it, or its store, was killed."""
        output, _ = self._process.communicate(timeout=CHILD_TIMEOUT_S)
        return [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith(b"\n")]

    def _rest_of_errors(self) -> str:
        self._process.kill()
        return self._process.communicate(timeout=CHILD_TIMEOUT_S)[1].decode()


def in_processes(mode: str, address: str, key: str, workers: int, count: int) -> list[list[int]]:
    """Run `mode` in so many processes concurrently, from one start; what each acknowledged."""
    racers = [Racer(mode, address, key, worker, count) for worker in range(workers)]
    for racer in racers:
        racer.wait_ready()
    for racer in racers:
        racer.go()
    return [racer.acknowledged() for racer in racers]


_CONSENSUS_MODES = {"race": race, "increment": increment, "increment_forked": increment_forked}
_BLOB_MODES = {"overwrite": overwrite, "write_new": write_new, "write_and_delete": write_and_delete}


def _mark(worker: int, seqno: int) -> bytes:
    return b"worker %d wrote %d" % (worker, seqno)


def winner_of(version: VersionedData) -> int:
    """The worker that committed a version of `race`; `AssertionError` if the version is not whole."""
    worker = int(version.data.split()[1])
    if version.data != _mark(worker, version.seqno):
        raise AssertionError(f"seqno {version.seqno} holds {version.data[:80]!r}")
    return worker


def main(argv: Sequence[str]) -> None:
    """See the module's first lines."""
    mode, address, key, worker, count = argv
    numbers = (
        _CONSENSUS_MODES[mode](open_consensus(address), key, int(worker), int(count))
        if mode in _CONSENSUS_MODES
        else _BLOB_MODES[mode](open_blob(address), key, int(worker), int(count))
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for number in numbers:
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
