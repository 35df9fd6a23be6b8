"""The record of alerts under several watchers: each change is noticed once, each notice is sent once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.alerts.board import CLAIM_MS, VERSIONS_KEPT, WatchBoard
from persist_core.alerts.conditions import Health
from persist_core.alerts.deliver import MAX_FAILURES, Delivered, Target, deliver
from persist_core.alerts.record import (
    MAX_EVENTS,
    MAX_UNSENT_OF_ONE_KEY,
    RECORD_KEY,
    Notice,
    NoticeKind,
    ShardWatch,
    WatchRecord,
)
from persist_core.alerts.words import make_notice
from persist_core.config.thresholds import Threshold
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.drop import drop
from persist_core.maintenance.fsck import fsck
from persist_core.sealed import seal
from tests.suites.faults import Outcome, ScriptedFaults, UnreliableConsensus
from tests.virtual import ManualClock

NOW = 1_800_000_000_000
RULES = {"fruit": {"errors": Threshold(warn=1, fail=10)}}


@pytest.fixture
def client() -> Iterator[PersistClient]:
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        yield PersistClient(opened, ManualClock(NOW))


def errors(count: int) -> Mapping[str, Health]:
    return {"fruit": Health("fruit", has_commit=True, upper=NOW, errors=count)}


def look(client: PersistClient, count: int, **options: Any) -> list[str]:
    notices = WatchBoard(client).turn(RULES, lambda: errors(count), **options)
    return ["resolved" if each.is_resolved else each.level for each in notices]


class Sink:
    """A target that keeps what it was sent, and fails if it is asked to."""

    def __init__(self, name: str = "sink") -> None:
        self.sent: list[str] = []
        self.is_down = False
        self.on_send: Callable[[], object] = lambda: None
        self.target = Target(name, lambda _: True, self._send)

    def _send(self, notice: Notice) -> None:
        self.on_send()
        if self.is_down:
            raise ConnectionError("no answer")
        self.sent.append("resolved" if notice.is_resolved else notice.level)


def fail_all(client: PersistClient, shards: Iterable[str]) -> None:
    facts = {shard: Health(shard, has_commit=True, upper=NOW, errors=99) for shard in shards}
    WatchBoard(client).turn(dict.fromkeys(facts, RULES["fruit"]), lambda: facts)


def send(client: PersistClient, *sinks: Sink) -> Delivered:
    return deliver(WatchBoard(client), lambda _: [sink.target for sink in sinks])


def notice_of(kind: NoticeKind, key: str) -> Notice:
    return make_notice(
        "fruit lost", (), command="persist conflicts fruit", section="conflicts", kind=kind, key=key,
        notice_id=key, shard="fruit", what=key, level="warn", at_ms=NOW, since_ms=NOW, guide="",
    )  # fmt: skip


def test_a_quiet_turn_writes_nothing(client: PersistClient) -> None:
    assert look(client, 0) == []
    assert client.location.consensus.head(RECORD_KEY) is None
    assert look(client, 1) == ["warn"]
    head = client.location.consensus.head(RECORD_KEY)
    assert look(client, 2) == []
    assert client.location.consensus.head(RECORD_KEY) == head
    assert client.shards() == []


def test_one_alert_one_resolved(client: PersistClient) -> None:
    sink = Sink()
    for count in (0, 1, 4, 12, 3, 0, 0):
        look(client, count)
        send(client, sink)
    assert sink.sent == ["warn", "fail", "resolved"]
    assert WatchBoard(client).read() == WatchRecord()


def test_facts_of_a_slow_watcher_do_not_undo_newer_ones(client: PersistClient) -> None:
    """It reads its facts again, because the record has changed since."""
    looks = iter([5, 0])
    said: list[str] = []

    def slow() -> Mapping[str, Health]:
        count = next(looks)
        if count:  # while it looks, another one finds the same, sends it, and finds that it is resolved
            said.extend([*look(client, 5), *look(client, 0)])
        return errors(count)

    assert WatchBoard(client).turn(RULES, slow) == ()
    assert said == ["warn", "resolved"]


@given(st.data())
def test_two_watchers_say_each_change_once(data: st.DataObject) -> None:
    """Turns and deliveries of two watchers, nested in each other at random; sends may fail, but no watcher dies."""
    with OpenLocation(MemBlob(), MemConsensus()) as opened:
        client = PersistClient(opened, ManualClock(NOW))
        sink = Sink()
        truth = 0

        def step(depth: int) -> None:
            nonlocal truth
            kind = data.draw(st.sampled_from(["turn", "deliver", "change"]))
            if kind == "change":
                truth = data.draw(st.sampled_from([0, 3, 20]))
            elif kind == "turn":

                def gather() -> Mapping[str, Health]:
                    found = errors(truth)
                    if depth < 3 and data.draw(st.booleans()):
                        step(depth + 1)
                    return found

                WatchBoard(client).turn(RULES, gather)
            else:
                nested = depth < 3 and data.draw(st.booleans())
                before, sink.on_send = sink.on_send, (lambda: step(depth + 1)) if nested else (lambda: None)
                sink.is_down = data.draw(st.booleans())
                send(client, sink)
                sink.on_send = before

        for _ in range(data.draw(st.integers(1, 8))):
            step(0)
        sink.is_down, sink.on_send = False, lambda: None
        for count in (truth, 0):
            WatchBoard(client).turn(RULES, functools.partial(errors, count))
            send(client, sink)
        assert WatchBoard(client).read() == WatchRecord()
        rounds = " ".join(sink.sent).split("resolved")
        assert all(each.split() in (["warn"], ["fail"], ["warn", "fail"]) for each in rounds[:-1]), sink.sent
        assert rounds[-1] == ""


def test_a_lost_answer_is_not_a_second_notice(client: PersistClient) -> None:
    faults = ScriptedFaults(compare_and_set=[Outcome.LOST_ANSWER, Outcome.LOST_ANSWER])
    unreliable = UnreliableConsensus(client.location.consensus, faults)
    shaky = PersistClient(OpenLocation(client.blob, unreliable), client.clock)
    assert look(shaky, 3) == ["warn"]
    sink = Sink()
    send(shaky, sink)
    send(shaky, sink)
    assert sink.sent == ["warn"]


def test_what_a_notifier_did_not_take_is_sent_again_to_it_alone(client: PersistClient) -> None:
    good, bad = Sink("good"), Sink("bad")
    bad.is_down = True
    look(client, 3)
    done = send(client, good, bad)
    assert done.sent == 0
    assert done.failures == ("bad did not take '[warn] fruit: errors alive': ConnectionError: no answer",)
    look(client, 0)
    assert send(client, good, bad).failures != ()
    assert (good.sent, bad.sent) == (["warn", "resolved"], [])
    bad.is_down = False
    assert send(client, good, bad).failures == ()
    assert (good.sent, bad.sent) == (["warn", "resolved"], ["warn", "resolved"])


def test_a_notifier_that_is_down_is_not_tried_for_each_notice(client: PersistClient) -> None:
    bad = Sink()
    bad.is_down = True
    fail_all(client, [f"shard{n}" for n in range(9)])
    assert len(send(client, bad).failures) == MAX_FAILURES
    bad.is_down = False
    assert send(client, bad).sent == 9


@pytest.mark.parametrize("has_services", [False, True])
def test_one_that_is_down_keeps_nothing_from_others(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch, has_services: bool
) -> None:
    """One wrong connection, or as many as shards, all of one name: others are sent, in every turn."""
    monkeypatch.setattr("persist_core.alerts.deliver.MAX_NOTICES", 10)
    count = 15
    down = {f"a{n}": Sink("slack") for n in range(count)}
    for number, sink in enumerate(down.values()):
        sink.is_down = True
        sink.target = replace(sink.target, service=f"team {number}" if has_services else "")
    works, also = Sink("pager"), Sink("slack")
    also.target = replace(also.target, service="payroll")

    def deliver_all() -> Delivered:
        own = {shard: [sink.target] for shard, sink in down.items()}
        return deliver(WatchBoard(client), lambda notice: own.get(notice.shard, [works.target, also.target]))

    fail_all(client, down)
    assert deliver_all().sent == 0
    for turn in range(1, 4):
        fail_all(client, [f"payroll{turn}"])
        assert deliver_all().sent == 1
        assert works.sent == also.sent == ["fail"] * turn
    for sink in down.values():
        sink.is_down = False
    assert deliver_all().sent + deliver_all().sent == count
    assert [sink.sent for sink in down.values()] == [["fail"]] * count


def test_what_was_not_taken_waits_behind_what_was_not_tried(client: PersistClient) -> None:
    """A task may be killed while the first ones hang, at each turn."""
    bad = Sink()
    bad.is_down = True
    fail_all(client, "abcd")
    send(client, bad)
    assert [each.shard for each in WatchBoard(client).read().unsent] == list("cdab")


def test_what_no_target_accepts_is_not_sent_and_not_kept(client: PersistClient) -> None:
    fail_all(client, "ab")
    nothing = Target("pager", lambda _: False, lambda _: None)
    assert deliver(WatchBoard(client), lambda _: [nothing]) == Delivered(0, ())
    assert WatchBoard(client).read().unsent == ()


@pytest.mark.parametrize("count", [MAX_EVENTS - 1, MAX_EVENTS + 500])
def test_each_alert_of_one_turn_is_kept_until_it_is_sent(client: PersistClient, count: int) -> None:
    shards = {f"s{n}" for n in range(count)}
    fail_all(client, shards)
    record = WatchBoard(client).read()
    assert set(record.shards) == {each.shard for each in record.unsent} == shards


def test_events_that_wait_push_out_no_alert(caplog: pytest.LogCaptureFixture) -> None:
    alert = notice_of("alert", "errors")
    events = [notice_of("conflict", f"c{n}") for n in range(MAX_EVENTS + 3)]
    record = WatchRecord().with_notices(alert, *events)
    assert record.unsent == (alert, *events[3:])
    assert len(caplog.records) == 3
    assert "never sent" in caplog.text


def test_a_notifier_that_hangs_keeps_nothing_from_others(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its service may be the one that is down, and its client has no timeout."""
    monkeypatch.setattr("persist_core.alerts.deliver.MAX_SECONDS", 0.05)
    hangs, other, ended = Sink("hangs"), Sink("other"), threading.Event()
    hangs.on_send = ended.wait
    look(client, 1)
    found = send(client, hangs, other)
    assert len(other.sent) == 1
    assert [failure.rpartition(": ")[2] for failure in found.failures] == ["it has not ended after 0.05 s"]
    hangs.on_send = lambda: None
    send(client, hangs, other)
    ended.set()
    assert len(hangs.sent) >= 1
    assert len(other.sent) == 1


