"""kill -9 of GC in mark and in sweep, over real stores: another collector then ends it, and nothing needed is lost."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

from hypothesis import settings

from persist_core.compaction.merge import Merge, merge_here
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from tests.core.world import SCHEMA
from tests.dying_store import DyingStore, kill_process
from tests.plain_commit import commit
from tests.servers.backends import blob_uri_beside, on_each_consensus
from tests.sim.simulator.reachable import reachable
from tests.virtual import ManualClock, SeededIds

KILLS = {"dev": 4, "ci": 6, "nightly": 400}  # a collector makes some 60 calls in mark and sweep
MAX_CALLS = 100
SHARD = "fruit"


def collect_and_die(location: PersistLocation, at: int, is_late: bool) -> None:
    """The child's work: three calls of GC: mark, wait, sweep."""
    calls = [0]
    with open_location(location) as real:
        blob = DyingStore(real.blob, calls, at, is_late=is_late, die=kill_process)
        consensus = DyingStore(real.consensus, calls, at, is_late=is_late, die=kill_process)
        client = PersistClient(OpenLocation(blob, consensus), fetch_threads=1)
        for _ in range(3):
            collect(client, SHARD, grace_ms=0, intent_ms=0)


def make_garbage(client: PersistClient, day: int) -> dict[int, str]:
    """A day's commit and a merge of everything; what the shard holds then."""
    rows = [((1, f"apple {day}"), 10 * day, 1), ((day + 10, "pear"), 10 * day + 1, 1)]
    before = [((1, f"apple {day - 1}"), 10 * day, -1)] if day > 1 else []
    commit(client, SHARD, SCHEMA, 10 * day + 5, [*before, *rows])
    state = client.state(SHARD)
    if len(state.batches) > 1:
        merge_here(client, Merge.of(client, state, state.batches), attempt=client.ids.uuid7())
    return {1: f"apple {day}", **{each + 10: "pear" for each in range(1, day + 1)}}


@on_each_consensus
def test_gc_is_killed_at_any_call_and_another_one_ends_it(
    consensus_uri: str, tmp_path: Path, persist_seed: int
) -> None:
    location = PersistLocation(blob_uri_beside(consensus_uri, tmp_path), consensus_uri)
    ids = SeededIds(persist_seed, ManualClock())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that a child does not import everything again
    killed = 0
    with open_location(location) as opened:
        client = PersistClient(opened)
        make_garbage(client, 1)
        for day in range(2, 2 + KILLS[settings.get_current_profile_name()]):
            wanted = make_garbage(client, day)
            at, is_late = 1 + int(ids.jitter() * MAX_CALLS), ids.jitter() < 0.5
            child = context.Process(target=collect_and_die, args=(location, at, is_late))
            child.start()
            child.join(120)
            assert child.exitcode in (0, -signal.SIGKILL), (day, at, is_late)
            killed += child.exitcode != 0
            found = client.open_reader(SHARD).snapshot().to_pylist()
            assert {row["id"]: row["name"] for row in found} == wanted
        for _ in range(4):
            collect(client, SHARD, grace_ms=0, intent_ms=0)
        left = {entry.key for entry in client.blob.list_keys_and_metadata(f"{SHARD}/")}
        assert left - reachable(client.blob, opened.consensus, SHARD) == set()
        report = fsck(client, SHARD)
        assert report.is_clean, report.violations
        found = client.open_reader(SHARD).snapshot().to_pylist()
        assert {row["id"]: row["name"] for row in found} == wanted
    assert killed >= KILLS[settings.get_current_profile_name()] // 2
