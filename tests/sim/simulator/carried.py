"""Full states of simulated batches: half of them carry over the files of the chain, and add what is new."""

from __future__ import annotations

from dataclasses import replace

from persist_core.contents.batch import BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact


def adds_to_chain(description: BatchDescription, operator: str) -> bool:
    """True if the batch writes only what is new of the operator's state."""
    return description.saves_delta(operator) or bool(_carried(description, operator))


def state_of(
    description: BatchDescription, operator: str, written: tuple[StateArtifact, ...]
) -> dict[str, OperatorState]:
    """The operator's state after the batch, which has written these files; none if it has none."""
    is_delta = description.saves_delta(operator)
    files = (*_carried(description, operator), *written)
    numbered = tuple(replace(each, partition_id=number) for number, each in enumerate(files))
    return {operator: OperatorState(is_delta, numbered)} if is_delta or numbered else {}


def _carried(description: BatchDescription, operator: str) -> tuple[StateArtifact, ...]:
    chain = description.operators.get(operator, ())
    is_rewritten = description.saves_deltas or description.epoch % 4 < 2 or any(each.attempt is None for each in chain)
    return () if is_rewritten else tuple(replace(each, is_carried=True) for each in chain)
