"""Families of slow tests of which a session runs one by its seed, and all at night."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from hypothesis import settings


def is_long() -> bool:
    """True at night. Unknown until pytest has loaded the profile, which is after it has imported conftest.py."""
    return settings.get_current_profile_name() == "nightly"


def chosen(family: str, members: Sequence[str]) -> list[str]:
    """The members that this session runs. By the family's name, so that each process of it chooses the same."""
    if is_long():
        return [*members]
    return [random.Random(f"{os.environ.get('PERSIST_SEED')}/{family}").choice(members)]
