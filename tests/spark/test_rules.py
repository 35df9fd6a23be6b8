"""The rules of an upsert: the tables in docs/semantics.md are the code's, and each case does what the oracle does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.contents.batch import STASH_OPERATOR
from persist_core.keys import PART
from persist_core.schema import DIFF, INDEX_KIND, TIME
from persist_spark.upsert import plan
from persist_spark.upsert.rules import CASES, EFFECTS, OF_LOG, Effect
from tests.oracle.consolidate import Slot, UpsertDiff
from tests.oracle.upsert import TOMBSTONE, TRUNCATE, Record
from tests.spark.test_sequence_oracle import SequenceShard
from tests.spark.test_upsert_oracle import Shard
from tests.spark.upsert_cases import ONE_KEY, ONE_KEY_DOMAIN, to_records, to_state

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
A, B = ("a", 1, 0.5), ("b", 2, None)
LOWER, UPPER = 10, 20


def _table(*rows: Sequence[str]) -> str:
    head, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    return f"{head}|{' --- |' * len(rows[0])}\n{''.join(others)}"


def _columns(effect: Effect) -> str:
    return ", ".join(name if name == sql else f"{name} = {sql}" for name, sql in effect.columns.items())


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def test_semantics_shows_the_tables_of_the_code() -> None:
    cases = [(case.name, _code(case.condition), ", ".join(case.effects)) for case in CASES]
    effects = [
        (each.name, _code(each.condition), each.part or "", "" if each.diff is None else f"{each.diff}", _columns(each))
        for each in EFFECTS
    ]
    text = _PAGE.read_text()
    assert _table(("case", "condition", "effects"), *cases) in text
    assert _table(("effect", "only if", "part", "diff", "columns"), *effects) in text


def _put(slot: int, value: Any, order: int, time: int | None = None) -> Record:
    return Record((slot,), value, time, (order, "f", 0, slot))


# For each case: the records before, the batch's, and the effects in each order. `keep` writes nothing.
SCENARIOS: dict[str, tuple[list[Record], list[Record], list[str], list[str]]] = {
    "waits": ([], [_put(1, A, 5, UPPER)], ["stash"], ["stash"]),
    "late": ([_put(2, A, 9)], [_put(2, B, 5)], ["retract", "insert"], ["late"]),
    "same": ([_put(3, A, 5)], [_put(3, A, 6)], [], ["raise"]),
    "update": ([_put(4, A, 5)], [_put(4, B, 6)], ["retract", "insert"], ["retract", "insert"]),
    "delete": ([_put(5, A, 5)], [_put(5, TOMBSTONE, 6)], ["retract"], ["retract", "bury"]),
    "insert": ([_put(6, TOMBSTONE, 5, 0)], [_put(6, A, 6)], ["insert"], ["insert", "clear"]),
    "absent": ([], [_put(7, TOMBSTONE, 6)], [], ["bury"]),
    "truncate": ([_put(8, A, 1)], [Record(None, TRUNCATE, None, (2, "f", 0, 0))], ["retract"], ["retract"]),
}
_OF_KIND = {"floor": "floor", "raised": "raise", "deleted": "bury", "in_row": "clear", "forgotten": "forget"}


Effects = dict[int | None, list[str]]  # by the slot's key; `None`: of no slot


def _effects_of(shard: Shard | SequenceShard) -> Effects:
    """The effects of a batch on each slot. `drain` asserts that they are the oracle's."""
    scenarios = [each for name, each in SCENARIOS.items() if isinstance(shard, SequenceShard) or name != "late"]
    shard.drain([record for before, _, *_ in scenarios for record in before], 0, LOWER)
    shard.drain([record for _, batch, *_ in scenarios for record in batch], LOWER, UPPER)
    found: list[tuple[Slot | None, str]] = [
        (each.slot, name)
        for diff, name in ((-1, "retract"), (1, "insert"))
        for each in shard.updates
        if each.time >= LOWER and each.diff == diff
    ]
    found += [(record.slot, "stash") for record in shard.stash]
    if isinstance(shard, SequenceShard):
        found += [((row["id"],), _OF_KIND[row[INDEX_KIND]]) for row in shard.index if row[TIME] >= LOWER]
        found += [((row["id"],), "late") for row in shard.late]
    by_slot: Effects = {}
    for slot, name in found:
        assert isinstance(slot, tuple)
        by_slot.setdefault(slot[0], []).append(name)
    return by_slot


@pytest.fixture(scope="module")
def effects_of_log(spark: SparkSession) -> Effects:
    return _effects_of(Shard(spark, ONE_KEY_DOMAIN))


@pytest.fixture(scope="module")
def effects_of_sequence(spark: SparkSession) -> Effects:
    return _effects_of(SequenceShard(spark, ONE_KEY_DOMAIN))


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_case_does_in_sequence_order_what_the_oracle_does(name: str, effects_of_sequence: Effects) -> None:
    slot = next(record.slot for records in SCENARIOS[name][:2] for record in records if record.slot)
    assert effects_of_sequence.get(slot[0], []) == SCENARIOS[name][3]
    assert effects_of_sequence[None] == ["floor"]


@pytest.mark.parametrize("name", [case.name for case in CASES if case.name != "late"])
def test_case_does_in_log_order_what_the_oracle_does(name: str, effects_of_log: Effects) -> None:
    slot = next(record.slot for records in SCENARIOS[name][:2] for record in records if record.slot)
    assert effects_of_log.get(slot[0], []) == SCENARIOS[name][2]
    assert {*SCENARIOS[name][2]} <= {*OF_LOG}


def test_the_example_of_the_plan_is_what_it_does(spark: SparkSession) -> None:
    """The five records of its docstring, and the effects in the last column."""
    lines = re.findall(r"^ +(?:chain: )?(\d.*)│.*│.*│(.*)$", plan.__doc__ or "", re.MULTILINE)
    rows = [(left.split(), right.strip()) for left, right in lines]
    values = {letter: (letter, None, None) for letter in "abcd"}
    records = [
        Record((1,), values.get(row[3], TOMBSTONE), int(row[0]), (int(row[-1]), "f", 0, 0))
        for row, _ in rows
        if row[1] == "input"
    ]
    assert len(records) == 5
    (before,) = [UpsertDiff((1,), values[row[3]], int(row[0]), 1) for row, _ in rows if row[1] == "state"]
    planned = plan.persistent_upsert(
        to_records(spark, ONE_KEY, records), to_state(spark, ONE_KEY, [before]), schema=ONE_KEY, lower=10, upper=20
    )
    done = sorted(planned.updates.collect(), key=lambda row: (row[TIME], row[DIFF] or 0))
    shown = [
        "stash" if row[PART] == STASH_OPERATOR else f"{'insert' if row[DIFF] > 0 else 'retract'} {row['name']}"
        for row in done
    ]
    assert shown == [effect for _, text in rows for effect in text.split(", ") if effect and effect != "keep"]
    assert planned.outcome(planned.updates).counted["kept"] == 1
