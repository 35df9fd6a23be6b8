"""Eras that erasures and copies begin, each before the one before it has lasted for a grace."""

from __future__ import annotations

from persist_core.checkpoint.publish import publish_missing
from persist_core.gc.collect import GRACE_MS, collect
from persist_core.handles.client import PersistClient
from persist_core.keys import batches_prefix, gc_prefix
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.copy import Copier
from persist_core.protocol.fork import fork
from persist_core.shard.eras import begin_era, refuse_earlier
from tests.core.gc.test_kills import SHARD, make_garbage
from tests.virtual import ManualClock, SeededIds

DAYS = 12


def client_at(clock: ManualClock, seed: int) -> PersistClient:
    location = OpenLocation(MemBlob(clock=clock), MemConsensus())
    return PersistClient(location, clock, SeededIds(seed, clock), fetch_threads=1)


def test_eras_that_others_begin_do_not_hold_up_gc() -> None:
    clock = ManualClock(1_700_000_000_000)
    client = client_at(clock, 1)
    marked_ms: dict[str, int] = {}
    for day in range(1, DAYS + 1):
        make_garbage(client, day)
        client.machine.apply(SHARD, refuse_earlier)
        before = {entry.key for entry in client.blob.list_keys_and_metadata(batches_prefix(SHARD))}
        marked_ms.update(dict.fromkeys(before - marked_ms.keys(), clock.now_ms()))
        done = collect(client, SHARD)
        left = {entry.key for entry in client.blob.list_keys_and_metadata(batches_prefix(SHARD))}
        assert all(clock.now_ms() - marked_ms[key] >= GRACE_MS for key in before - left)
        clock.sleep_ms(GRACE_MS)
    assert done.deleted == done.marked > 0
    assert len(list(client.blob.list_keys_and_metadata(gc_prefix(SHARD)))) < DAYS


def test_a_nightly_copy_does_not_hold_up_gc_at_its_target() -> None:
    clock = ManualClock(1_700_000_000_000)
    source, target = client_at(clock, 1), client_at(clock, 2)
    for day in range(1, DAYS + 1):
        make_garbage(source, day)
        source.machine.apply(SHARD, lambda state: begin_era(state, after=state.era, kept=3))  # as its GC does
        Copier(source, target, threads=1).copy([SHARD])
        clock.sleep_ms(GRACE_MS - 60_000)
    assert target.state(SHARD).era == source.state(SHARD).era
    assert target.state(SHARD).oldest_era > DAYS / 2
    assert len(list(target.blob.list_keys_and_metadata(gc_prefix(SHARD)))) < DAYS - 3


def test_a_nightly_copy_of_a_fork_and_its_owner_takes_one_round() -> None:
    """The owner's new state refuses eras at the target; the fork's, which shares files, must not find that."""
    clock = ManualClock(1_700_000_000_000)
    source, target = client_at(clock, 1), client_at(clock, 2)
    make_garbage(source, 1)
    publish_missing(source, source.state(SHARD))
    fork(source, SHARD, source.state(SHARD).commits[-1].checkpoint_id, "a-fork", writer="test")
    for day in range(2, DAYS):
        make_garbage(source, day)
        source.machine.apply(SHARD, lambda state: begin_era(state, after=state.era, kept=3))
        done = {each.shard: each for each in Copier(source, target, threads=1).copy(["a-fork", SHARD])}
        assert (done[SHARD].is_new, done[SHARD].objects > 0) == (True, True), day
        clock.sleep_ms(GRACE_MS - 60_000)