def test_another_watcher_sends_again_after_a_death(client: PersistClient) -> None:
    look(client, 3)
    sink = Sink()
    assert WatchBoard(client).claim(lambda *_: True) is not None  # and no more is heard of it
    assert send(client, sink).sent == 0
    look(client, 0)
    assert send(client, sink).sent == 0, "the end waits for the beginning"
    client.clock.sleep_ms(CLAIM_MS)
    send(client, sink)
    assert sink.sent == ["warn", "resolved"]


def test_a_claim_that_has_ended_settles_nothing(client: PersistClient) -> None:
    look(client, 3)
    slow, fast = WatchBoard(client), WatchBoard(client)
    claimed = slow.claim(lambda *_: True)
    assert claimed is not None
    client.clock.sleep_ms(CLAIM_MS)
    assert fast.claim(lambda *_: True) is not None
    slow.settle(claimed[0], ["x"], is_done=True)
    (left,) = fast.read().unsent
    assert left.claimed_by == fast.holder


def test_an_acknowledged_alert_is_silent(client: PersistClient) -> None:
    board, sink = WatchBoard(client), Sink()
    look(client, 3)
    with pytest.raises(InvalidInput, match="no open alert 'freshness'; open: errors"):
        board.acknowledge("fruit", "freshness", by="ann", reason="known")
    with pytest.raises(InvalidInput, match="a reason is expected"):
        board.acknowledge("fruit", "errors", by="ann", reason=" ")
    assert board.acknowledge("fruit", "errors", by="ann", reason="known").of("fruit").alerts["errors"].level == "warn"
    assert look(client, 30) == []
    send(client, sink)
    assert sink.sent == []
    look(client, 0)
    send(client, sink)
    assert sink.sent == ["resolved"]


