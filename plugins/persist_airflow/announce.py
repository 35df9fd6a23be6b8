"""Notices that tasks make themselves: of a lost append, and of a task that failed for good.

    conflict, failure -> notice -> the location's record -> the notifiers; what is not taken, `persist_watch` sends

The record of a conflict is keyed by the description that lost, so a second try finds it there. A marker beside it says
that it was announced. It is written last: if a worker is killed in between, that is done twice, not never.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from threading import Event
from typing import Any

from persist_airflow.compat import Context
from persist_airflow.hook import open_client
from persist_airflow.notifications import NotifyBy, takes, targets
from persist_airflow.options import RETRY, TASK_IDS
from persist_core.alerts.board import WatchBoard
from persist_core.alerts.deliver import Target, deliver, in_thread, send
from persist_core.alerts.record import Notice
from persist_core.alerts.words import alert_key, make_notice
from persist_core.clock import SystemClock
from persist_core.handles.client import PersistClient
from persist_core.keys import conflict_alert_key
from persist_core.protocol.conflicts import ConflictRecord
from persist_core.time_text import format_time, show_time

MAX_ERROR_CHARS = 1_500  # of the error of a task; its log has all
# Airflow 3 kills the process 20 s after its task has failed (`[core] task_success_overtime`), and then tries a task
# again that is not to be tried again.
CALLBACK_S, STEP_S = 16.0, 5.0  # of all; to keep the notices, and of one notifier for one notice
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
        board, notice = WatchBoard(client), conflict_notice(record, guide=guide)
        board.post(notice)
        _send(board, notice, targets(notify, context))
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
        """Keep the notices of all shards, then send them. If the location fails, or does not answer, the notifiers are
        called without its record. `persist_watch` sends what is kept and was not sent in time."""
        task: Any = context["task"]
        error: Any = context.get("exception")
        said = None if error is None else f"{type(error).__name__}: {error}"
        failed: Mapping[str, str | None] = getattr(error, "failed", None) or dict.fromkeys(self.shards, said)
        now_ms = SystemClock().now_ms()
        made = {
            failure_notice(shard, failed[shard], context, now_ms=now_ms, guide=self.guide): targets(notify, context)
            for shard in failed
            for notify in [self.notify.get(shard, ())]
            if takes(notify, "failures")
        }
        if not made:
            return
        is_kept = Event()
        work = in_thread(partial(_keep_and_send, task.persist_conn_id, made, is_kept), "announce failures")
        with suppress(TimeoutError):
            work.exception(STEP_S)
        if not is_kept.is_set():
            why = work.exception() if work.done() else f"it has not answered after {STEP_S:g} s"
            _log.warning("failures are announced without the record of the location: %s", why)
            _send_unkept(made)
        else:
            with suppress(TimeoutError):
                work.exception(CALLBACK_S - STEP_S)


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


def _keep_and_send(conn_id: str, made: Mapping[Notice, Sequence[Target]], is_kept: Event) -> None:
    with open_client(conn_id) as client:
        board = WatchBoard(client)
        board.post(*made)
        is_kept.set()
        for notice, by in made.items():
            _send(board, notice, by, STEP_S)


def _send_unkept(made: Mapping[Notice, Sequence[Target]]) -> None:
    """Send all at the same time: no one sends later what is not kept."""
    each_s = CALLBACK_S - STEP_S
    tries = [
        in_thread(partial(send, target, notice, [], each_s), f"announce by {target.name}")
        for notice, by in made.items()
        for target in by
        if target.accepts(notice)
    ]
    wait(tries, each_s)


def _send(board: WatchBoard, notice: Notice, by: Sequence[Target], seconds: float | None = None) -> None:
    """Send a notice that is kept."""
    try:
        failures = deliver(board, lambda _: by, only=[notice.notice_id], seconds=seconds).failures
    except Exception as error:  # noqa: BLE001 - it is kept, so it must not be sent without the record too
        failures = (f"{notice.subject!r}: {error}",)
    for failure in failures:
        _log.error("%s. It is kept, and persist_watch sends it", failure)
