"""Conflicts and failed tasks as notices: once each, to the notifiers that take them, kept if one fails."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from persist_airflow import announce
from persist_airflow.announce import AnnounceFailure, failure_notice
from persist_airflow.compat import BaseNotifier
from persist_airflow.factory import build_dags, build_upsert_dag
from persist_airflow.failures import PersistCasConflict
from persist_airflow.notifications import Notify, targets
from persist_airflow.operators import told
from persist_core.alerts.board import WatchBoard
from persist_core.alerts.record import Notice
from persist_core.errors import Determinate
from persist_core.handles.client import PersistClient
from persist_core.protocol.conflicts import ConflictRecord, list_conflicts
from persist_core.protocol.stages import Conflict
from tests.airflow.fruit import NAME, Fruit, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_operators import APPEND, WRITE, staged

pytestmark = pytest.mark.airflow_2_11


class Notifier(BaseNotifier):
    """Keeps its messages, after rendering."""

    template_fields = ("message",)
    told: list[str] = []  # noqa: RUF012 - shared on purpose: Airflow copies operators

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message

    def notify(self, context: Any) -> None:
        assert context["persist_alert"]["shard"] == NAME
        self.told.append(self.message)


def test_notifiers_get_each_conflict_once(fruit: Fruit, client: PersistClient) -> None:
    """One that fails changes nothing; what it did not take is kept for `persist_watch`."""
    Notifier.told.clear()
    called: list[str] = []

    def broken(context: Any) -> None:
        called.append(context["persist_alert"]["key"])
        raise ZeroDivisionError

    notifier = Notify(Notifier("{{ persist_alert.text }} {{ run_id }}"), on=("conflicts",))
    dag = build_upsert_dag(fruit.config(), notify=[Notify(broken, on=("conflicts",)), notifier])
    losers = [staged(dag, day, f"loser{day}") for day in (1, 2)]
    DagRunDriver(dag, end_of(0), "winner").run_all()
    for loser in losers:
        with pytest.raises(PersistCasConflict):
            loser.run(APPEND)
    for loser in losers:
        loser.run(APPEND)
    loser.run(APPEND)
    assert len(Notifier.told) == 2
    for day, text in zip((1, 2), Notifier.told, strict=True):
        assert "won: persist_upsert__fruit/winner\n" in text
        assert text.endswith(f" loser{day}")
    assert called == [f"persist/fruit/conflict/{each.conflict_id}" for each in list_conflicts(client.blob, NAME)]
    assert [each.delivered for each in WatchBoard(client).read().unsent] == [("Notifier",)] * 2


def test_a_slow_notifier_changes_nothing_for_others() -> None:
    """One that took too long goes on in its thread, and ends while the next one sends."""
    said: list[str] = []
    has_begun = threading.Event()

    def slow(context: Any) -> None:
        assert has_begun.wait(60)
        said.append(context["persist_alert"]["shard"])

    def quick(context: Any) -> None:
        has_begun.set()
        thread.join(60)
        said.append(context["persist_alert"]["shard"])

    ti: Any = SimpleNamespace(task_id=WRITE, dag_id="d", run_id="r", try_number=1)
    notices = [failure_notice(shard, "bad", {"ti": ti}, now_ms=0) for shard in ("slow", "quick")]
    first, second = targets((slow, quick), {})
    thread = threading.Thread(target=first.send, args=(notices[0],))
    thread.start()
    second.send(notices[1])
    assert said == ["slow", "quick"]


@pytest.mark.parametrize("group", ["", "group: orchard\n"])
def test_messages_name_the_guide_of_the_project(fruit: Fruit, client: PersistClient, group: str) -> None:
    """A failed task and a conflict, by an option or by `persist.yaml`."""
    said: list[str] = []
    notify = Notify(lambda context: said.append(context["persist_alert"]["guide"]), on=("failures", "conflicts"))
    file = fruit.dags / "collections" / f"{NAME}.yaml"
    file.write_text(file.read_text() + group)
    (fruit.dags / "persist.yaml").write_text("watch: {guide: https://wiki/ops}\n")
    for given, expected in (({}, "https://wiki/ops"), ({"guide": "https://own"}, "https://own")):
        options: Any = {"notify": notify, **given}
        dag: Any = next(iter(build_dags(fruit.dags / "collections", **options).values()))
        for task in dag.tasks:
            ti: Any = SimpleNamespace(task_id=task.task_id, dag_id="d", run_id=expected, try_number=1, start_date=None)
            for callback in task.on_failure_callback or ():
                callback({"ti": ti, "task": task, "exception": ValueError("bad")})
        assert len(said) == len(dag.tasks)
        assert set(said) == {f"{expected}#a-dag-run-failed"}
        said.clear()
        append: Any = next(task for task in dag.tasks if task.task_id.endswith(APPEND))
        holder = append.batch if group else append
        record = ConflictRecord(expected[-3:] * 10, NAME, 1, 2, 2, "a", "b", 1, "t", 1)
        told(append, client, Conflict(record, is_new=True), (notify,), {}, holder.guide)
        assert said == [f"{expected}#conflicts"]
        said.clear()


def test_a_single_notifier_gets_conflicts_only_if_asked(fruit: Fruit, client: PersistClient) -> None:
    Notifier.told.clear()
    dag = build_upsert_dag(fruit.config(), notify=Notifier("one"))
    loser = staged(dag, 0, "loser")
    DagRunDriver(dag, end_of(0), "winner").run_all()
    with pytest.raises(PersistCasConflict):
        loser.run(APPEND)
    assert Notifier.told == []
    assert len(list_conflicts(client.blob, NAME)) == 1
    assert WatchBoard(client).read().unsent == ()


def test_a_task_that_fails_for_good_is_announced(
    fruit: Fruit, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the callbacks of `default_args`, and without the location if that is what failed."""
    said: list[Any] = []

    def own(context: Any) -> None:
        said.append(context["run_id"])

    def told(context: Any) -> None:
        said.append(context["persist_alert"])

    dag: Any = build_upsert_dag(fruit.config(), notify=told, default_args={"on_failure_callback": own})
    driver = DagRunDriver(dag, end_of(0), "run_1")
    context: Any = driver.context()
    ti = context["ti"]
    ti.run_id, ti.task_id, ti.try_number, ti.log_url = "run_1", WRITE, 4, "http://localhost/log"
    context |= {"task": dag.get_task(WRITE), "exception": ValueError("too\nbad")}
    for callback in dag.get_task(WRITE).on_failure_callback:
        callback(context)
    assert said[0] == "run_1"
    assert (said[1]["level"], said[1]["what"], said[1]["action"]) == ("fail", WRITE, "trigger")
    assert said[1]["subject"] == "[fail] fruit: task write_batches failed. Nothing was committed by it."
    for line in ("dag run: persist_upsert__fruit run_1", "error: ValueError: too\nbad", "log: http://localhost/log"):
        assert line in said[1]["text"]
    assert WatchBoard(client).read().unsent == ()
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", "nonsense://x")
    dag.get_task(WRITE).on_failure_callback[1](context)
    assert {**said[1], **dict.fromkeys(("at", "since"))} == {**said[2], **dict.fromkeys(("at", "since"))}


