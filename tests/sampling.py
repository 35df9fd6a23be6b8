"""Which slow tests a session runs: all at night, else some of each family, and a sixth of each slow file.

CI draws by the commit, so that each test has its turn; PERSIST_DRAW makes the choice of another session.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

_Case = TypeVar("_Case")

# How many tests of each family of slow tests that overlap a session runs. A test names its family in a mark.
FAMILIES = {
    "days of a source": 1,
    "schedulers": 1,
    "own backfills": 1,
    "tasks": 1,
    "Sparks": 1,
    "histories in Spark": 3,
    "histories in Python": 1,
    "commands": 2,
    "sizes": 2,
    "decoders": 3,
    "merges": 1,
}
# Of the other tests of each file here, a session of several files runs one of six.
SLOW_FILES = (
    "tests/spark/",
    "tests/core/cli/test_run",
    "tests/airflow/page/test_browser",
    "tests/airflow/page/test_look",
    "tests/airflow/page/test_refresh",
)
_ONE_OF = 6
_TRUST = Path(__file__).parents[1] / "docs" / "trust.md"


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
    chosen = random.Random(f"{os.environ.get('PERSIST_DRAW')}/{family}").sample(range(len(known)), count)
    return [known[number] for number in sorted(chosen)]


def leave_out(items: Sequence[pytest.Item]) -> None:
    """Skip the slow tests that this session does not draw, of each family in `FAMILIES` and each file in `SLOW_FILES`.

    A test is drawn with all its parameters, and among what this session has collected and does not skip for another
    reason: alone, it always runs. So does a test that docs/trust.md names.
    """
    always = set(re.findall(r"tests/[\w/]+\.py::\w+", _TRUST.read_text()))
    families: dict[str, dict[str, list[pytest.Item]]] = {}
    slow = SLOW_FILES if len({item.path for item in items}) > 1 else ()
    for item in items:
        test, _, _ = item.nodeid.partition("[")
        is_skipped = any(mark.args[0] is True for mark in item.iter_markers("skipif"))
        mark = item.get_closest_marker("family")
        if test not in always and not is_skipped and (mark or item.nodeid.startswith(slow)):
            family = mark.args[0] if mark else test.partition("::")[0]
            families.setdefault(family, {}).setdefault(test, []).append(item)
    for family, tests in families.items():
        count = -(-len(tests) // _ONE_OF) if family.startswith(SLOW_FILES) else FAMILIES[family]
        drawn = sample(tests, min(count, len(tests)), family)
        skip = pytest.mark.skip(reason=f"not drawn by this session of {family} (PERSIST_PROFILE=nightly)")
        for item in (item for test in tests if test not in drawn for item in tests[test]):
            item.add_marker(skip)
