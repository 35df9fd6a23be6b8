"""Notices that tasks make themselves: of a lost append, and of a task that failed for good.

    conflict, failure -> notice -> the location's record -> the notifiers; what is not taken, `persist_watch` sends

The record of a conflict is keyed by the description that lost, so a second try finds it there. A marker beside it says
that it was announced. It is written last: if a worker is killed in between, that is done twice, not never.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from persist_airflow.compat import Context
from persist_airflow.hook import PersistHook
from persist_airflow.notifications import NotifyBy, takes, targets
from persist_airflow.options import RETRY, TASK_IDS
from persist_core.alerts.board import WatchBoard
from persist_core.alerts.deliver import Target, deliver, send
from persist_core.alerts.record import Notice
from persist_core.alerts.words import alert_key, make_notice
from persist_core.clock import SystemClock
from persist_core.handles.client import PersistClient
from persist_core.keys import conflict_alert_key
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.time_text import format_time, show_time

MAX_ERROR_CHARS = 1_500  # of the error of a task; its log has all
UNKNOWN = "not known: the process of the task ended"
_COMMITTED = "It may have committed: `persist commits` lists what was."  # then the store failed, or the process ended

_log = logging.getLogger(__name__)


def announce_conflict(
    client: PersistClient, record: ConflictRecord, notify: Sequence[NotifyBy], context: Context, *, guide: str
) -> bool:
    """Send the notice of a conflict; False if that was done before.

    If a notifier fails, that is logged, and the conflict is healed: `persist_watch` tries the notifier again.
    """
    marker = conflict_alert_key(record.shard, record.conflict_id)
    if client.blob.get(marker) is not None:
        return False
    if takes(notify, "conflicts"):
        _send(client, conflict_notice(record, guide=guide), targets(notify, context))
    client.blob.set(marker, json.dumps({"alerted_ms": client.clock.now_ms()}).encode())
    return True


def conflict_notice(record: ConflictRecord, *, guide: str) -> Notice:
    found = show_time(record.found_upper)
    facts = (
        ("expected upper", show_time(record.expected_upper)),
        ("found upper", found),
        ("lost", record.loser),
        ("won", record.winner or "an older commit"),
        ("detected", format_time(record.detected_ms)),
    )
    return make_notice(
        f"{record.shard}: an append lost to another writer. Nothing is lost: it is minted again.",
        facts,
        command=f"persist conflicts {record.shard}",
        section="conflicts",
        kind="conflict",
        key=alert_key(record.shard, f"conflict/{record.conflict_id}"),
        notice_id=alert_key(record.shard, f"conflict/{record.conflict_id}"),
        shard=record.shard,
        what="conflict",
        level="warn",
        at_ms=record.detected_ms,
        since_ms=record.detected_ms,
        guide=guide,
    )


class AnnounceFailure:
    """An `on_failure_callback` of the tasks of shards: it sends a notice of the failure of each.

    :param notify: the notifiers of each shard
    :param shards: which have failed if the error has no `failed`; default: all of `notify`
    :param guide: where notices find the operations guide; default: `docs/operations.md`
    """

    def __init__(
        self, notify: Mapping[str, Sequence[NotifyBy]], shards: Sequence[str] | None = None, *, guide: str = ""
    ) -> None:
        self.guide = guide
        self.notify = {shard: tuple(each) for shard, each in notify.items()}
        self.shards = tuple(notify if shards is None else shards)

    def __call__(self, context: Context) -> None:
        """Send. From the first shard on for which the location fails, the notifiers are called without its record."""
        task: Any = context["task"]
        error: Any = context.get("exception")
        said = None if error is None else f"{type(error).__name__}: {error}"
        failed: Mapping[str, str | None] = getattr(error, "failed", None) or dict.fromkeys(self.shards, said)
        announced = {shard: self.notify[shard] for shard in failed if takes(self.notify.get(shard, ()), "failures")}
        client: PersistClient | None = None
        is_reachable, now_ms = True, SystemClock().now_ms()
        try:
            for shard, notify in announced.items():
                notice = failure_notice(shard, failed[shard], context, now_ms=now_ms, guide=self.guide)
                by = targets(notify, context)
                try:
                    if is_reachable:
                        client = client or PersistHook(task.persist_conn_id).get_conn()
                        _send(client, notice, by)
                except Exception as unreachable:  # noqa: BLE001 - a failure is announced, whatever fails here too
                    _log.warning("failures are announced without the record of the location: %s", unreachable)
                    is_reachable = False
                if not is_reachable:
                    for target in by:
                        if target.accepts(notice):
                            send(target, notice, [])
        finally:
            if client is not None:
                client.location.close()


def failure_notice(shard: str, error: str | None, context: Context, *, now_ms: int, guide: str = "") -> Notice:
    """The notice of a task that has failed for a shard and is not tried again."""
    ti: Any = context["ti"]
    said = UNKNOWN if error is None else error
    may_commit = ti.task_id.rpartition(".")[2] in (TASK_IDS[2], RETRY)
    name = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}"
    log_url = getattr(ti, "log_url", None)
    facts = (
        ("dag run", f"{ti.dag_id} {ti.run_id}"),
        ("error", said[:MAX_ERROR_CHARS]),
        ("try", str(ti.try_number)),
        *((("log", log_url),) if log_url else ()),
    )
    return make_notice(
        f"{shard}: task {ti.task_id} failed. {_COMMITTED if may_commit else 'Nothing was committed by it.'}",
        facts,
        command=f"persist describe {shard}",
        section="a-dag-run-failed",
        kind="failure",
        key=alert_key(shard, f"failure/{name}"),
        notice_id=alert_key(shard, f"failure/{name}/{ti.try_number}"),
        shard=shard,
        what=str(ti.task_id),
        level="fail",
        at_ms=now_ms,
        since_ms=now_ms,
        guide=guide,
    )


def _send(client: PersistClient, notice: Notice, by: Sequence[Target]) -> None:
    """Keep the notice, and send it. Raises `PersistError` if it cannot be kept; then it was not sent."""
    board = WatchBoard(client)
    board.post(notice)
    try:
        failures = deliver(board, lambda _: by, only=[notice.notice_id]).failures
    except Exception as error:  # noqa: BLE001 - it is kept, so it must not be sent without the record too
        failures = (f"{notice.subject!r}: {error}",)
    for failure in failures:
        _log.error("%s. It is kept, and persist_watch sends it", failure)
