"""One DAG for a group of collections: the tasks of each batch of them.

    batch_1: mint -> write -> append -> checkpoint ----.
                                '-----> retry_failed --+--> complete
    batch_2: ...                                     --'

The batches are known when the folder is read, so they are task groups, and each goes on by itself. A collection of a
group has no DAG of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from persist_airflow.announce import AnnounceFailure
from persist_airflow.compat import BaseOperator, Context, TaskGroup, interval_end_ms, tasks_of_run
from persist_airflow.failures import failed_together
from persist_airflow.group_stages import (
    AppendGroupOperator,
    CheckpointGroupOperator,
    MintGroupOperator,
    RetryFailedOperator,
    WriteGroupOperator,
)
from persist_airflow.groups import Batch
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.metrics import SECONDS_XCOM
from persist_airflow.notifications import NotifyBy, chosen
from persist_airflow.operators import StageOperator
from persist_airflow.options import RETRY, STAGES, TASK_IDS, StageOptions, add_failure_callback, options_of
from persist_airflow.spark import DEFAULT_SPARK
from persist_core.config.collection import CollectionConfig
from persist_core.config.files import config_files
from persist_core.config.groups import agreed
from persist_core.config.project import MaintenanceConfig
from persist_core.errors import ConfigError, Corruption
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient

COMPLETE = "complete"
_CHANGED = "files of the group or batch_of changed during the dag run"
_UNSEEN = f"not begun: no mint of this dag run looked at it ({_CHANGED}, or its mint was marked by hand)"
_NOT_RETRIED = f"not appended: it failed, and {RETRY} was marked by hand"


def split_groups(
    configs: Sequence[CollectionConfig], folder: Path
) -> tuple[dict[str, list[CollectionConfig]], list[ConfigError]]:
    """The collections of each group, by its name, and an error for each that does not fit into its group."""
    files = {file.stem: file for file in config_files(folder)} if any(config.group for config in configs) else {}
    members: dict[str, list[tuple[Path, CollectionConfig]]] = defaultdict(list)
    for config in configs:
        if config.group is not None:
            members[config.group].append((files[config.name], config))
    groups, errors = {}, []
    for name, found in members.items():
        agreeing, wrong = agreed(found)
        errors += wrong
        if agreeing:
            groups[name] = agreeing
    return groups, errors


def _batch_tasks(
    batch: Batch,
    *,
    persist_conn_id: str = PersistHook.default_conn_name,
    spark_conn_id: str = DEFAULT_SPARK,
    spark: Mapping[str, Any] | None = None,
    tasks: StageOptions | None = None,
) -> list[BaseOperator]:
    """The tasks of one batch, in the task group that is open; the last ones. `retry_failed` has write's options."""
    first = batch.members[batch.names[0]]
    options = {stage: options_of(first.airflow, tasks or {}, stage) for stage in STAGES}
    shared: dict[str, Any] = {"batch": batch, "persist_conn_id": persist_conn_id}
    with_spark = {**shared, "spark_conn_id": spark_conn_id, **options["write"], **(spark or {})}
    mint = MintGroupOperator(task_id=TASK_IDS[0], **shared, **options["mint"])
    write = WriteGroupOperator(task_id=TASK_IDS[1], described=mint.output, **with_spark)
    append = AppendGroupOperator(
        task_id=TASK_IDS[2],
        staged=write.output,
        write_task_id=write.task_id,
        retry_task_id=write.task_id.removesuffix(TASK_IDS[1]) + RETRY,
        **shared,
        **options["append"],
    )
    checkpoint = CheckpointGroupOperator(task_id=TASK_IDS[3], appended=append.output, **shared, **options["checkpoint"])
    again = RetryFailedOperator(task_id=RETRY, appended=append.output, **with_spark)
    mint >> write >> append >> [checkpoint, again]
    announce = AnnounceFailure(batch.notify, batch.names, guide=batch.guide)
    for task in (mint, write, append, checkpoint, again):
        add_failure_callback(task, announce)
    return [checkpoint, again]


