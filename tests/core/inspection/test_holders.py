"""`persist holds` and `persist release`, as functions: who holds a shard's history, and who may end what."""

from __future__ import annotations

import pytest

from persist_core.errors import InvalidInput, LeaseExpired
from persist_core.frontier import Frontier
from persist_core.inspection.holders import list_holders, release
from persist_core.keys import fork_key
from persist_core.location.consensus import VersionedData
from persist_core.maintenance.drop import drop
from persist_core.protocol.fork_records import record_fork
from tests.core.protocol.test_view_protocol import World, world

__all__ = ["world"]  # the fixture


def kinds(world: World, shard: str) -> list[tuple[str, str, int | None, bool]]:
    found = list_holders(world.client, world.client.state(shard)).held
    return [(held.kind, held.holder, held.since, held.blocks) for held in found]


def test_all_history_is_held_by_nothing_but_itself(world: World) -> None:
    found = list_holders(world.client, world.client.state("a"))
    assert (found.history, found.history_ms, found.history_start, found.since, found.upper) == ("all", None, 0, 0, 10)
    (held,) = found.held
    assert (held.kind, held.blocks, held.about) == (
        "history",
        False,
        "everything is kept: stored bytes grow with every change",
    )


def test_holders_are_listed_with_what_ends_them(world: World) -> None:
    world.refresh()
    reader = world.client.open_leased_reader("a", lease_ms=50)
    reader.heartbeat(Frontier(3))
    world.client.open_since("a", "program", since=Frontier(5))
    world.client.set_history("a", 4)
    found = list_holders(world.client, world.client.state("a"))
    assert (found.history, found.history_start) == ("0 seconds", 6)
    by_kind = {held.kind: held for held in found.held}
    assert [(held.kind, held.since, held.blocks) for held in found.held] == [
        ("view", 0, True),
        ("lease", 3, True),
        ("hold", 5, True),
        ("history", 6, False),
    ]
    now_ms = world.client.clock.now_ms()
    assert by_kind["view"].about.startswith("a view, refreshed as of 6")
    assert by_kind["view"].remedy == "refresh the view: persist run v"
    assert (by_kind["lease"].from_ms, by_kind["lease"].expires_ms) == (now_ms, now_ms + 50)
    assert by_kind["lease"].remedy == f"persist release a {by_kind['lease'].holder} --reason TEXT"
    assert world.client.advance_since("a").since == Frontier(0)


def test_a_damaged_view_or_replay_hides_no_other_holder(world: World) -> None:
    world.refresh()
    client, consensus = world.client, world.client.location.consensus
    client.open_since("a", "program")
    record_fork(client.blob, "a~reprocess", ["a/batches/x"], checkpoint_id="", made_ms=1, eras=lambda _: 0)
    for name in ("v", "a~reprocess"):
        seqno = client.ensure_shard(name).seqno
        consensus.compare_and_set(name, seqno, VersionedData(seqno + 1, b"rotten"))
    said = {held.holder: held.about for held in list_holders(client, client.state("a")).held}
    assert said["program"] == "a program"
    assert said["view/v"].startswith("a view whose state can't be read: version ")
    assert said["a~reprocess"].startswith("shares files, and its state can't be read: version ")
    with pytest.raises(InvalidInput, match=r"state of shard v is damaged.*--force ends the hold now"):
        release(client, "a", "view/v", by="me", reason="it is damaged")
    assert release(client, "a", "view/v", by="me", reason="it is damaged", is_forced=True).holder == "view/v"


def test_the_hold_of_a_live_view_is_ended_by_force_only(world: World) -> None:
    world.mint()
    for done in ("minted", "refreshed"):
        with pytest.raises(InvalidInput, match=r"view v still reads shard a.*persist run v.*--force"):
            release(world.client, "a", "view/v", by="me", reason=done)
        if done == "minted":
            world.refresh()
    release(world.client, "a", "view/v", by="me", reason="testing", is_forced=True)
    assert world.held("a") == {}
    world.append("a", 20, 3)
    world.append("b", 20, 3)
    world.refresh()
    assert world.held("a") == {"view/v": 0}, "the next refresh holds again"


def test_the_hold_of_a_view_that_is_gone_is_ended(world: World) -> None:
    world.refresh()
    world.client.open_since("a", "view/never-made")
    world.append("a", 20, 3)
    world.client.open_since("a", "view/other")
    world.refresh(name="other", query="SELECT * FROM b", inputs=["b"])
    world.client.set_history("a", 0)
    for view in ("never-made", "other"):
        gone = next(
            held for held in list_holders(world.client, world.client.state("a")).held if held.holder == f"view/{view}"
        )
        assert (gone.kind, gone.about) == ("view", "the view is gone")
        record = release(world.client, "a", f"view/{view}", by="me@host", reason="gone")
        assert release(world.client, "a", f"view/{view}", by="you", reason="again") == record
    assert kinds(world, "a") == [("view", "view/v", 0, True), ("history", "history", 19, False)]
    drop(world.client, "v")
    world.client.open_since("a", "view/v")  # as if its last mint had been slower
    release(world.client, "a", "view/v", by="me", reason="dropped")
    assert world.client.advance_since("a").since == Frontier(19)
    assert [each.holder for each in list_holders(world.client, world.client.state("a")).released] == [
        "view/never-made",
        "view/other",
        "view/v",
    ]


def test_a_damaged_record_of_a_fork_is_named_and_hides_no_holder(world: World) -> None:
    key = fork_key("a", "copy", "0" * 64)
    world.client.blob.set(key, b"{}")
    world.client.open_since("a", "program", since=Frontier(0))
    found = {held.kind: held for held in list_holders(world.client, world.client.state("a")).held}
    assert set(found) == {"history", "hold", "fork"}
    assert found["fork"].holder == "copy"
    assert key in found["fork"].about
    assert "GC deletes nothing" in found["fork"].about
    assert found["fork"].remedy == f"persist fsck a; copy {key} back"


def test_a_reader_whose_lease_was_ended_is_told_by_whom(world: World) -> None:
    reader = world.client.open_leased_reader("a", lease_ms=10_000)
    lease = list_holders(world.client, world.client.state("a")).held[1]
    record = release(world.client, "a", lease.holder, by="me@host", reason="its program was killed")
    assert (record.by, record.since, record.released_ms) == ("me@host", 0, world.client.clock.now_ms())
    with pytest.raises(LeaseExpired, match=r"was released by me@host at .*its program was killed.*open a new reader"):
        reader.snapshot()


@pytest.mark.parametrize("holder", ["history", "nobody", "view/nobody", "pin/nothing"])
def test_what_holds_nothing_cannot_be_ended(world: World, holder: str) -> None:
    state = world.client.state("a")
    with pytest.raises(InvalidInput, match=r"has no lease and no hold .*`persist holds a` lists them"):
        release(world.client, "a", holder, by="me", reason="x")
    assert world.client.state("a") == state
