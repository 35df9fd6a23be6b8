"""Airflow's options of tasks: of all stages, then of one; from the file, then the caller. DAGs of a location."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

from persist_airflow.compat import DAG, with_newest_files
from persist_airflow.notifications import NotifyBy
from persist_core.config.project import MaintenanceConfig
from persist_core.config.shard import AirflowConfig, TaskConfig

GROUP_PREFIX = "persist_group__"  # of the ids of groups' DAGs
STAGES = ("mint", "write", "append", "checkpoint")
TASK_IDS = ("mint_batch_descriptions", "write_batches", "append_batches", "checkpoint_manifest")
RETRY = "retry_failed"  # the id of the task that takes up what a group's batch has lost


class StageOptions(TypedDict, total=False):
    """Airflow's own options of all four tasks, and of each; they override the shard's file."""

    all: Mapping[str, Any]
    mint: Mapping[str, Any]
    write: Mapping[str, Any]
    append: Mapping[str, Any]
    checkpoint: Mapping[str, Any]


class TaskOptions(TypedDict, total=False):
    """The options of `shard_tasks`, for what passes them on."""

    persist_conn_id: str
    spark_conn_id: str
    notify: Sequence[NotifyBy] | NotifyBy
    guide: str
    maintenance: MaintenanceConfig | None
    spark: Mapping[str, Any] | None
    tasks: StageOptions | None


class DagOptions(TaskOptions, total=False):
    """`TaskOptions`, and Airflow's own arguments for the DAG, which go over the factory's."""

    default_args: Mapping[str, Any]
    dag_args: Mapping[str, Any]


def options_of(config: AirflowConfig, given: StageOptions, stage: str) -> dict[str, Any]:
    of_stage: TaskConfig = getattr(config, stage)
    callers: Mapping[str, Any] = {**given}
    found: dict[str, Any] = {}
    for each in (_in_airflow(config.all), _in_airflow(of_stage), callers.get("all"), callers.get(stage)):
        found |= each or {}
    return found


def _in_airflow(config: TaskConfig) -> dict[str, Any]:
    """The options that a file sets, under Airflow's names."""
    named = {
        "pool": config.pool,
        "pool_slots": config.pool_slots,
        "queue": config.queue,
        "priority_weight": config.priority,
        "retries": config.retries,
        "retry_delay": None if config.retry_delay_s is None else timedelta(seconds=config.retry_delay_s),
        "execution_timeout": None if config.timeout_s is None else timedelta(seconds=config.timeout_s),
        "executor_config": config.executor_config,
    }
    return {name: value for name, value in named.items() if value is not None}


def add_failure_callback(task: Any, announce: Any) -> None:
    """Beside the callbacks that the task has, of its own or from `default_args`."""
    known = task.on_failure_callback
    task.on_failure_callback = [*(known if isinstance(known, Sequence) else [known] if known else []), announce]


def location_dag(
    dag_id: str,
    *,
    tag: str,
    document: str,
    defaults: Mapping[str, Any],
    default_args: Mapping[str, Any] | None,
    dag_args: Mapping[str, Any] | None,
    **arguments: Any,
) -> DAG:
    """A DAG whose runs have no data of an interval, so that there is nothing to catch up on.

    `default_args`, the user's, go over `defaults`; `dag_args`, the user's, go over all arguments of the DAG.
    """
    arguments |= {
        "dag_id": dag_id,
        "start_date": datetime(1970, 1, 1, tzinfo=UTC),
        "catchup": False,
        "tags": ["persist", tag],
        "doc_md": document,
        "default_args": {**defaults, **(default_args or {})},
        **with_newest_files(),
    }
    return DAG(**{**arguments, **(dag_args or {})})