def group_tasks(
    group: str,
    members: Mapping[str, CollectionConfig],
    batch_of: int,
    *,
    notify: Sequence[NotifyBy] | NotifyBy = (),
    guide: str = "",
    maintenance: MaintenanceConfig | None = None,
    persist_conn_id: str = PersistHook.default_conn_name,
    tasks: StageOptions | None = None,
    **options: Any,
) -> None:
    """The tasks of all batches, and `complete`, which has the options of the checkpoint task, in the DAG that is open.

    `options`: as for `_batch_tasks`.
    """
    last: list[BaseOperator] = []
    by = {name: chosen(config.notify, notify) for name, config in members.items()}
    for number, first in enumerate(range(0, len(members), batch_of), start=1):
        names = tuple(members)[first : first + batch_of]
        with TaskGroup(f"batch_{number}", tooltip=", ".join(names)):
            batch = Batch(group, names, members, by, guide, maintenance)
            last += _batch_tasks(batch, persist_conn_id=persist_conn_id, tasks=tasks, **options)
    of_stage = options_of(next(iter(members.values())).airflow, tasks or {}, STAGES[-1])
    complete = CompleteGroupOperator(
        task_id=COMPLETE, group=group, names=tuple(members), persist_conn_id=persist_conn_id, **of_stage
    )
    complete.set_upstream(last)
    add_failure_callback(complete, AnnounceFailure(by, guide=guide))


class CompleteGroupOperator(StageOperator):
    """Fail, without another try, if a collection was left out, or begun and not appended.

    Batches that changed have done so, or a `retry_failed` that failed was marked as success.

    Batches have numbers. If files of the group or `batch_of` change while a dag run is active, a collection may come
    into another batch, whose mint has ended; and the last batches may be no longer in the DAG. Airflow removes their
    tasks from the dag run, which ends with success. What they returned stays: that is read, and no store, unless a
    collection was left out or failed. It also runs if tasks before it were skipped.

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
        mint, _, append, _ = TASK_IDS
        batches = {task.rpartition(".")[0] for task in tasks_of_run(context) if task.endswith(f".{mint}")}
        unseen, failed, committed, lost = {*self.names}, set[str](), set[str](), dict[str, str]()
        for batch in batches:
            unseen -= _returned(context, batch, mint, SECONDS_XCOM).keys()
            if f"{batch}.{mint}" not in dag.task_ids:
                minted = _returned(context, batch, mint)
                why = f"not appended: {batch} had begun it, and is no longer in the DAG, because {_CHANGED}"
                lost |= dict.fromkeys([*minted.get("descriptions", ()), *minted.get("failed", ())], why)
            appended, tried = (_returned(context, batch, task) for task in (append, RETRY))
            failed |= appended.get("failed", {}).keys()
            committed |= {*appended.get("results", ()), *tried.get("results", ())}
        # A collection may have moved into another batch that began later.
        lost = {name: why for name, why in lost.items() if name not in committed}
        lost = dict.fromkeys(self._behind(context, failed - committed, or_new=True), _NOT_RETRIED) | lost
        lost |= dict.fromkeys(self._behind(context, unseen), _UNSEEN)
        if lost:
            remedy = "`persist run {}` or the next dag run takes its input in".format
            errors = {each: {"error": f"{lost[each]}. {remedy(each)}", "may_retry": False} for each in sorted(lost)}
            raise failed_together(f"collections of group {self.shard}", errors, len({*self.names, *lost}))

    def _behind(self, context: Context, names: Collection[str], *, or_new: bool = False) -> list[str]:
        """The collections that are not at the end of the interval; with `or_new` also the ones without a commit,
        which else are new in the group."""
        if not names:
            return []
        with task_client(self.persist_conn_id) as client:
            until = Frontier(interval_end_ms(context, client.clock))
            return [name for name in names if _is_behind(client, name, until, or_new)]


def _returned(context: Context, batch: str, task: str, key: str = "return_value") -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = context["ti"].xcom_pull(task_ids=f"{batch}.{task}", key=key)
    return found or {}


def _is_behind(client: PersistClient, name: str, until: Frontier, or_new: bool) -> bool:
    try:
        state = client.machine.fetch(name)
    except Corruption:  # it fails in the next dag run, which says why
        return True
    return or_new if state is None else state.upper < until


def document_of(group: str, members: Mapping[str, CollectionConfig]) -> str:
    rows = "\n".join(
        f"| `{name}` | `{config.source.path}` | {config.description.partition(chr(10))[0]} |"
        for name, config in members.items()
    )
    return f"""The collections of group {group}, which one job of Spark writes.

| collection | source | |
| --- | --- | --- |
{rows}

The log of each task has a line for each collection. `persist run --group {group}` does the same without Airflow.
"""