def test_alerts_of_a_file_that_is_gone_end_silently(client: PersistClient) -> None:
    look(client, 3, watcher="a")
    others = {"other": RULES["fruit"]}
    WatchBoard(client).turn(others, dict, watcher="b")
    assert list(WatchBoard(client).read().shards) == ["fruit"]
    WatchBoard(client).turn(others, dict, watcher="a")
    assert WatchBoard(client).read().shards == {}


@pytest.mark.parametrize("taken", ["", "first", "first last"])
def test_an_alert_that_ended_silently_is_not_sent_later(client: PersistClient, taken: str) -> None:
    """Its file is removed while a notifier is down, and comes back."""
    first, last = Sink("first"), Sink("last")
    look(client, 3, watcher="a")
    first.is_down, last.is_down = "first" not in taken, "last" not in taken
    send(client, first, last)
    WatchBoard(client).turn({}, dict, watcher="a")
    assert WatchBoard(client).read() == WatchRecord()
    first.is_down = last.is_down = False
    assert look(client, 0, watcher="a") == []
    assert send(client, first, last) == Delivered(0, ())
    assert (first.sent, last.sent) == (["warn"] * ("first" in taken), ["warn"] * ("last" in taken))
    assert look(client, 3, watcher="a") == ["warn"]


def test_a_dropped_shard_is_forgotten(client: PersistClient) -> None:
    client.ensure_shard("fruit")
    board = WatchBoard(client)
    board.record_check("fruit", 2, "part: lost")
    look(client, 3)
    assert fsck(client, "fruit").is_clean
    assert client.shards() == ["fruit"]
    drop(client, "fruit")
    assert board.read() == WatchRecord()


