"""kill -9 of a copier at any of its calls, over real stores, beside appends, merges and GC of the source.

The next copier ends the copy. Until then a reader of the target sees a state of the source.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.fsck import fsck
from tests.core.gc.test_kills import SHARD, make_garbage
from tests.core.maintenance.copies import PAIRS, check_equal, copy_all, keys_of, uris_of
from tests.dying_store import DyingStore, kill_process
from tests.sampling import sample
from tests.sim.simulator.reachable import reachable

KILLS = {"dev": 5, "ci": 5, "nightly": 60}
MAX_CALLS = 90  # a copier makes some 80 to 120 calls here
REAL_PAIRS = [pair for pair in PAIRS if "mem" not in pair]


def copy_and_die(source: PersistLocation, target: PersistLocation, at: int, is_late: bool, is_move: bool) -> None:
    """The child's work."""
    calls = [0]

    def dying(store: Any) -> Any:
        return DyingStore(store, calls, at, is_late=is_late, die=kill_process)

    with open_location(source) as here, open_location(target) as there:
        clients = [
            PersistClient(OpenLocation(dying(each.blob), dying(each.consensus)), fetch_threads=1)
            for each in (here, there)
        ]
        Copier(*clients, threads=1).copy([SHARD], is_move=is_move)


@pytest.mark.parametrize("pair", sample(REAL_PAIRS, 1, "killed copies"))
def test_a_copy_killed_at_any_call_is_ended_by_another(
    pair: str, tmp_path: Path, request: pytest.FixtureRequest, persist_seed: int
) -> None:
    chance = random.Random(persist_seed)
    kind, _, other = pair.partition(" to ")
    source, target = uris_of(kind, tmp_path / "a", request), uris_of(other, tmp_path / "b", request)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # so that a child does not import everything again
    killed = 0
    days = KILLS[settings.get_current_profile_name()]
    with open_location(source) as here, open_location(target) as there:
        ours, theirs = PersistClient(here), PersistClient(there)
        states: list[dict[int, str]] = [make_garbage(ours, 1)]
        for day in range(2, 2 + days):
            is_move = day == 1 + days  # the last one
            at, is_late = chance.randrange(1, MAX_CALLS), chance.random() < 0.5
            child = context.Process(target=copy_and_die, args=(source, target, at, is_late, is_move))
            child.start()
            if not is_move:
                states.append(make_garbage(ours, day))
                collect(ours, SHARD, grace_ms=0, intent_ms=0)
            child.join(120)
            assert child.exitcode in (0, -signal.SIGKILL), (day, at, is_late)
            killed += child.exitcode != 0
            if theirs.machine.fetch(SHARD) is not None:
                found = theirs.open_reader(SHARD).snapshot().to_pylist()
                assert {row["id"]: row["name"] for row in found} in states
            if chance.random() < 0.5:
                copy_all(ours, theirs)
                assert {each for each in fsck(theirs, SHARD).violations if each.check != "latest"} == set()
        copy_all(ours, theirs, is_move=True)
        check_equal(ours, theirs, SHARD)
        assert copy_all(ours, theirs)[SHARD].objects == 0
        for _ in range(4):
            collect(theirs, SHARD, grace_ms=0, intent_ms=0)
        needed = reachable(there.blob, there.consensus, SHARD)
        assert keys_of(theirs, SHARD).keys() == needed
        make_garbage(theirs, 2 + days)
        check_equal(theirs, theirs, SHARD)
    assert killed >= days // 3
