"""Reads answer the same before, during and after any merges: random histories against brute force."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import CollectionSchema
from tests.core.compaction.histories import KEYED, MULTISET, History

STEPS = 40
SCHEMAS = pytest.mark.parametrize("schema", [KEYED, MULTISET], ids=["keyed", "multiset"])


@SCHEMAS
@pytest.mark.parametrize("seed", range(10))
def test_any_merges_change_no_answer(schema: CollectionSchema, seed: int) -> None:
    check_history(OpenLocation(MemBlob(), MemConsensus()), schema, seed, STEPS)


@SCHEMAS
def test_any_merges_change_no_answer_of_files(schema: CollectionSchema, tmp_path: Path) -> None:
    location = open_location(PersistLocation(f"file://{tmp_path}/data", f"sqlite:///{tmp_path}/consensus.db"))
    check_history(location, schema, seed=0, steps=STEPS // 2)
    location.close()


def check_history(location: OpenLocation, schema: CollectionSchema, seed: int, steps: int) -> None:
    """Random steps, each now and then followed by every read; in the end the shard is closed and merged whole."""
    history, chance = History(location, schema, seed), random.Random(seed)
    for _ in range(steps):
        each = chance.choice([history, history, *history.forks])
        each.step()
        if chance.random() < 0.25:
            each.check()
    history.append(close=True)
    for each in (history, *history.forks):
        each.check()
        if len(each.state.batches) > 1:
            each.merge_these(each.state.batches)
        each.check()
    assert history.merges
