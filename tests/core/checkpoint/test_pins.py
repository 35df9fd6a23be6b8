"""Pins keep a checkpoint and the history that a restore to it reads; retention keeps only what the history reaches."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.pins import pin, unpin
from persist_core.errors import CheckpointNotFound, Indeterminate, OutsideFrontiers
from persist_core.inspection.holders import list_holders, release
from tests.core.checkpoint.checkpointed_shard import KEEP_ALL, KEEP_ONE, Crashing, Shard

MOST_CALLS = 60


def shard_of(commits: int, blob: Crashing | None = None) -> tuple[Shard, list[str]]:
    shard = Shard(blob)
    return shard, [shard.commit() for _ in range(commits)]


def since_of(shard: Shard, history_ms: int | None) -> int | None:
    shard.client.set_history("s", history_ms)
    return shard.client.advance_since("s").since.time


def test_a_pin_holds_since_and_unpin_lets_it_go() -> None:
    shard, ids = shard_of(8)
    shard.publish()
    pin(shard.client, "s", ids[4])
    seqno = shard.client.state("s").seqno
    pin(shard.client, "s", ids[4])
    assert shard.client.state("s").seqno == seqno
    assert since_of(shard, 1) == 4, "the last time before the upper of the pinned one"
    held = list_holders(shard.client, shard.client.state("s")).held[0]
    assert (held.kind, held.blocks, held.remedy) == ("pin", True, f"persist unpin s {ids[4]}")
    with pytest.raises(OutsideFrontiers, match="takes the history since 3, and the shard can be read from since 4 on"):
        pin(shard.client, "s", ids[3])
    assert shard.checkpointer.pinned() == {ids[4]}
    shard.publish()
    assert shard.checkpointer.list_checkpoints() == [ids[4], ids[7]]
    assert unpin(shard.client, "s", ids[4])
    assert not unpin(shard.client, "s", ids[4])
    assert since_of(shard, 1) == 7


@pytest.mark.parametrize(("history_ms", "kept"), [(None, 8), (100, 8), (4, 5), (1, 2), (0, 1)])
def test_retention_keeps_what_the_history_reaches_back_to(history_ms: int | None, kept: int) -> None:
    shard, ids = shard_of(8)
    shard.publish()
    shard.client.set_history("s", history_ms)
    shard.publish(KEEP_ALL)
    # upper - history is the first time that is kept; a restore reads from the time before the checkpoint's upper on
    expected = ids if history_ms is None or history_ms > 8 else ids[8 - max(1, history_ms) :]
    assert shard.checkpointer.list_checkpoints() == expected[-kept:]
    since = shard.client.advance_since("s").since.time
    assert since is not None
    for manifest in shard.checkpointer.listing().manifests:
        assert manifest.upper is not None
        assert since <= manifest.upper - 1, "every retained checkpoint can be restored"


def test_holders_are_described_by_one_listing_of_pins() -> None:
    shard, ids = shard_of(4)
    shard.publish()
    for checkpoint_id in ids:
        pin(shard.client, "s", checkpoint_id)
    blob = shard.client.blob
    with patch.object(blob, "list_keys_and_metadata", wraps=blob.list_keys_and_metadata) as listed:
        found = list_holders(shard.client, shard.client.state("s")).held
    assert [held.about for held in found if held.kind == "pin"] == ["a restore to this pinned checkpoint"] * 4
    assert [call.args for call in listed.call_args_list].count(("s/checkpoints/",)) == 1


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_pin_that_died_anywhere_is_completed_or_ended(is_late: bool) -> None:
    for action in (pin, unpin):
        for crash_at in range(MOST_CALLS):
            blob = Crashing()
            shard, ids = shard_of(3, blob)
            shard.publish()
            if action is unpin:
                pin(shard.client, "s", ids[1])
            blob.arm(crash_at, is_late=is_late)
            try:
                action(shard.client, "s", ids[1])
            except Indeterminate:
                blob.is_armed = False
            else:
                break
            if action is pin and shard.checkpointer.pinned():
                assert since_of(shard, 0) == 1, "whatever is marked as pinned is held"
            action(shard.client, "s", ids[1])
            assert shard.checkpointer.pinned() == ({ids[1]} if action is pin else set())
            assert since_of(shard, 0) == (1 if action is pin else 2)
        assert 0 < crash_at < MOST_CALLS - 1


def test_an_unpin_during_a_pin_leaves_no_mark_without_a_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard, ids = shard_of(3)
    shard.publish()
    marked, times = Checkpointer.pin, 0

    def mark(checkpointer: Checkpointer, checkpoint_id: str) -> None:
        nonlocal times
        times += 1
        if times <= 2:
            assert unpin(shard.client, "s", checkpoint_id)
        marked(checkpointer, checkpoint_id)

    monkeypatch.setattr(Checkpointer, "pin", mark)
    pin(shard.client, "s", ids[1])
    assert times == 3
    assert shard.checkpointer.pinned() == {ids[1]}
    assert since_of(shard, 0) == 1


def test_a_hold_of_a_pin_that_is_not_there_can_be_released() -> None:
    shard, ids = shard_of(3)
    shard.publish()
    pin(shard.client, "s", ids[1])
    shard.checkpointer.unpin(ids[1])
    held = list_holders(shard.client, shard.client.state("s")).held[1]
    assert (held.kind, held.about) == ("pin", "left by a pin that was not completed")
    release(shard.client, "s", f"pin/{ids[1]}", by="me", reason="not completed")
    assert since_of(shard, 0) == 2


def test_what_is_not_there_is_not_pinned_and_holds_nothing() -> None:
    shard, ids = shard_of(3)
    shard.publish()
    shard.checkpointer.delete_checkpoint(ids[0])
    with pytest.raises(CheckpointNotFound, match=f"shard s has no checkpoint {ids[0]}"):
        pin(shard.client, "s", ids[0])
    assert not shard.client.state("s").holds


def test_retention_looks_for_pins_once_for_many_checkpoints() -> None:
    """A look lists all checkpoints, and reads the chains of pinned ones. Each checkpoint deleted cost two of them."""

    def calls(doomed: int, pins: int) -> tuple[int, int]:
        blob = Crashing()
        shard, ids = shard_of(doomed + pins + 1, blob)
        shard.publish()
        for checkpoint_id in ids[:pins]:
            shard.checkpointer.pin(checkpoint_id)
        looks = 0

        class Counting(Checkpointer):
            def pinned(self) -> frozenset[str]:
                nonlocal looks
                looks += 1
                return super().pinned()

        with patch("persist_core.checkpoint.publish.Checkpointer", Counting):
            blob.calls = 0
            assert len(shard.publish(KEEP_ONE).deleted) == doomed
        return looks, blob.calls

    few, many, few_of_pinned, many_of_pinned = calls(2, 0), calls(6, 0), calls(2, 3), calls(6, 3)
    assert few[0] == many[0] == 2
    assert many_of_pinned[1] - few_of_pinned[1] == many[1] - few[1], "the chains of the pinned ones are not read again"
