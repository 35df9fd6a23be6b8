"""The record of a location about its alerts: which are open, and which notices are not sent yet.

It is one value in consensus, under a key that no shard can have. Shards for which nothing is to be remembered are not
in it, so a watcher that finds nothing new writes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from persist_core.config.thresholds import Level
from persist_core.sealed import Sealed

RECORD_KEY = "_watch"  # starts with "_", so no shard can have this name
MAX_UNSENT_OF_ONE_KEY = 8  # then the oldest is dropped: the newest one says how it is
MAX_EVENTS = 2_000  # conflicts and failed tasks of a location that are unsent, about 2 MB; then the oldest is dropped

NoticeKind = Literal["alert", "conflict", "failure"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Acknowledged:
    by: str
    at_ms: int
    reason: str


@dataclass(frozen=True)
class Alert:
    """A condition that is not as it should be. `level` is the highest since it was opened.

    `value` and `limit` are from when `level` was reached: ms or a count. `since_ms` is when the condition crossed its
    first threshold, as far as is known. `is_silent`: users were notified of `warn` alone.
    """

    level: Level
    value: int
    limit: int
    since_ms: int
    acknowledged: Acknowledged | None = None
    is_silent: bool = False


@dataclass(frozen=True)
class LastCheck:
    """The result of the last fsck of a shard. `finding` is the first one."""

    checked_ms: int
    findings: int
    finding: str = ""


@dataclass(frozen=True)
class ShardWatch:
    """The memory of one shard: open alerts by condition, the last fsck, who watches it.

    `unwritten_ms` and `stash_ms` say since when a watcher has seen it without a commit, and with a stash.
    """

    alerts: Mapping[str, Alert] = field(default_factory=dict)
    check: LastCheck | None = None
    watcher: str = ""
    unwritten_ms: int | None = None
    stash_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.alerts and self.check is None and self.unwritten_ms is None and self.stash_ms is None


@dataclass(frozen=True)
class Notice:
    """One message to people, and who has it. Its texts are complete: nothing else is needed to send it.

    `key` is the same for all notices of one alert, from its first to its end (PagerDuty's deduplication key). `what` is
    the condition, `conflict`, or the task that failed. `level` is the alert's; of a resolved alert, the highest
    sent. `delivered` names the notifiers that have taken it. A watcher that sends it holds it until `claimed_until_ms`.
    """

    notice_id: str
    key: str
    kind: NoticeKind
    shard: str
    what: str
    level: Level
    is_resolved: bool
    at_ms: int
    since_ms: int
    subject: str
    text: str
    command: str
    guide: str
    value: int | None = None
    limit: int | None = None
    delivered: tuple[str, ...] = ()
    claimed_by: str | None = None
    claimed_until_ms: int = 0

    def is_held(self, *, now_ms: int) -> bool:
        return self.claimed_by is not None and now_ms < self.claimed_until_ms


@dataclass(frozen=True)
class WatchRecord(Sealed):
    """Everything that is remembered about a location. `unsent`: in the order in which they are tried. One that was not
    taken goes to the end, with all of its key in their order. `write_id` makes the bytes of every version unique."""

    KIND = "watch"

    shards: Mapping[str, ShardWatch] = field(default_factory=dict)
    unsent: tuple[Notice, ...] = ()
    write_id: str = field(default="", compare=False)

    def of(self, shard: str) -> ShardWatch:
        return self.shards.get(shard, ShardWatch())

    def with_shard(self, shard: str, watch: ShardWatch) -> WatchRecord:
        return self.with_shards({shard: watch})

    def with_shards(self, watches: Mapping[str, ShardWatch]) -> WatchRecord:
        if all(watch == self.of(shard) for shard, watch in watches.items()):
            return self
        shards = {**self.shards, **watches}
        return replace(self, shards={shard: watch for shard, watch in shards.items() if not watch.is_empty})

    def with_notices(self, *notices: Notice) -> WatchRecord:
        """The record with more notices to send; known ids are not added again."""
        known = {each.notice_id for each in self.unsent}
        new = [each for each in notices if each.notice_id not in known]
        return replace(self, unsent=_bounded((*self.unsent, *new))) if new else self

    def with_moved(self, shard: str, before: WatchRecord) -> WatchRecord:
        """The record with what the record of the place that the shard was moved from has of it, unsent notices too."""
        after = self.with_shard(shard, before.of(shard)) if self.of(shard).is_empty else self
        return after.with_notices(*(each for each in before.unsent if each.shard == shard))

    def without_shard(self, shard: str) -> WatchRecord:
        """The record without the shard: its alerts, its last fsck and what is not sent of them."""
        unsent = tuple(each for each in self.unsent if each.shard != shard)
        return replace(self.with_shard(shard, ShardWatch()), unsent=unsent)


def _bounded(notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """Drop the oldest of a key that has too many, and of events: a location has only so many alerts."""
    newest: Counter[str] = Counter()
    events = 0
    kept = []
    for notice in reversed(notices):
        newest[notice.key] += 1
        events += notice.kind != "alert"
        if notice.kind != "alert" and events > MAX_EVENTS:
            _log.warning("never sent, since %d newer ones wait: %s", MAX_EVENTS, notice.subject)
        elif newest[notice.key] <= MAX_UNSENT_OF_ONE_KEY:
            kept.append(notice)
    return tuple(reversed(kept))
