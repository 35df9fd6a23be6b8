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
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from persist_core.alerts.conditions import Health
from persist_core.alerts.evaluate import evaluate
from persist_core.alerts.record import RECORD_KEY, Acknowledged, LastCheck, Notice, ShardWatch, WatchRecord
from persist_core.config.thresholds import Threshold
from persist_core.errors import CorruptArtifact, Corruption, InvalidInput, StorageError, UnknownVersion
from persist_core.handles.client import PersistClient
from persist_core.location.consensus import VersionedData
from persist_core.location.finding import Erasable
from persist_core.shard.register import Register

R = TypeVar("R")
Gather = Callable[[], Mapping[str, Health]]

VERSIONS_KEPT = 16  # enough to read back a lost answer
CLAIM_MS = 600_000  # longer than a task of the DAG may run: who dies while it sends holds the notice so long

_log = logging.getLogger(__name__)


class WatchBoard:
    """The record of a client's location. `holder` names this process in claims."""

    def __init__(self, client: PersistClient) -> None:
        self.client = client
        self.holder = client.ids.uuid7()
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
        in `rules`, and that this watcher has opened, end without a notice: their files are gone. What says that they
        began, and is unsent, is not sent either: nothing would say that they have ended.
        """

        def transition(record: WatchRecord) -> tuple[WatchRecord, tuple[Notice, ...]]:
            found = gather()
            now_ms = self.client.clock.now_ms()
            made: list[Notice] = []
            after: dict[str, ShardWatch] = {}
            ended: set[tuple[str, str]] = set()
            for shard, health in found.items():
                if shard in rules:
                    after[shard], notices = evaluate(
                        health, rules[shard], record.of(shard), now_ms=now_ms, watcher=watcher, guide=guide
                    )
                    made += (replace(notice, notice_id=self.client.ids.uuid7()) for notice in notices)
            for shard, watch in record.shards.items():
                if watcher and watch.watcher == watcher and shard not in rules:
                    after[shard] = replace(watch, alerts={}, unwritten_ms=None, stash_ms=None)
                    ended |= {(shard, condition) for condition in watch.alerts}
            return _without_begins(record, ended).with_shards(after).with_notices(*made), tuple(made)

        return self.apply(transition)

    def post(self, *notices: Notice) -> None:
        """Add notices to send that are not there already."""
        self.apply(lambda record: (record.with_notices(*notices), None))

    def claim(
        self, may_send: Callable[[Notice, Sequence[Notice]], bool], *, without: Collection[str] = ()
    ) -> tuple[Notice, tuple[Notice, ...]] | None:
        """Take the first notice that may be sent, and the earlier ones of its key that some notifier has not taken.

        `may_send` gets both. `None` if nothing may be sent. One whose key another process is sending has to wait.
        `without`: ids to skip.
        """

        def transition(record: WatchRecord) -> tuple[WatchRecord, tuple[Notice, tuple[Notice, ...]] | None]:
            now_ms = self.client.clock.now_ms()
            held = {each.key for each in record.unsent if each.is_held(now_ms=now_ms)}
            of_key: defaultdict[str, list[Notice]] = defaultdict(list)
            for position, notice in enumerate(record.unsent):
                earlier = of_key[notice.key]
                if notice.key not in held and notice.notice_id not in without and may_send(notice, earlier):
                    claimed = replace(notice, claimed_by=self.holder, claimed_until_ms=now_ms + CLAIM_MS)
                    unsent = (*record.unsent[:position], claimed, *record.unsent[position + 1 :])
                    return replace(record, unsent=unsent), (claimed, tuple(earlier))
                earlier.append(notice)
            return record, None

        return self.apply(transition)

    def settle(self, notice: Notice, delivered: Iterable[str], *, is_done: bool) -> None:
        """After sending: forget the notice, or note who has taken it. Then all of its key wait behind the others.

        Nothing is changed if the claim has ended meanwhile and another process has it.
        """
        taken = tuple(sorted({*notice.delivered, *delivered}))

        def transition(record: WatchRecord) -> tuple[WatchRecord, None]:
            ours = next((each for each in record.unsent if each.notice_id == notice.notice_id), None)
            if ours is None or ours.claimed_by != self.holder:
                return record, None
            if is_done:
                return replace(record, unsent=tuple(each for each in record.unsent if each is not ours)), None
            tried = replace(ours, delivered=taken, claimed_by=None, claimed_until_ms=0)
            first = (each for each in record.unsent if each.key != ours.key)
            last = (tried if each is ours else each for each in record.unsent if each.key == ours.key)
            return replace(record, unsent=(*first, *last)), None

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
            changed = _without_begins(record, {(shard, condition)})
            changed = changed.with_shard(shard, replace(watch, alerts={**watch.alerts, condition: alert}))
            return changed, changed

        return self.apply(transition)

    def record_check(self, shard: str, findings: int, finding: str = "") -> None:
        check = LastCheck(self.client.clock.now_ms(), findings, finding)
        self.apply(lambda record: (record.with_shard(shard, replace(record.of(shard), check=check)), None))

    def forget(self, shard: str) -> None:
        self.apply(lambda record: (record.without_shard(shard), None))

    def apply(self, transition: Callable[[WatchRecord], tuple[WatchRecord, R]]) -> R:
        """Run `transition` on the newest record and store its result, until no other writer is faster.

        A record that is damaged counts as empty: open alerts are then sent once more. So does one that the store can't
        read, which is erased. Raises `StorageError`.
        """

        def step(head: VersionedData | None) -> tuple[VersionedData | None, tuple[int, R]]:
            before = self._decoded(head)
            after, result = transition(before)
            if after == before:
                return None, (0, result)
            seqno = 0 if head is None else head.seqno + 1
            after = replace(after, write_id=self.client.ids.uuid7())
            return VersionedData(seqno, after.encode()), (seqno, result)

        try:
            seqno, result = self._register.change(RECORD_KEY, step, self._what)
        except UnknownVersion:
            raise
        except Corruption:
            self._erase_damaged()
            seqno, result = self._register.change(RECORD_KEY, step, self._what)
        self._truncate(seqno)
        return result

    def _erase_damaged(self) -> None:
        try:
            self._register.head(RECORD_KEY)
        except Corruption as error:
            if isinstance(self._consensus, Erasable):
                _log.warning("%s. The record is erased: open alerts are sent again", error)
                self._consensus.erase(RECORD_KEY)

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


def _without_begins(record: WatchRecord, alerts: Collection[tuple[str, str]]) -> WatchRecord:
    """Drop what is unsent of these alerts (shard, condition), but for their ends."""
    unsent = tuple(
        each
        for each in record.unsent
        if each.kind != "alert" or each.is_resolved or (each.shard, each.what) not in alerts
    )
    return replace(record, unsent=unsent)
