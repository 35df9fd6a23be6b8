"""Which cases of a family of slow tests a session runs: all at night, else a few of them by the seed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import settings

_Case = TypeVar("_Case")

# How many tests of each family of slow tests that overlap a session runs. A test names its family in a mark.
FAMILIES = {
    "whole days": 1,
    "oracles": 2,
    "sizes": 2,
    "stories": 3,
    "commands": 2,
    "kills of commands": 2,
    "histories in Python": 4,
    "kills by a scheduler": 1,
    "kills of tasks": 1,
    "own backfills": 1,
    "dag runs": 2,
    "jobs in a server": 2,
    "clusters": 1,
    "bundled feed": 1,
    "own Sparks": 1,
    "platforms": 1,
    "truncates": 1,
    "values that were not sent": 1,
    "log order": 2,
    "orders": 2,
    "histories": 1,
    "restarted numbers": 1,
    "erasures": 1,
    "corrections": 1,
    "rows in two ways": 2,
    "few keys": 1,
    "plans": 2,
    "files of state": 2,
    "bad files": 2,
    "merges by jobs": 1,
    "kills of merges": 1,
    "Parquet's times": 1,
    "decoders": 4,
    "versions": 2,
    "damage": 2,
    "clocks": 1,
}


def is_long() -> bool:
    """True at night. Unknown until pytest has loaded the profile, which is after it has imported conftest.py."""
    return settings.get_current_profile_name() == "nightly"


def sample(cases: Iterable[_Case], count: int, family: str) -> list[_Case]:
    """`count` of the cases, in their order; all of them with the nightly profile.

    `family` makes the choices of two families independent. Each process of a session chooses the same.
    """
    known = list(cases)
    if is_long():
        return known
    chosen = random.Random(f"{os.environ.get('PERSIST_SEED')}/{family}").sample(range(len(known)), count)
    return [known[number] for number in sorted(chosen)]


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Skip the slow tests of each family in `FAMILIES` that the seed does not draw.

    A test is drawn with all its parameters, and among what this session has collected and does not skip for another
    reason: alone, it always runs.
    """
    families: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        is_skipped = any(mark.args[0] is True for mark in item.iter_markers("skipif"))
        if (mark := item.get_closest_marker("family")) and not is_skipped:
            families.setdefault(mark.args[0], {}).setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family, tests in families.items():
        drawn = sample(tests, min(FAMILIES[family], len(tests)), family)
        skip = pytest.mark.skip(reason=f"not drawn by this seed of {family} (PERSIST_PROFILE=nightly)")
        for item in (item for test in tests if test not in drawn for item in tests[test]):
            item.add_marker(skip)
