"""From a collection to its tasks, a task group or a whole DAG.

    shard_tasks(config)        the four tasks of a collection or view, in the DAG or group that is open
    upsert_tasks(config)       those of a collection
    upsert_task_group(config)  the same inside a task group
    build_upsert_dag(config)   DAG persist_upsert__<name>
    build_dags(folder)         one DAG per collection file; a wrong file becomes an import error under its own path

Views: persist_airflow.view_factory. Parsing touches no store and no network and imports no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from persist_airflow.compat import DAG, TaskGroup, file_import_error, interval_schedule
from persist_airflow.hook import PersistHook
from persist_airflow.notifications import ConflictCallback
from persist_airflow.operators import (
    AppendBatchesOperator,
    CheckpointManifestOperator,
    MintBatchDescriptionsOperator,
    WriteBatchesOperator,
)
from persist_core.config.collection import CollectionConfig, load_collections
from persist_core.config.files import config_files
from persist_core.config.shard import ShardConfig
from persist_core.errors import ConfigError
from persist_core.time_text import parse_time

DAG_PREFIX = "persist_upsert__"
RETRIES = 3
RETRY_DELAY = timedelta(seconds=10)
C = TypeVar("C", bound=ShardConfig)
APPEND_RETRIES = 6  # a conflict costs a try, and so does a worker that dies


@dataclass(frozen=True)
class ShardTasks:
    """The four tasks, already chained."""

    mint: MintBatchDescriptionsOperator
    write: WriteBatchesOperator
    append: AppendBatchesOperator
    checkpoint: CheckpointManifestOperator


def shard_tasks(
    config: ShardConfig,
    *,
    persist_conn_id: str = PersistHook.default_conn_name,
    spark_conn_id: str = "spark_default",
    on_cas_conflict: Sequence[ConflictCallback] | ConflictCallback = (),
    spark: Mapping[str, Any] | None = None,
) -> ShardTasks:
    """The four tasks of one collection or view, in the DAG or task group that is open.

    `spark` are further arguments for the provider's SparkSubmitOperator (`conf`, `packages`, `executor_memory`, ...).
    """
    common: dict[str, Any] = {"config": config, "persist_conn_id": persist_conn_id}
    mint = MintBatchDescriptionsOperator(task_id="mint_batch_descriptions", **common)
    write = WriteBatchesOperator(
        task_id="write_batches",
        description=mint.output,
        spark_conn_id=spark_conn_id,
        **common,
        **(spark or {}),
    )
    append = AppendBatchesOperator(
        task_id="append_batches",
        staged=write.output,
        write_task_id=write.task_id,
        on_cas_conflict=on_cas_conflict,
        retries=APPEND_RETRIES,
        **common,
    )
    checkpoint = CheckpointManifestOperator(task_id="checkpoint_manifest", **common)
    mint >> write >> append >> checkpoint
    return ShardTasks(mint, write, append, checkpoint)


def upsert_tasks(config: CollectionConfig, **options: Any) -> ShardTasks:
    """The four tasks of one collection. `options` are those of `shard_tasks`."""
    return shard_tasks(config, **options)


def upsert_task_group(config: CollectionConfig, *, group_id: str | None = None, **options: Any) -> TaskGroup:
    """The four tasks inside a task group (default id: the collection's name). `options` are those of `shard_tasks`."""
    with TaskGroup(group_id or config.name) as group:
        upsert_tasks(config, **options)
    return group


def build_upsert_dag(
    config: CollectionConfig,
    *,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> DAG:
    """DAG `persist_upsert__<name>`. `options` are those of `shard_tasks`; `dag_args` go over the defaults below.

    Its runs have real data intervals in UTC. There is no catch-up: an ordinary run takes all that is due, whatever
    was missed; history in steps is what backfills are for.
    """
    arguments: dict[str, Any] = {
        "dag_id": f"{DAG_PREFIX}{config.name}",
        "description": config.description or f"Change feed {config.source.path} -> shard {config.name}",
        "schedule": interval_schedule(config.schedule),
        "start_date": start_of(config),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["persist", "upsert"],
        "doc_md": _document(config),
        "default_args": {"retries": RETRIES, "retry_delay": RETRY_DELAY, **(default_args or {})},
    }
    with DAG(**{**arguments, **(dag_args or {})}) as dag:
        upsert_tasks(config, **options)
    return dag


def build_dags(folder: str | Path, **options: Any) -> dict[str, DAG]:
    """A DAG for every `*.yaml` in `folder`, by DAG id: `globals().update(...)`. `options`: see `build_upsert_dag`."""
    folder = Path(folder).absolute()
    collections, errors = load_collections(folder)
    dags, refused = dags_of(collections, folder, lambda config: build_upsert_dag(config, **options))
    return {dag.dag_id: dag for dag in (*dags, *stand_ins([*errors, *refused], folder, DAG_PREFIX))}


def dags_of(configs: Sequence[C], folder: Path, build: Callable[[C], DAG]) -> tuple[list[DAG], list[ConfigError]]:
    """The DAG of each file of `folder`, and an error for each file whose schedule Airflow refuses."""
    dags, errors = [], []
    for config in configs:
        try:
            dags.append(build(config))
        except ConfigError as error:
            file = next(file for file in config_files(folder) if file.stem == config.name)
            errors.append(ConfigError(f"{file}: {error}"))
    return dags, errors


def stand_ins(errors: Sequence[ConfigError], folder: Path, prefix: str) -> list[DAG]:
    """A DAG for each wrong file of `folder`, which leaves an import error under the file's own path."""
    return [_WrongFile(_named_file(error, folder), str(error), prefix) for error in errors]


def _named_file(error: ConfigError, folder: Path) -> Path:
    """The file that the error's message starts with; the folder where it is the folder that is wrong."""
    files = folder.iterdir() if folder.is_dir() else ()
    return next((file for file in files if str(error).startswith(f"{file}: ")), folder)


class _WrongFile(DAG):
    """Stands for a file that is wrong: never bagged, it leaves an import error under the file's path."""

    def __init__(self, path: Path, message: str, prefix: str) -> None:
        super().__init__(dag_id=f"{prefix}wrong_file__{re.sub(r'[^A-Za-z0-9_.-]', '_', path.name)}", schedule=None)
        self.wrong_path = path
        self.wrong_message = message

    def validate(self) -> None:
        """Called while Airflow fills its bag of DAGs."""
        file_import_error(self.wrong_path, self.wrong_message)
        raise ConfigError(self.wrong_message)


def start_of(config: ShardConfig) -> datetime:
    """The start that the file says, else the epoch: a backfill may then cover any day."""
    start_ms = parse_time(config.start_date, what="start_date") if config.start_date else 0
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=start_ms)


def _document(config: CollectionConfig) -> str:
    key, columns = ", ".join(config.key), ", ".join(config.columns)
    return f"""{config.description}

| | |
| --- | --- |
| shard | `{config.name}` |
| source | `{config.source.path}` ({config.source.format}) |
| key | `{key}` |
| columns | `{columns}` |

`persist describe {config.name}` prints its frontiers, `persist snapshot {config.name}` the table.
"""
