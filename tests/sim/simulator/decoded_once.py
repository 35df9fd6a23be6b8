"""States and manifests by their bytes, decoded once for all actors and simulations, for speed.

Decoding is a function of the bytes, and what it returns is not changed by anyone, so the same object may be everyone's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.contents.batch import BatchManifest
from persist_core.shard import codec
from persist_core.shard.codec import decode_state
from tests.sim.simulator import referee

_MAX_DECODED = 4_000  # of each kind: many times what one simulation stores


def _remembered(decode: Callable[..., Any]) -> Any:
    return staticmethod(lru_cache(_MAX_DECODED)(decode))


_STATES = _remembered(decode_state)
_DECODERS: tuple[tuple[Any, str, Any], ...] = (
    (codec, "decode_state", _STATES.__func__),
    (referee, "decode_state", _STATES.__func__),
    (BatchManifest, "decode", _remembered(BatchManifest.decode)),
    (CheckpointManifest, "decode", _remembered(CheckpointManifest.decode)),
)


@contextmanager
def decoded_once() -> Iterator[None]:
    """Within it, bytes that were decoded before are not decoded again."""
    with ExitStack() as patches:
        for owner, name, decoder in _DECODERS:
            patches.enter_context(patch.object(owner, name, decoder))
        yield
