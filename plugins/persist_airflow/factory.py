"""From a collection or view to its tasks, a task group or a whole DAG.

    shard_tasks(config)                    the four tasks, in the DAG or group that is open; `tasks_of(dag)` finds them
    upsert_task_group(config)              the same inside a task group; `view_task_group` for views
    build_upsert_dag(config)               DAG persist_upsert__<name>; `build_view_dag`: persist_view__<name>
    build_dags(folder), build_view_dags    one DAG per file of a folder; a wrong file becomes an import error of its own

One factory makes both kinds. What differs between them is in `_collection_face` and `_view_face`.

A view whose schedule is `on_input` waits for the assets of its inputs, which their append tasks update. So collections,
views and views of views chain by themselves. Parsing touches no store and no network and imports no Spark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pendulum
import yaml

from persist_airflow.announce import AnnounceFailure
from persist_airflow.compat import (
    DAG,
    Asset,
    AssetAny,
    TaskGroup,
    file_import_error,
    interval_schedule,
    only_dag_id,
    with_newest_files,
)
from persist_airflow.group_dag import document_of, group_tasks, split_groups
from persist_airflow.hook import PersistHook
from persist_airflow.links import shard_uri
from persist_airflow.notifications import NotifyBy, chosen, takes
from persist_airflow.operators import AppendBatchesOperator, CheckpointManifestOperator, MintBatchDescriptionsOperator
from persist_airflow.options import (
    GROUP_PREFIX,
    STAGES,
    TASK_IDS,
    DagOptions,
    StageOptions,
    TaskOptions,
    add_failure_callback,
    options_of,
)
from persist_airflow.spark import DEFAULT_SPARK, WriteBatchesOperator
from persist_airflow.watch import announced_as
from persist_core.config.collection import FILES, CollectionConfig, load_collections
from persist_core.config.files import config_files, groups_beside
from persist_core.config.groups import GroupConfig
from persist_core.config.order import AUTO_ORDERS
from persist_core.config.project import MaintenanceConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ON_INPUT, SHARDS, ViewConfig, load_views
from persist_core.errors import ConfigError

UPSERT_PREFIX = "persist_upsert__"
VIEW_PREFIX = "persist_view__"
_Builder = tuple[ShardConfig, Callable[..., DAG]]  # of a DAG, and whose file an error is shown for


@dataclass(frozen=True)
class ShardTasks:
    """The four tasks, already chained; `group` if they are in a task group of their own."""

    mint: MintBatchDescriptionsOperator
    write: WriteBatchesOperator
    append: AppendBatchesOperator
    checkpoint: CheckpointManifestOperator
    group: TaskGroup | None = None


def shard_tasks(
    config: ShardConfig,
    *,
    persist_conn_id: str = PersistHook.default_conn_name,
    spark_conn_id: str = DEFAULT_SPARK,
    notify: Sequence[NotifyBy] | NotifyBy = (),
    guide: str = "",
    maintenance: MaintenanceConfig | None = None,
    spark: Mapping[str, Any] | None = None,
    tasks: StageOptions | None = None,
) -> ShardTasks:
    """The four tasks of one collection or view, in the DAG or task group that is open.

    `spark` are further arguments for the provider's SparkSubmitOperator (`conf`, `packages`, `executor_memory`, ...),
    `tasks` Airflow's options of all four tasks and of each: they go over `airflow:` in the shard's file, and that over
    `default_args`. After a conflict append runs Spark, so without its own it takes write's pool, slots,
    queue and `executor_config`. `notify`: the notifiers of failed tasks and conflicts, unless the file has its own
    (docs/alerts.md). `guide`, `maintenance`: as `persist.yaml` has them.
    """
    notify = chosen(config.notify, notify)
    shared: dict[str, Any] = {"config": config, "persist_conn_id": persist_conn_id}
    options = {stage: options_of(config.airflow, tasks or {}, stage) for stage in STAGES}
    options["write"] |= spark or {}
    options["append"] = _place_of(options["write"], options["append"]) | options["append"]
    mint = MintBatchDescriptionsOperator(task_id=TASK_IDS[0], **shared, **options["mint"])
    write = WriteBatchesOperator(
        task_id=TASK_IDS[1], description=mint.output, spark_conn_id=spark_conn_id, **shared, **options["write"]
    )
    append = AppendBatchesOperator(
        task_id=TASK_IDS[2],
        staged=write.output,
        write_task_id=write.task_id,
        notify=notify,
        guide=guide,
        **shared,
        **options["append"],
    )
    checkpoint = CheckpointManifestOperator(
        task_id=TASK_IDS[3], appended=append.output, maintenance=maintenance, **shared, **options["checkpoint"]
    )
    mint >> write >> append >> checkpoint
    if takes(notify, "failures"):
        for task in (mint, write, append, checkpoint):
            add_failure_callback(task, AnnounceFailure({config.name: notify}, guide=guide))
    return ShardTasks(mint, write, append, checkpoint)


def _place_of(write: Mapping[str, Any], append: Mapping[str, Any]) -> dict[str, Any]:
    """Where write runs. Slots are of a pool: an append with another pool does not take them."""
    has_own_pool = append.get("pool", write.get("pool")) != write.get("pool")
    names = ("queue", "executor_config") if has_own_pool else ("pool", "pool_slots", "queue", "executor_config")
    return {name: write[name] for name in names if name in write}


def shard_task_group(config: ShardConfig, *, group_id: str | None = None, **options: Unpack[TaskOptions]) -> ShardTasks:
    """The four tasks inside a task group (default id: the shard's name, with `_` for each dot).

    `options`: as for `shard_tasks`.
    """
    with TaskGroup(group_id or config.name.replace(".", "_")) as group:
        tasks = shard_tasks(config, **options)
    return replace(tasks, group=group)


def tasks_of(dag: DAG, group_id: str | None = None) -> ShardTasks:
    """The four tasks in a DAG that a factory has made, or in the task group `group_id` of a DAG."""
    prefix = f"{group_id}." if group_id else ""
    tasks: Any = (dag.get_task(f"{prefix}{task_id}") for task_id in TASK_IDS)
    mint, write, append, checkpoint = tasks
    return ShardTasks(mint, write, append, checkpoint, dag.task_group_dict[group_id] if group_id else None)


def build_dag(
    config: ShardConfig,
    *,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
    **options: Unpack[TaskOptions],
) -> DAG:
    """The DAG of a collection or view. `options`: as for `shard_tasks`; `dag_args` go over the defaults below.

    With a cron schedule its runs have real data intervals, in the time zone of the file. There is no catch-up: an
    ordinary run takes all input that is due, and a backfill makes history in steps. A view that refreshes `on_input`
    goes as far as its inputs.
    """
    with _open_dag(config, _FACES[config.source_type](config), default_args, dag_args, options) as dag:
        shard_tasks(config, **options)
    return dag


def build_group_dag(
    group: str,
    members: Sequence[CollectionConfig],
    *,
    batch_of: int = GroupConfig().batch_of,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
    **options: Unpack[TaskOptions],
) -> DAG:
    """The DAG of a group, with tasks for up to `batch_of` collections each: see `persist_airflow.groups`.

    The first says the schedule, time zone, start and options: the files of a group agree on them.
    """
    by_name = {config.name: config for config in members}
    face = _Face(GROUP_PREFIX, group, "group", f"{len(members)} collections of {group}", document_of(group, by_name))
    with _open_dag(members[0], face, default_args, dag_args, options) as dag:
        group_tasks(group, by_name, batch_of, **options)
    return dag


def _open_dag(
    config: ShardConfig,
    face: _Face,
    default_args: Mapping[str, Any] | None,
    dag_args: Mapping[str, Any] | None,
    options: TaskOptions,
) -> DAG:
    owner = {"owner": config.airflow.owner} if config.airflow.owner else {}
    arguments: dict[str, Any] = {
        "dag_id": f"{face.prefix}{face.name}",
        "description": face.description,
        "schedule": _schedule(config, options.get("persist_conn_id", PersistHook.default_conn_name)),
        # Without a start in the file it is the epoch: a backfill may then cover any day.
        "start_date": pendulum.from_timestamp(config.start_ms / 1000, tz=config.timezone),
        "catchup": False,
        "max_active_runs": config.airflow.max_active_runs,
        "tags": ["persist", face.tag, *config.airflow.tags],
        "doc_md": face.document,
        "default_args": {**(default_args or {}), **owner},
        **with_newest_files(),
    }
    return DAG(**{**arguments, **(dag_args or {})})


upsert_task_group = view_task_group = shard_task_group
build_upsert_dag = build_view_dag = build_dag


def build_dags(folder: str | Path, **options: Unpack[DagOptions]) -> dict[str, DAG]:
    """A DAG for every collection file in `folder`, by DAG id: `globals().update(...)`. `options`: see `build_dag`.

    Collections of a group have one DAG together. `notify`, `guide` and `maintenance` are by default those in
    `persist.yaml` beside the folder. A task's process gets its own DAG alone, so the number of files costs it nothing.
    """
    folder = Path(folder).absolute()
    options = {**announced_as(folder.parent), **options}
    group = _only_shard(GROUP_PREFIX) or None
    only = None if group else _only_shard(UPSERT_PREFIX)
    configs, errors = load_collections(folder, only=only, group=group)
    builders: list[_Builder] = [(each, partial(build_dag, each)) for each in configs if each.group is None]
    if only is None:
        groups, wrong = split_groups(configs, folder)
        errors = [*errors, *wrong]
        for name, members in groups.items():
            builders.append((members[0], partial(_group_dag, folder, name, members)))
    return _dags(builders, errors, folder, UPSERT_PREFIX, options)


def _group_dag(folder: Path, group: str, members: Sequence[CollectionConfig], **options: Unpack[DagOptions]) -> DAG:
    batch_of = groups_beside(folder).get(group, GroupConfig()).batch_of
    return build_group_dag(group, members, batch_of=batch_of, **options)


def build_view_dags(
    folder: str | Path, *, collections: str | Path | None = None, **options: Unpack[DagOptions]
) -> dict[str, DAG]:
    """Like `build_dags`, for views.

    `collections` is the folder of the collections that views may read (default: `collections` beside `folder`).
    """
    folder = Path(folder).absolute()
    beside = Path(collections) if collections is not None else None
    options = {**announced_as(folder.parent), **options}
    configs, errors = load_views(folder, collections=beside, only=_only_shard(VIEW_PREFIX))
    return _dags([(each, partial(build_dag, each)) for each in configs], errors, folder, VIEW_PREFIX, options)


def _only_shard(prefix: str) -> str | None:
    """The shard whose DAG this process needs: an empty name for none with the prefix, `None` for all."""
    dag_id = only_dag_id()
    if dag_id is None:
        return None
    return dag_id.removeprefix(prefix) if dag_id.startswith(prefix) else ""


def _dags(
    builders: Sequence[_Builder], errors: Sequence[ConfigError], folder: Path, prefix: str, options: DagOptions
) -> dict[str, DAG]:
    dags, wrong = [], list(errors)
    for config, build in builders:
        try:
            dags.append(build(**options))
        except ConfigError as error:  # a schedule that Airflow refuses
            file = next(file for file in config_files(folder) if file.stem == config.name)
            wrong.append(ConfigError(f"{file}: {error}"))
    for each in wrong:  # a name of a file may be too long for an id, or like another's
        number = hashlib.sha256(str(each).encode()).hexdigest()[:16]
        dags.append(_WrongFile(f"{prefix}_wrong_file_{number}", _named_file(each, folder), str(each)))
    return {dag.dag_id: dag for dag in dags}


def _schedule(config: ShardConfig, persist_conn_id: str) -> Any:
    if config.schedule == ON_INPUT:
        return AssetAny(*(Asset(uri=shard_uri(persist_conn_id, name)) for name in config.read_shards))
    return interval_schedule(config.schedule, config.timezone)


@dataclass(frozen=True)
class _Face:
    """The texts that a DAG shows about its kind of shard. `document` is Markdown."""

    prefix: str
    name: str
    tag: str
    description: str
    document: str


def _collection_face(config: CollectionConfig) -> _Face:
    plan = "\n".join(f"| {name} | {text} |" for name, text in _plan_of(config).items())
    document = f"""{config.description}

| | |
| --- | --- |
{plan}

`persist describe {config.name}` prints its frontiers, `persist snapshot {config.name}` the table.

{_definition(config)}
"""
    return _Face(
        UPSERT_PREFIX,
        config.name,
        "upsert",
        config.description or f"Change feed {config.source.path} -> shard {config.name}",
        document,
    )


def _plan_of(config: CollectionConfig) -> dict[str, str]:
    """The plan of a collection in words, by what it is about. The page shows it too."""
    order, limits = config.order, config.limits
    known = "the order of the format" if config.source.format in AUTO_ORDERS else "file and row"
    by = {"auto": known, "position": "file and row"}.get(order.by, f"`{', '.join(order.fields)}`")
    wins = "the last batch wins" if order.mode == "log" else "the highest order ever seen wins"
    errors = (
        "any number of errors"
        if limits.max_errors is None
        else f"at most {' or '.join(map(str, limits.max_errors))} errors"
    )
    times = {"description": "the run's interval", "path": "the date in the path", "field": f"`{config.time.field}`"}
    return {
        "shard": f"`{config.name}`",
        "source": f"`{config.source.path}` ({config.source.format})",
        "key": f"`{', '.join(config.key)}`",
        "columns": f"`{', '.join(config.columns)}`",
        "order": f"{by}; {wins}",
        "time": times[config.time.source],
        "schedule": f"`{config.schedule}`" if config.schedule else "none: users or other DAGs start a run",
        "limits": f"a run reads at most {limits.max_files} files and accepts {errors}",
    }


def _definition(config: ShardConfig) -> str:
    """The fields of the file, and the defaults that apply to all others, as YAML blocks. The page shows both."""
    given = config.model_dump(mode="json", exclude_unset=True, exclude={"name", "base_dir"})
    whole = config.model_dump(mode="json", exclude_none=True, exclude={"name", "base_dir", *given})
    blocks = [yaml.safe_dump(each, sort_keys=False, allow_unicode=True).strip() for each in (given, whole)]
    return "```yaml\n{}\n```\n\nDefaults that apply:\n\n```yaml\n{}\n```".format(*blocks)


def _view_face(config: ViewConfig) -> _Face:
    inputs = ", ".join(f"`{name}`" for name in config.inputs)
    query = config.query if config.query is not None else config.definition
    document = f"""{config.description}

| | |
| --- | --- |
| shard | `{config.name}` |
| inputs | {inputs} |
| read-only | {"yes: it reports what it would write, and writes nothing" if config.read_only else "no"} |

```sql
{query.strip()}
```

`persist snapshot {config.name}` prints its rows, `persist changes {config.name} --after ...` what changed.

{_definition(config)}
"""
    return _Face(
        VIEW_PREFIX,
        config.name,
        "view",
        config.description or f"View of {', '.join(config.inputs)} -> shard {config.name}",
        document,
    )


_FACES: Mapping[str, Callable[[Any], _Face]] = {FILES: _collection_face, SHARDS: _view_face}


def _named_file(error: ConfigError, folder: Path) -> Path:
    """The file that the error's message starts with; the folder if the folder itself is wrong."""
    files = folder.iterdir() if folder.is_dir() else ()
    return next((file for file in files if str(error).startswith(f"{file}: ")), folder)


class _WrongFile(DAG):
    """Stands for a wrong file, and leaves an import error under its path. No shard's DAG has an id like its own."""

    def __init__(self, dag_id: str, path: Path, message: str) -> None:
        super().__init__(dag_id=dag_id, schedule=None)
        self.wrong_path = path
        self.wrong_message = message

    def validate(self) -> None:
        """Called while Airflow fills its bag of DAGs."""
        file_import_error(self.wrong_path, self.wrong_message)
        raise ConfigError(self.wrong_message)
