"""Which cases of a family of slow tests a session runs: all at night, else a few of them by the seed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

import pytest
from hypothesis import settings

_Case = TypeVar("_Case")


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


def if_drawn(case: str, cases: Iterable[str], family: str) -> pytest.MarkDecorator:
    """A mark for some slow tests that overlap: a session runs one of them by the seed, the nightly profile all."""
    is_drawn = case in sample(cases, 1, family)
    return pytest.mark.skipif(not is_drawn, reason=f"not drawn by this seed of {family} (PERSIST_PROFILE=nightly)")
