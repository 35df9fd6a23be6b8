"""`persist doctor`: whether a store meets the contracts of a location. It queries the store and probes it.

    reachable -> what the backend knows of its store (`Examinable.diagnose`) -> what a probe finds by trying

Probes use their own keys, which no shard can have, and remove them, also after an error; what a killed one has left
goes with the first probe a day later. They do what runs do, on a small scale (a race of threads for one seqno, commits
one after the other, blobs written, listed, read, deleted), so their measurements apply to runs. A store that cannot be
reached is a finding, not an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from persist_core.clock import Clock
from persist_core.errors import Indeterminate, PersistError, StorageError
from persist_core.ids import Ids, is_leftover
from persist_core.keys import PROBES, doctor_probe_key
from persist_core.location.blob import Blob
from persist_core.location.consensus import CaSResult, Consensus, VersionedData
from persist_core.location.finding import Erasable, Examinable, Finding, Grade, grade_if

RACERS = 4
RACE_ROUNDS = 12
# Bodies of some rounds are large: this exposes a store that checks first and writes later, while it still receives
# them.
RACE_BODY_BYTES = (64, 1 << 20)
COMMITS = 200
COMMIT_BODY_BYTES = 2_000  # a shard's state is a few kB
SLOW_COMMIT_MS = 500.0  # a dag run makes about five commits one after the other
BLOB_BYTES = 8 << 20
SMALL_BLOBS = 20

Timer = Callable[[], float]


@dataclass(frozen=True)
class Examiner:
    """Examines stores. `timer` gives seconds, for durations only."""

    clock: Clock
    ids: Ids
    commits: int = COMMITS
    timer: Timer = field(default=time.perf_counter)

    def consensus(self, consensus: Consensus) -> list[Finding]:
        return self._examined(consensus, _keys_listed(consensus), self._probe_consensus(consensus))

    def blob(self, blob: Blob) -> list[Finding]:
        prefix = f"{doctor_probe_key(self.ids.uuid7())}/"
        return self._examined(blob, _prefix_listed(blob, prefix), self._probe_blob(blob, prefix))

    def _examined(self, store: object, reached: Iterator[Finding], probed: Iterator[Finding]) -> list[Finding]:
        findings = list(_errors_found("reachable", reached))
        if findings[0].grade is Grade.OK:
            if isinstance(store, Examinable):
                findings += _errors_found("diagnosis", store.diagnose(self.clock))
            findings += _errors_found("probe", probed, "the rights to write and delete: runs need them, readers do not")
        return findings

    def _probe_consensus(self, consensus: Consensus) -> Iterator[Finding]:
        if not isinstance(consensus, Erasable):
            found = "not probed: this backend cannot remove what a probe writes"
            yield Finding("probe", Grade.WARNING, found, "an Erasable", "test it with a run")
            return
        key = doctor_probe_key(self.ids.uuid7())
        consensus.erase(key)  # it is empty: without the permission to erase, do not start the probe
        for left in filter(self._is_leftover, list(consensus.list_keys())):
            consensus.erase(left)
        try:
            yield from _errors_found("commit", self._commits(consensus, key))
        finally:
            consensus.erase(key)

    def _commits(self, consensus: Consensus, key: str) -> Iterator[Finding]:
        head = yield from self._race(consensus, key)
        head = yield from self._commit(consensus, key, head)
        yield from self._truncate(consensus, key, head)

    def _race(self, consensus: Consensus, key: str) -> Generator[Finding, None, int]:
        """Several threads expect the same seqno, and jump to different ones; returns the head."""
        wrong: list[str] = []
        unanswered = 0
        head: int | None = None
        with ThreadPoolExecutor(RACERS) as pool:
            for round_number in range(RACE_ROUNDS):
                filling = bytes(RACE_BODY_BYTES[round_number % len(RACE_BODY_BYTES)])
                start = 0 if head is None else head + 1
                offers = [VersionedData(start + racer, b"%d:" % racer + filling) for racer in range(RACERS)]
                tries = [pool.submit(_offer, consensus, key, head, offer) for offer in offers]
                answers = [answer.result() for answer in tries]
                winners = [offer for offer, answer in zip(offers, answers, strict=True) if answer]
                unanswered += answers.count(None)
                stored = consensus.scan(key, start)
                if len(stored) != 1 or (None not in answers and stored != winners) or len(winners) > 1:
                    wrong.append(f"round {round_number}: {len(winners)} winners, {len(stored)} versions")
                head = max((version.seqno for version in stored), default=head)
                if head is None:
                    break
        yield grade_if(
            bool(wrong),
            "race",
            "; ".join(wrong) or f"{RACERS} writers, {RACE_ROUNDS} rounds: one winner each time",
            expected="one winner a round, and its bytes stored",
            remedy="do not use this store: two writers can both conclude that they committed",
        )
        if unanswered:
            found = f"{unanswered} of {RACERS * RACE_ROUNDS} commits of the race got no answer"
            yield Finding("answers", Grade.WARNING, found, "an answer to each commit", "check network connectivity")
        return -1 if head is None else head

    def _commit(self, consensus: Consensus, key: str, head: int) -> Generator[Finding, None, int]:
        """Commits one after the other, each timed; returns the head."""
        body, times_ms, lost = bytes(COMMIT_BODY_BYTES), [], 0
        for _ in range(self.commits):
            start = self.timer()
            result = consensus.compare_and_set(key, None if head < 0 else head, VersionedData(head + 1, body))
            times_ms.append((self.timer() - start) * 1000)
            lost += result is not CaSResult.COMMITTED
            head += 1
        p50, p99 = quantile(times_ms, 0.5), quantile(times_ms, 0.99)
        yield grade_if(
            lost > 0,
            "commit",
            f"{lost} of {self.commits} commits were refused" if lost else f"{self.commits} commits in a row",
            expected="no commit refused without a competing writer",
            remedy="do not use this store: it lost acknowledged writes",
        )
        yield grade_if(
            p50 > SLOW_COMMIT_MS,
            "latency",
            f"a commit takes {p50:.1f} ms (p50), {p99:.1f} ms (p99)",
            expected=f"at most {SLOW_COMMIT_MS:g} ms (p50)",
            remedy="use a store closer to the workers",
            grade=Grade.WARNING,
        )
        return head

    def _truncate(self, consensus: Consensus, key: str, head: int) -> Iterator[Finding]:
        deleted = consensus.truncate(key, head)
        left = [version.seqno for version in consensus.scan(key, 0)]
        yield grade_if(
            left != [head],
            "truncate",
            f"deleted {deleted} versions, left {len(left)}",
            expected="only the newest version left",
            remedy="do not use this store: truncation keeps old versions or deletes new ones",
        )

    def _probe_blob(self, blob: Blob, prefix: str) -> Iterator[Finding]:
        keys = [f"{prefix}large", *(f"{prefix}small/{number:03d}" for number in range(SMALL_BLOBS))]
        blob.set(keys[0], b"")
        blob.delete(keys[0])  # without the permission to delete, do not start the probe
        known = [entry.key for folder in PROBES for entry in blob.list_keys_and_metadata(folder)]
        for left in filter(self._is_leftover, known):
            blob.delete(left)
        try:
            probed = chain(self._large_blob(blob, keys[0]), self._small_blobs(blob, prefix, keys[1:]))
            yield from _errors_found("blobs", probed)
        finally:
            for key in keys:
                blob.delete(key)

    def _is_leftover(self, key: str) -> bool:
        return key.startswith(PROBES) and is_leftover(key.split("/")[1], now_ms=self.clock.now_ms())

    def _large_blob(self, blob: Blob, key: str) -> Iterator[Finding]:
        data = bytes(range(256)) * (BLOB_BYTES // 256)
        start = self.timer()
        blob.set(key, data)
        written = self.timer()
        back = blob.get(key)
        read = self.timer()
        yield grade_if(
            back != data,
            "throughput",
            f"writes {_rate(len(data), written - start)}, reads {_rate(len(data), read - written)}"
            if back == data
            else f"{len(data)} bytes written, {'none' if back is None else len(back)} read, or others",
            expected="the bytes that were written",
            remedy="do not use this store",
        )

    def _small_blobs(self, blob: Blob, prefix: str, keys: list[str]) -> Iterator[Finding]:
        times_ms = []
        for key in keys:
            start = self.timer()
            blob.set(key, key.encode())
            times_ms.append((self.timer() - start) * 1000)
        start = self.timer()
        listed = [metadata.key for metadata in blob.list_keys_and_metadata(f"{prefix}small/")]
        list_ms = (self.timer() - start) * 1000
        sizes = [blob.delete(key) for key in keys]
        left = sum(1 for _ in blob.list_keys_and_metadata(f"{prefix}small/"))
        deleted = len(sizes) - sizes.count(None)
        is_right = listed == keys and sizes == [len(key) for key in keys] and not left
        yield grade_if(
            not is_right,
            "small_blobs",
            f"a write takes {quantile(times_ms, 0.5):.1f} ms (p50), a listing of {len(keys)} {list_ms:.1f} ms"
            if is_right
            else f"{len(keys)} written, {len(listed)} listed, {deleted} deleted, {left} left",
            expected="all listed in order, all deleted",
            remedy="do not use this store",
        )


def _keys_listed(consensus: Consensus) -> Iterator[Finding]:
    yield Finding("reachable", Grade.OK, f"{sum(1 for _ in consensus.list_keys())} keys")


def _prefix_listed(blob: Blob, prefix: str) -> Iterator[Finding]:
    strangers = [entry.key for entry in blob.list_keys_and_metadata(prefix)]
    yield grade_if(
        bool(strangers),
        "reachable",
        f"a listing of the new prefix {prefix} has {len(strangers)} keys, the first {strangers[0]!r}"
        if strangers
        else "listing works",
        expected="no key under a prefix that was never used",
        remedy="do not use this store: its listings are wrong",
    )


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of `values` lie (nearest rank); 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _offer(consensus: Consensus, key: str, expected: int | None, new: VersionedData) -> bool | None:
    """True if `new` was committed; `None` if that is not known."""
    try:
        return consensus.compare_and_set(key, expected, new) is CaSResult.COMMITTED
    except Indeterminate:
        return None


def _errors_found(check: str, findings: Iterator[Finding], expected: str = "no error") -> Iterator[Finding]:
    """These findings; an error on the way is the last one, of `check`."""
    try:
        yield from findings
    except PersistError as error:
        remedy = (
            "correct what the message names, then run doctor again"
            if isinstance(error, StorageError)
            else "correct the URI"
        )
        yield Finding(check, Grade.PROBLEM, str(error), expected, remedy)


def _rate(size_bytes: int, duration_s: float) -> str:
    return f"{size_bytes / (1 << 20) / max(duration_s, 1e-9):.0f} MiB/s"
