"""Each safety rule of GC is needed: without it, a simulation or a scripted test of GC fails.

Random simulations find what is missing often. A rule that matters only if several processes are eras late has a
scripted test, which must fail for the planted defect, and passes without it, as a test of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from persist_core.errors import PersistError
from tests.core.gc import test_collect as gc
from tests.core.gc import test_forks as forks
from tests.core.gc import test_slow_gc as slow_gc
from tests.sampling import is_long, sample
from tests.sim.planted_gc import PLANTED_GC
from tests.sim.simulator.script import Scenario, Script
from tests.sim.simulator.simulation import replay, simulate

MAX_SIMULATIONS = 120
# The first seed to try: one that found it when this was written. After a change of the code it may be another one.
FOUND_BY_SEED = {
    "needs by attempt": 0,
    "batches are forgotten": 0,
    "commits are forgotten": 1,
    "chains of operator state are forgotten": 1,
    "progress is forgotten": 0,
    "folders of checkpoints are forgotten": 0,
    "forks are forgotten": 10,
    "forks leave no record": 10,
    "leases do not count": 840,
    "appends of any era": 5,
}
RARE = "leases do not count"  # one simulation in 400 finds it: at night it begins with its seed too
ERAS = {"leases do not count": 2, "appends of any era": 2}  # eras of GC end while readers and writers linger
FOUND_BY_SCRIPT: dict[str, Callable[..., None]] = {
    "checkpoints are forgotten": slow_gc.test_a_checkpoint_older_than_all_commits_is_restored,
    "conflicts are forgotten": gc.test_only_the_newest_conflicts_are_kept,
    "forks are listed once": forks.test_a_fork_of_a_fork_is_whole_or_refused,
    "forks are given up silently": gc.test_a_fork_that_is_made_after_gc_has_given_it_up_is_refused,
    "forks of any era": gc.test_a_fork_that_is_made_after_gc_has_given_it_up_is_refused,
    "merges of any era": slow_gc.test_a_merge_staged_too_long_ago_is_refused,
    "names without era": gc.test_an_input_that_is_frozen_again_has_another_name,
    "state before keys": slow_gc.test_files_staged_during_a_listing_belong_to_its_era,
    "sweep by the list alone": slow_gc.test_a_late_list_deletes_nothing_appended_meanwhile,
    "what is needed again stays on lists": slow_gc.test_what_was_appended_and_merged_away_stays_for_its_readers,
    "an era early": gc.test_an_input_that_is_frozen_again_has_another_name,
    "no grace": gc.test_a_clock_that_jumps_deletes_nothing_early,
}


def test_each_rule_has_its_test() -> None:
    assert FOUND_BY_SEED.keys() | FOUND_BY_SCRIPT.keys() == PLANTED_GC.keys()


@pytest.mark.parametrize("name", sample(FOUND_BY_SEED, 4, "missing rules of GC"))
def test_a_simulation_finds_that_a_rule_of_gc_is_missing(name: str, persist_seed: int) -> None:
    first = persist_seed if is_long() and name != RARE else FOUND_BY_SEED[name]
    with pytest.MonkeyPatch.context() as patch:
        PLANTED_GC[name](patch)
        outcomes = (simulate(_scenario(seed, eras=ERAS.get(name, 0))) for seed in range(first, first + MAX_SIMULATIONS))
        found = next((outcome for outcome in outcomes if outcome.failure), None)
    assert found is not None, f"not found in {MAX_SIMULATIONS} simulations from seed {first} on"
    assert replay(Script.parse(str(found.script))).failure is None  # it is the defect, not the script


@pytest.mark.parametrize("name", FOUND_BY_SCRIPT)
def test_a_script_finds_that_a_rule_of_gc_is_missing(name: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _run(FOUND_BY_SCRIPT[name], tmp_path / "without", patch)
    with pytest.MonkeyPatch.context() as patch:
        PLANTED_GC[name](patch)
        with pytest.raises((AssertionError, PersistError, pytest.fail.Exception)):
            _run(FOUND_BY_SCRIPT[name], tmp_path / "with", patch)


def _run(script: Callable[..., None], folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "own").mkdir(parents=True)
    given = {"shard": slow_gc.four_commits(folder), "monkeypatch": patch, "is_leased": True, "tmp_path": folder / "own"}
    script(**{name: given[name] for name in inspect.signature(script).parameters})


def _scenario(seed: int, *, eras: int) -> Scenario:
    """Many collectors, merges and slow readers."""
    return Scenario(
        seed,
        writers=2,
        readers=2,
        checkpointers=0,
        collectors=2,
        slow_mints=1,
        restorers=1,
        mergers=2,
        forkers=1,
        browsers=2,
        files=3,
        eras=eras,
    )
