"""`s3:` consensus: per key a log of immutable objects, each created by a conditional PUT (`If-None-Match: *`).

    head             LIST (1 name) -- GET, unless it is the entry that this object saw last
    compare_and_set  PUT at the next position, if the head is known; else `head` first
    scan             `head`, then GETs by position: the first one is found by bisection, nothing is listed
    truncate         `head`, some GETs of headers, PUT of an entry that records it; then old objects are swept

So an append (a head, then a compare-and-set) costs 3 requests for a process that sees the key for the first time, and
2 afterwards. A lost race costs 3 more.

**Why it is linearizable.** A position is filled once (S3 decides the PUTs), entries never change, and each entry stands
for the whole log up to it, truncations included. A writer that adds position n + 1 has seen entry n. So the log is one
sequence of states, and each call takes effect at one moment: a `compare_and_set` or `truncate` that changes something
when its object comes into being; every other call when the listing answers that found the newest entry. Nothing here
depends on current listings except what a reader sees first: an outdated one makes the PUT fail.

**The stalled writer.** Truncated objects are deleted later, and then their names are free again:

    W looks: the newest is n --------------------------------- W's PUT at n + 1 arrives late: 200 --> has W won?
         others fill n + 1, n + 2 ... truncate past them, the objects are deleted

It has not, and two rules keep it harmless:

1. *No reader ever sees its object.* Only positions from `first` of the newest entry on count, and only positions
   before it are ever deleted. The newest entry is found by name, and its name comes before any older one's.
   `first` never goes back, because each entry takes it over from the one before: that is the durable floor.
2. *W never believes that it won.* A truncated object is deleted only when it is older than `KEEP_MS` by S3's clock,
   and n + 1 was not there when W looked. So an answer that comes within `TRUST_MS` of that look cannot be about a name
   that was filled and freed between the two. An answer that comes later counts only after another look: if `first` is
   still at or before n + 1, that position was never deleted, so W filled it; else W has lost.

The clocks of different machines are never compared: S3 compares its own with itself, W its own with itself. Only a
clock that loses 23 hours during one call breaks this.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from persist_core.clock import Clock, SystemClock
from persist_core.errors import Corruption, Determinate, Indeterminate, StorageError
from persist_core.ids import Ids, RandomIds
from persist_core.location.consensus import (
    SCAN_ALL,
    CaSResult,
    VersionedData,
    check_cas,
    check_consensus_key,
    check_scan,
    check_truncate,
    check_truncation,
)
from persist_core.location.finding import Finding
from persist_core.location.s3.blob import CONSENSUS_FOLDER
from persist_core.location.s3.diagnosis import diagnose
from persist_core.location.s3.entry import Entry, Header, entry_after, folder_of, truncation_after
from persist_core.location.s3.log import S3Logs
from persist_core.location.s3.probe import probe_once
from persist_core.location.s3.uri import S3Settings

KEEP_MS = 24 * 3_600_000  # a truncated object stays this long, so that the PUT of a late writer fails
TRUST_MS = 3_600_000  # an answer this long after the look it rests on needs no second look
MAX_ROUNDS = 64  # of one call: each further one means that another process changed the key in the meantime
_FETCH_THREADS = 8  # of a scan: latency of a store, not work
_KEPT_ENTRIES = 16  # keys whose newest entry is remembered


_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Look:
    """The newest entry of a key (`None`: no log yet), and a time, by our clock, at which it was not yet overtaken."""

    newest: Entry | None
    at_ms: int

    @property
    def seqno(self) -> int | None:
        return None if self.newest is None else self.newest.header.seqno


class S3Consensus:
    """`Consensus`, `Erasable` and `Examinable` in an S3 bucket. Safe for threads and for forked children."""

    def __init__(
        self,
        settings: S3Settings,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        keep_ms: int = KEEP_MS,
        trust_ms: int = TRUST_MS,
    ) -> None:
        self._settings = settings
        self._keep_ms, self._trust_ms = keep_ms, trust_ms
        self._clock: Clock = clock or SystemClock()
        self._ids: Ids = ids or RandomIds(self._clock)
        self._root = f"{settings.prefix}/{CONSENSUS_FOLDER}/".lstrip("/")
        self._logs = S3Logs(settings, self._root, self._clock, self._ids)
        self._seen: dict[str, _Look] = {}  # no lock: each operation on it is atomic, and it only saves requests

    def list_keys(self) -> Iterator[str]:
        return self._logs.keys()

    def head(self, key: str) -> VersionedData | None:
        check_consensus_key(key)
        newest = self._look(key).newest
        return None if newest is None else newest.version

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        check_cas(key, expected, new)
        probe_once(self._logs.client, self._root, self._ids)
        look = self._seen.get(key)
        for _ in range(MAX_ROUNDS):
            if look is None or look.seqno != expected:
                look = self._look(key)
                if look.seqno != expected:
                    return CaSResult.EXPECTATION_MISMATCH
            if self._add(key, look, entry_after(look.newest, key, new, self._ids.uuid7())):
                return CaSResult.COMMITTED
            look = None
        raise Determinate(
            f"{self.uri}: compare_and_set of {key!r}: truncated by others {MAX_ROUNDS} times in a row; nothing was"
            " changed; try again"
        )

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        limit = check_scan(key, from_seqno, limit)
        for _ in range(MAX_ROUNDS):
            newest = self._look(key).newest
            if newest is None or newest.header.seqno < from_seqno or limit == 0:
                return []
            try:
                return self._versions(newest, self._first_from(newest, from_seqno), limit)
            except _Gone as gone:
                self._check_truncated(key, gone.position)
        raise Determinate(f"{self.uri}: scan of {key!r}: truncated by others {MAX_ROUNDS} times in a row; try again")

    def truncate(self, key: str, seqno: int) -> int:
        check_truncation(key, seqno)
        probe_once(self._logs.client, self._root, self._ids)
        for _ in range(MAX_ROUNDS):
            look = self._look(key)
            newest = look.newest
            check_truncate(key, seqno, look.seqno)
            assert newest is not None
            try:
                oldest_kept = self._first_from(newest, seqno)
            except _Gone as gone:
                self._check_truncated(key, gone.position)
                continue
            deleted = oldest_kept.number - 1 - newest.header.truncated
            if deleted and not self._add(key, look, truncation_after(newest, oldest_kept, self._ids.uuid7())):
                continue
            with suppress(StorageError):  # it is truncated already; the next sweep deletes what is left
                self._logs.sweep(key, oldest_kept.position, self._keep_ms)
            return deleted
        raise Determinate(f"{self.uri}: truncate of {key!r}: lost {MAX_ROUNDS} races in a row; try again")

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        yield from diagnose(self._logs.client, self._root, clock, has_uploads=False)

    def erase(self, key: str) -> None:
        check_consensus_key(key)
        self._seen.pop(key, None)
        for _ in range(MAX_ROUNDS):
            if not self._logs.erase(key):
                return
        raise Determinate(f"{self.uri}: erase {key!r}: another process keeps writing it; try again")

    def close(self) -> None:
        self._logs.client.close()

    @property
    def uri(self) -> str:
        return self._settings.uri

    def _look(self, key: str) -> _Look:
        at_ms = self._clock.now_ms()
        for _ in range(MAX_ROUNDS):
            position = self._logs.newest_in(folder_of(key))
            if position is None:
                return _Look(None, at_ms)
            seen = self._seen.get(key)
            newest = seen.newest if seen else None
            if newest is None or newest.header.position != position:
                newest = self._logs.entry(key, position)
            if newest is not None:
                return self._remember(key, _Look(newest, at_ms))
        raise Corruption(
            f"{self.uri}: the newest entry of {key!r} is listed but cannot be read: look for a lifecycle rule that"
            " expires or archives objects"
        )

    def _remember(self, key: str, look: _Look) -> _Look:
        self._seen.pop(key, None)  # so that it comes last
        self._seen[key] = look
        for oldest in list(self._seen)[:-_KEPT_ENTRIES]:
            self._seen.pop(oldest, None)
        return look

    def _add(self, key: str, look: _Look, entry: Entry) -> bool:
        """Add `entry`, made for what `look` saw; whether it is now part of the log."""
        at_ms = self._clock.now_ms()
        try:
            is_added = self._logs.add(entry)
        except StorageError:
            self._seen.pop(key, None)
            raise
        if not is_added:
            return False
        if not 0 <= self._clock.now_ms() - look.at_ms <= self._trust_ms:
            return self._stands(key, entry)
        self._remember(key, _Look(entry, at_ms))
        return True

    def _stands(self, key: str, entry: Entry) -> bool:
        """The second look: whether `entry`, which was created, is part of the log, and not beneath it."""
        try:
            newest = self._look(key).newest
        except StorageError as error:
            raise Indeterminate(
                f"{self.uri}: compare_and_set of {key!r}: the write took too long, and its result cannot be"
                f" verified: {error}; read back to find out"
            ) from error
        return newest is not None and newest.header.first <= entry.header.position <= newest.header.position

    def _first_from(self, newest: Entry, seqno: int) -> Header:
        """The first entry that counts, as of `newest`, whose seqno is at least `seqno`, which `newest`'s is.

        Entries that restate the newest version come after the one that made it, so this one made its version.
        """
        header = newest.header
        known = {header.position: header}

        def header_at(position: int) -> Header:
            if position not in known:
                known[position] = _there(self._logs.header(folder_of(header.key), position), position)
            return known[position]

        positions = range(header.first, header.position)
        if positions and header_at(header.first).seqno >= seqno:
            return header_at(header.first)
        return header_at(header.first + bisect_left(positions, seqno, key=lambda at: header_at(at).seqno))

    def _versions(self, newest: Entry, start: Header, limit: int) -> list[VersionedData]:
        key, last = newest.header.key, newest.header.position
        versions: list[VersionedData] = []
        at = start.position
        with ThreadPoolExecutor(_FETCH_THREADS) as pool:
            while at <= last and len(versions) < limit:  # bounded: `at` grows
                chunk = range(at, min(last + 1, at + max(1, min(limit - len(versions), 8 * _FETCH_THREADS))))
                asked = {
                    position: pool.submit(self._logs.entry, key, position) for position in chunk if position < last
                }
                for position in chunk:
                    entry = newest if position == last else _there(asked[position].result(), position)
                    if not entry.header.restates:
                        versions.append(entry.version)
                at = chunk.stop
        return versions[:limit]

    def _check_truncated(self, key: str, position: int) -> None:
        """Return if the missing entry was truncated in the meantime, else raise `Corruption`."""
        newest = self._look(key).newest
        if newest is None or newest.header.first <= position:
            raise Corruption(
                f"{self.uri}: entry {position} of {key!r} is missing: something else deletes objects below"
                f" {self._root}; look for a lifecycle rule, and restore the object"
            )


def _there(found: _Found | None, position: int) -> _Found:
    if found is None:
        raise _Gone(position)
    return found


class _Gone(Exception):
    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position
