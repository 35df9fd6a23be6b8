"""`WatchBoard`: reads and changes the record of a location by compare-and-set, beside any other writer.

turn           evaluate all shards: facts are read after the record, and again if another watcher was faster, so
               that old facts never undo what newer ones have found
post           a notice of something else (a conflict, a failed task)
claim, settle  around the sending of a notice
acknowledge    a user knows; silence until it is resolved
forget         the shard was dropped
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from persist_core.alerts.conditions import Health
from persist_core.alerts.evaluate import evaluate
from persist_core.alerts.record import RECORD_KEY, Acknowledged, LastCheck, Notice, WatchRecord
from persist_core.config.thresholds import Threshold
from persist_core.errors import CorruptArtifact, InvalidInput, StorageError
from persist_core.handles.client import PersistClient
from persist_core.location.consensus import VersionedData
from persist_core.shard.register import Register

R = TypeVar("R")
Gather = Callable[[], Mapping[str, Health]]

VERSIONS_KEPT = 16  # enough to read back a lost answer
CLAIM_MS = 600_000  # longer than a task of the DAG may run: who dies while it sends holds the notice so long

_log = logging.getLogger(__name__)


class WatchBoard:
    """The record of a client's location. `holder` names this process in claims."""

    def __init__(self, client: PersistClient, *, holder: str | None = None) -> None:
        self.client = client
        self.holder = holder or client.ids.uuid7()
        self._consensus = client.location.consensus
        self._register = Register(self._consensus, client.clock, client.ids)

    def read(self) -> WatchRecord:
        """The record now. Raises `CorruptArtifact` if it is damaged; the next turn of a watcher replaces it."""
        head = self._register.head(RECORD_KEY)
        return WatchRecord() if head is None else WatchRecord.decode(head.data, what=self._what)

    def turn(
        self, rules: Mapping[str, Mapping[str, Threshold]], gather: Gather, *, watcher: str = "", guide: str = ""
    ) -> tuple[Notice, ...]:
        """Evaluate the shards in `rules`, and store what changed; the notices that this has made.

        `gather` returns the facts, by shard; shards that it leaves out stay as they are. Alerts of shards that are not
        in `rules`, and that this watcher has opened, end without a notice: their files are gone.
        """

        def transition(record: WatchRecord) -> tuple[WatchRecord, tuple[Notice, ...]]:
            found = gather()
            now_ms = self.client.clock.now_ms()
            made: list[Notice] = []
            for shard, health in found.items():
                if shard in rules:
                    after, notices = evaluate(
                        health, rules[shard], record.of(shard), now_ms=now_ms, watcher=watcher, guide=guide
                    )
                    record = record.with_shard(shard, after)
                    made += (replace(notice, notice_id=self.client.ids.uuid7()) for notice in notices)
            record = record.with_notices(*made)
            for shard, watch in list(record.shards.items()):
                if watcher and watch.watcher == watcher and shard not in rules:
                    rest = replace(watch, alerts={}, unwritten_ms=None, stash_ms=None)
                    record = record.with_shard(shard, rest)
            return record, tuple(made)

        return self.apply(transition)

    def post(self, notice: Notice) -> None:
        """Add a notice to send, if it is not there already."""
        self.apply(lambda record: (record.with_notices(notice), None))

    def claim(
        self, is_ours: Callable[[Notice], bool], *, without: Collection[str] = ()
    ) -> tuple[Notice, tuple[Notice, ...]] | None:
        """Take the oldest notice that may be sent, and the earlier ones of its key that some notifier has not taken.

        `None` if nothing may be sent. One whose key another process is sending has to wait. `without`: ids to skip.
        """

        def transition(record: WatchRecord) -> tuple[WatchRecord, tuple[Notice, tuple[Notice, ...]] | None]:
            now_ms = self.client.clock.now_ms()
            held = {each.key for each in record.unsent if each.is_held(now_ms=now_ms)}
            for position, notice in enumerate(record.unsent):
                if notice.key not in held and notice.notice_id not in without and is_ours(notice):
                    claimed = replace(notice, claimed_by=self.holder, claimed_until_ms=now_ms + CLAIM_MS)
                    unsent = (*record.unsent[:position], claimed, *record.unsent[position + 1 :])
                    earlier = tuple(each for each in record.unsent[:position] if each.key == notice.key)
                    return replace(record, unsent=unsent), (claimed, earlier)
            return record, None

        return self.apply(transition)

    def settle(self, notice: Notice, delivered: Iterable[str], *, is_done: bool) -> None:
        """After sending: forget the notice, or note who has taken it.

        Nothing is changed if the claim has ended meanwhile and another process has it.
        """
        taken = tuple(sorted({*notice.delivered, *delivered}))

        def transition(record: WatchRecord) -> tuple[WatchRecord, None]:
            unsent = []
            for each in record.unsent:
                if each.notice_id != notice.notice_id or each.claimed_by != self.holder:
                    unsent.append(each)
                elif not is_done:
                    unsent.append(replace(each, delivered=taken, claimed_by=None, claimed_until_ms=0))
            return replace(record, unsent=tuple(unsent)), None

        self.apply(transition)

    def acknowledge(self, shard: str, condition: str, *, by: str, reason: str) -> WatchRecord:
        """Keep an alert silent until it is resolved; what is not sent of it is not sent. Returns the record with it.

        Raises `InvalidInput` if there is no such alert, or no reason. A second call replaces the first.
        """
        if not reason.strip():
            raise InvalidInput("a reason is expected: it is kept with the alert, for the next person who looks")

        def transition(record: WatchRecord) -> tuple[WatchRecord, WatchRecord]:
            watch = record.of(shard)
            alert = watch.alerts.get(condition)
            if alert is None:
                known = ", ".join(sorted(watch.alerts)) or "none"
                raise InvalidInput(f"shard {shard} has no open alert {condition!r}; open: {known} (`persist alerts`)")
            seen = Acknowledged(by, self.client.clock.now_ms(), reason.strip())
            alert = replace(alert, acknowledged=seen)
            unsent = tuple(each for each in record.unsent if not _is_of(each, shard, condition) or each.is_resolved)
            changed = record.with_shard(shard, replace(watch, alerts={**watch.alerts, condition: alert}))
            changed = replace(changed, unsent=unsent)
            return changed, changed

        return self.apply(transition)

    def record_check(self, shard: str, findings: int, finding: str = "") -> None:
        """Remember the result of an fsck."""
        check = LastCheck(self.client.clock.now_ms(), findings, finding)
        self.apply(lambda record: (record.with_shard(shard, replace(record.of(shard), check=check)), None))

    def forget(self, shard: str) -> None:
        """Remove everything about a shard."""
        self.apply(lambda record: (record.without_shard(shard), None))

    def apply(self, transition: Callable[[WatchRecord], tuple[WatchRecord, R]]) -> R:
        """Run `transition` on the newest record and store its result, until no other writer is faster.

        A record that is damaged counts as empty: open alerts are then sent once more. Raises `StorageError`.
        """

        def step(head: VersionedData | None) -> tuple[VersionedData | None, tuple[int, R]]:
            before = self._decoded(head)
            after, result = transition(before)
            if after == before:
                return None, (0, result)
            seqno = 0 if head is None else head.seqno + 1
            after = replace(after, write_id=self.client.ids.uuid7())
            return VersionedData(seqno, after.encode()), (seqno, result)

        seqno, result = self._register.change(RECORD_KEY, step, self._what)
        self._truncate(seqno)
        return result

    @property
    def _what(self) -> str:
        return f"the record of alerts ({RECORD_KEY} in {self._register.uri})"

    def _decoded(self, head: VersionedData | None) -> WatchRecord:
        if head is None:
            return WatchRecord()
        try:
            return WatchRecord.decode(head.data, what=self._what)
        except CorruptArtifact as error:
            _log.warning("%s. It is replaced: open alerts are sent again", error)
            return WatchRecord()

    def _truncate(self, seqno: int) -> None:
        """Forget old versions, now and then. The next time does it if the store fails."""
        if seqno % VERSIONS_KEPT == 0 and seqno > 0:
            with suppress(StorageError):
                self._consensus.truncate(RECORD_KEY, seqno - VERSIONS_KEPT // 2)


def _is_of(notice: Notice, shard: str, condition: str) -> bool:
    return (notice.kind, notice.shard, notice.what) == ("alert", shard, condition)
