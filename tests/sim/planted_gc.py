"""Defects of GC, planted into the product: each takes away one of the rules that keep what is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from persist_core.compaction import merge
from persist_core.gc import collect, needs
from persist_core.gc.needs import Needs
from persist_core.gc.sweep import Garbage, GarbageList, sweep
from persist_core.handles.client import PersistClient
from persist_core.keys import attempt_of, collectable_prefixes
from persist_core.protocol import fork
from persist_core.protocol.fork_records import list_forks
from persist_core.shard import state as transitions
from persist_core.shard.state import Commit, ShardState
from persist_core.sources import frozen, ledger

Plant = Callable[[pytest.MonkeyPatch], None]


def _without(name: str) -> Plant:
    """Forgets one of the reasons why a key is needed."""
    return lambda patch: patch.setattr(Needs, name, lambda *_: set())


def _batches_by_attempt(patch: pytest.MonkeyPatch) -> None:
    """Keeps what is in the folders of the state's attempts: not the older files that a run carries."""
    inner = Needs.of_batches

    def of_batches(self: Needs, state: ShardState) -> set[str]:
        attempts = {attempt_of(batch.manifest_key) for batch in state.batches}
        return {key for key in inner(self, state) if attempt_of(key) in attempts}

    patch.setattr(Needs, "of_batches", of_batches)


def _operators_of_the_newest_commit(patch: pytest.MonkeyPatch) -> None:
    """Keeps only the newest deltas: not the chain that they continue."""
    inner = Needs.of_commits

    def operators(self: Needs, commits: tuple[Commit, ...]) -> set[str]:
        manifests = [self._manifests[commit.manifest_key] for commit in commits]
        return {key.key for each in manifests for state in each.operators.values() for key in state.artifacts}

    def of_commits(self: Needs, state: ShardState) -> set[str]:
        needed = inner(self, state)
        return needed - (operators(self, state.commits[:-1]) - operators(self, state.commits[-1:]))

    patch.setattr(Needs, "of_commits", of_commits)


def _newest_commit(patch: pytest.MonkeyPatch) -> None:
    """Keeps what the newest commit names: not what checkpoints of older ones are published again from."""
    inner = Needs.of_commits
    patch.setattr(Needs, "of_commits", lambda self, state: inner(self, replace(state, commits=state.commits[-1:])))


def _sweep_by_the_list(patch: pytest.MonkeyPatch) -> None:
    """Deletes what a list names without reading again what is needed now."""
    inner = Needs.of

    def of(self: Needs, state: ShardState, *, candidates: Collection[str] | None = None) -> set[str]:
        return inner(self, state) if candidates is None else set()

    patch.setattr(Needs, "of", of)


def _old_lists_stay(patch: pytest.MonkeyPatch) -> None:
    """Leaves on a list what is needed again, so that its time begins too early."""
    patch.setattr(collect, "_without", lambda *found: found[1])


def _without_leases(patch: pytest.MonkeyPatch) -> None:
    """Sweeps what a reader with a lease may be reading."""
    inner = collect._sweep
    patch.setattr(collect, "_sweep", lambda client, state, *more: inner(client, replace(state, leases={}), *more))


def _without_grace(patch: pytest.MonkeyPatch) -> None:
    """Ends an era at each call, however young its list is."""
    inner = collect._lists
    patch.setattr(collect, "_lists", lambda blob, shard: (inner(blob, shard)[0], 1 << 60))


def _an_era_early(patch: pytest.MonkeyPatch) -> None:
    """Sweeps a list as soon as no batch of its era is accepted: readers of the last one have no time."""
    plan = collect._sweep

    def plan_early(client: PersistClient, state: ShardState, *more: Any) -> Any:
        return plan(client, replace(state, oldest_era=state.oldest_era + 1), *more)

    def do_early(client: PersistClient, shard: str, lists: list[GarbageList], *more: Any, **options: Any) -> Any:
        return sweep(client, shard, [replace(listed, era=listed.era - 1) for listed in lists], *more, **options)

    patch.setattr(collect, "_sweep", plan_early)
    patch.setattr("persist_core.gc.collect.sweep", do_early)


def _forks_listed_once(patch: pytest.MonkeyPatch) -> None:
    """Does not look for records of forks that were made of a fork while that one's state was read."""
    inner = Needs.of_forks

    def of_forks(self: Needs, state: ShardState, candidates: Collection[str] | None) -> set[str]:
        known = list_forks(self._client.blob, state.shard)
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(needs, "list_forks", lambda *_: known)
            return inner(self, state, candidates)

    patch.setattr(Needs, "of_forks", of_forks)


def _of_any_era(owner: Any, name: str) -> Plant:
    """Lets a transition name files of any era."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        inner = getattr(owner, name)

        def accept(state: ShardState, *more: Any, **options: Any) -> Any:
            after, result = inner(replace(state, oldest_era=0), *more, **options)
            return replace(after, oldest_era=state.oldest_era), result

        patch.setattr(owner, name, accept)

    return plant


def _state_before_keys(patch: pytest.MonkeyPatch) -> None:
    """Reads the state first and lists the keys then: the list is of an older era than what it names."""

    def find(client: PersistClient, shard: str, needs: Needs, known: Collection[str]) -> Iterator[GarbageList]:
        state = client.state(shard)
        needed = {*needs.of(state), *known}
        keys = [each for prefix in collectable_prefixes(shard) for each in client.blob.list_keys_and_metadata(prefix)]
        garbage = tuple(Garbage(each.key, each.size_bytes) for each in keys if each.key not in needed)
        if garbage:
            yield GarbageList(shard, state.era, state.seqno, client.clock.now_ms(), garbage)

    patch.setattr(collect, "find_garbage", find)


def _in_the_first_era(name: Callable[[str, int, str], str], shard: str, _: int, sha256: str) -> str:
    return name(shard, 0, sha256)


def _names_without_era(patch: pytest.MonkeyPatch) -> None:
    """Gives what is frozen again the name that it had when it became garbage."""
    for owner, name in ((frozen, "input_key"), (ledger, "ledger_segment_key")):
        patch.setattr(owner, name, partial(_in_the_first_era, getattr(owner, name)))


PLANTED_GC: dict[str, Plant] = {
    "needs by attempt": _batches_by_attempt,
    "batches are forgotten": _without("of_batches"),
    "commits are forgotten": _newest_commit,
    "chains of operator state are forgotten": _operators_of_the_newest_commit,
    "progress is forgotten": _without("of_progress"),
    "checkpoints are forgotten": _without("of_checkpoints"),
    "folders of checkpoints are forgotten": _without("of_folders"),
    "conflicts are forgotten": _without("of_conflicts"),
    "forks are forgotten": lambda patch: patch.setattr(Needs, "of_forks", lambda *_: set()),
    "forks leave no record": lambda patch: patch.setattr(fork, "record_fork", lambda *_, **__: None),
    "forks are listed once": _forks_listed_once,
    "forks are given up silently": lambda patch: patch.setattr(needs, "refuse_earlier", lambda state: (state, 0)),
    "forks of any era": _of_any_era(transitions, "start_fork"),
    "appends of any era": _of_any_era(transitions, "compare_and_append"),
    "merges of any era": _of_any_era(merge, "replace_batches"),
    "names without era": _names_without_era,
    "state before keys": _state_before_keys,
    "sweep by the list alone": _sweep_by_the_list,
    "what is needed again stays on lists": _old_lists_stay,
    "an era early": _an_era_early,
    "no grace": _without_grace,
    "leases do not count": _without_leases,
}