@pytest.mark.parametrize(("fails", "sent", "kept"), [("post", "abc", ""), ("claim", "ac", "b"), ("settle", "abc", "b")])
def test_a_location_that_fails_midway_repeats_nothing(
    fails: str, sent: str, kept: str, client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notice is sent, or kept for `persist_watch`, or both if the location failed after it was sent."""
    said: list[str] = []
    real = getattr(WatchBoard, fails)

    def failing(board: WatchBoard, *given: Any, **options: Any) -> Any:
        found = [each for each in board.read().unsent if given[0](each, ())] if fails == "claim" else given
        if "b" in [each.shard for each in found if isinstance(each, Notice)]:
            raise Determinate("the store is away")
        return real(board, *given, **options)

    monkeypatch.setattr(WatchBoard, fails, failing)
    ti = SimpleNamespace(task_id=WRITE, dag_id="d", run_id="r", try_number=1, start_date=None)
    context: Any = {
        "ti": ti,
        "task": SimpleNamespace(persist_conn_id="persist_default"),
        "exception": ValueError("bad"),
    }
    told = [lambda context: said.append(context["persist_alert"]["shard"])]
    AnnounceFailure(dict.fromkeys("abc", told))(context)
    assert "".join(said if kept else sorted(said)) == sent, "what is not kept is sent side by side"
    assert [each.shard for each in WatchBoard(client).read().unsent] == list(kept)


@pytest.mark.parametrize("task_id", ["append_batches", "batch_1.append_batches", "batch_2.retry_failed"])
def test_a_failed_append_may_have_committed(task_id: str) -> None:
    """The store may have failed after the commit, or the process has ended."""
    ti: Any = SimpleNamespace(task_id=task_id, dag_id="d", run_id="r", try_number=1)
    notice = failure_notice("fruit", "ConnectionError", {"ti": ti}, now_ms=0)
    assert "It may have committed" in notice.subject
    assert "Nothing was committed" not in notice.subject


@pytest.mark.parametrize("error", [ConnectionError("no answer"), SystemExit(3)])
def test_a_notifier_that_fails_stops_no_other_one(
    fruit: Fruit, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage that takes the location may take the service of one notifier too; whatever it raises ends it alone."""
    said: list[Any] = []

    def fails(_: Any) -> None:
        raise error

    def told(context: Any) -> None:
        said.append(context["persist_alert"])

    dag: Any = build_upsert_dag(fruit.config(), notify=[fails, told])
    context: Any = DagRunDriver(dag, end_of(0), "run_1").context()
    ti = context["ti"]
    ti.run_id, ti.task_id, ti.try_number, ti.log_url = "run_1", WRITE, 4, "http://localhost/log"
    context |= {"task": dag.get_task(WRITE), "exception": ValueError("bad")}
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", "nonsense://x")
    for callback in dag.get_task(WRITE).on_failure_callback:
        callback(context)
    assert len(said) == 1


def failed_write() -> Any:
    """The context of a write task that has failed."""
    ti = SimpleNamespace(task_id=WRITE, dag_id="d", run_id="r", try_number=1, start_date=None)
    return {"ti": ti, "task": SimpleNamespace(persist_conn_id="persist_default"), "exception": ValueError("bad")}


def test_all_failures_are_kept_before_one_is_sent(client: PersistClient) -> None:
    """Airflow 3 ends the process soon: `persist_watch` then sends the others."""
    kept: list[int] = []
    told = [lambda _: kept.append(len(WatchBoard(client).read().unsent))]
    AnnounceFailure(dict.fromkeys("abc", told))(failed_write())
    assert kept == [3, 2, 1]


@pytest.mark.parametrize("hangs", ["notifier", "store"])
def test_what_hangs_takes_no_others_turn(hangs: str, client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback ends before Airflow ends it, and what was not sent is kept if the store answers."""
    said: list[str] = []
    is_over = threading.Event()
    monkeypatch.setattr(announce, "STEP_S", 0.5)
    if hangs == "store":
        monkeypatch.setattr(WatchBoard, "post", lambda *_: is_over.wait(60))

    def slow(_: Any) -> None:
        assert hangs == "store" or is_over.wait(60)

    def told(context: Any) -> None:
        said.append(context["persist_alert"]["shard"])

    started_ms = client.clock.now_ms()
    try:
        AnnounceFailure({"a": [slow, told]})(failed_write())
        took_ms = client.clock.now_ms() - started_ms
    finally:
        is_over.set()
    assert said == ["a"]
    assert took_ms < 20_000
    assert [each.delivered for each in WatchBoard(client).read().unsent] == [("told",)] * (hangs == "notifier")