def test_the_record_and_its_history_are_bounded(client: PersistClient) -> None:
    for _ in range(2 * VERSIONS_KEPT):
        look(client, 3)
        look(client, 0)
    assert len(client.location.consensus.scan(RECORD_KEY, 0)) <= 2 * VERSIONS_KEPT
    unsent = WatchBoard(client).read().unsent
    assert len(unsent) == MAX_UNSENT_OF_ONE_KEY
    assert unsent[-1].is_resolved


def test_the_record_is_stored_as_any_other_one(client: PersistClient) -> None:
    """`encode` is a faster way to the same bytes."""
    look(client, 3, watcher="a")
    WatchBoard(client).acknowledge("fruit", "errors", by="ann", reason="known")
    WatchBoard(client).record_check("fruit", 2, "part: lost")
    WatchBoard(client).post(notice_of("failure", "k"))
    record = WatchBoard(client).read()
    assert record.encode() == seal(WatchRecord.KIND, WatchRecord.VERSION, asdict(record))
    assert WatchRecord.decode(record.encode()) == record


def test_a_notice_is_posted_once(client: PersistClient) -> None:
    notice = notice_of("conflict", "k")
    board = WatchBoard(client)
    board.post(notice)
    board.post(notice)
    assert board.read().unsent == (notice,)
    assert board.read().of("fruit") == ShardWatch()
