"""The last task of a group's dag run: no batch has gone with what it had begun.

    batch_1.checkpoint, batch_1.retry_failed, batch_2.... --> complete

Batches have numbers. If files leave the group, or `batch_of` grows, while a dag run is active, its last batches are no
longer in the DAG. Airflow removes their tasks from the dag run, which ends with success. What they returned stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from persist_airflow.compat import Context, tasks_of_run
from persist_airflow.failures import failed_together
from persist_airflow.operators import StageOperator
from persist_airflow.options import RETRY, TASK_IDS

MINT, _, APPEND, _ = TASK_IDS


class CompleteGroupOperator(StageOperator):
    """Fail, without another try, if a batch that the DAG no longer has has begun what it did not append.

    It reads what the tasks of its dag run have returned, and no store. It also runs if tasks before it were skipped.

    :param group: the group's name
    :param names: its collections
    """

    ui_color = "#eeeeee"

    def __init__(self, *, group: str, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(shard=group, trigger_rule="none_failed", **kwargs)
        self.names = tuple(names)

    def execute(self, context: Context) -> None:
        """Raise the list of these collections."""
        dag: Any = context["dag"]
        batches = {task.rpartition(".")[0] for task in tasks_of_run(context) if task.endswith(f".{MINT}")}
        begun: dict[str, str] = {}
        for batch in batches:
            if f"{batch}.{MINT}" not in dag.task_ids:
                minted = _returned(context, batch, MINT)
                begun |= dict.fromkeys([*minted.get("descriptions", ()), *minted.get("failed", ())], batch)
        if not begun:
            return
        for batch in batches:  # a collection may have moved into another one that began later
            for task in (APPEND, RETRY):
                for name in _returned(context, batch, task).get("results", ()):
                    begun.pop(name, None)
        if begun:
            lost = {name: {"error": _lost(name, begun[name]), "may_retry": False} for name in sorted(begun)}
            raise failed_together(f"collections of group {self.shard}", lost, len({*self.names, *lost}))


def _returned(context: Context, batch: str, task: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = context["ti"].xcom_pull(task_ids=f"{batch}.{task}")
    return found or {}


def _lost(name: str, batch: str) -> str:
    return (
        f"not appended: {batch} had begun it, and is no longer in the DAG, because files of the group or batch_of"
        f" changed during the dag run. `persist run {name}` or the next dag run takes its input in"
    )
