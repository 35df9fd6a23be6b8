"""From a view to its tasks, a task group or a whole DAG.

    view_tasks(config)       the four tasks, in the DAG or group that is open
    view_task_group(config)  the same inside a task group
    build_view_dag(config)   DAG persist_view__<name>
    build_view_dags(folder)  one DAG per view file; a wrong file becomes an import error under its own path

A view whose schedule is `on_input` runs whenever one of its inputs was appended to: it waits for their shards' assets,
as the DAGs of the inputs emit them. So collections, views and views of views chain by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from persist_airflow.compat import DAG, TaskGroup, any_asset, interval_schedule, make_asset
from persist_airflow.factory import RETRIES, RETRY_DELAY, ShardTasks, dags_of, shard_tasks, stand_ins, start_of
from persist_airflow.hook import PersistHook
from persist_airflow.links import shard_uri
from persist_core.config.view import ON_INPUT, ViewConfig, load_views

DAG_PREFIX = "persist_view__"


def view_tasks(config: ViewConfig, **options: Any) -> ShardTasks:
    """The four tasks of one view. `options` are those of `persist_airflow.factory.shard_tasks`."""
    return shard_tasks(config, **options)


def view_task_group(config: ViewConfig, *, group_id: str | None = None, **options: Any) -> TaskGroup:
    """The four tasks inside a task group (default id: the view's name). `options` are those of `shard_tasks`."""
    with TaskGroup(group_id or config.name) as group:
        view_tasks(config, **options)
    return group


def build_view_dag(
    config: ViewConfig,
    *,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> DAG:
    """DAG `persist_view__<name>`. `options` are those of `shard_tasks`; `dag_args` go over the defaults below.

    With a cron schedule each run refreshes at the end of its interval, so history is filled in step by step by a
    backfill; there is no catch-up. With `on_input` a run refreshes as far as the inputs have come.
    """
    arguments: dict[str, Any] = {
        "dag_id": f"{DAG_PREFIX}{config.name}",
        "description": config.description or f"View of {', '.join(config.inputs)} -> shard {config.name}",
        "schedule": _schedule(config, options.get("persist_conn_id", PersistHook.default_conn_name)),
        "start_date": start_of(config),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["persist", "view"],
        "doc_md": _document(config),
        "default_args": {"retries": RETRIES, "retry_delay": RETRY_DELAY, **(default_args or {})},
    }
    with DAG(**{**arguments, **(dag_args or {})}) as dag:
        view_tasks(config, **options)
    return dag


def build_view_dags(folder: str | Path, *, collections: str | Path | None = None, **options: Any) -> dict[str, DAG]:
    """A DAG for every view file in `folder`, by DAG id: `globals().update(...)`. `options`: see `build_view_dag`.

    `collections` is the folder of the collections that views may read (default: `collections` beside `folder`).
    """
    folder = Path(folder).absolute()
    views, errors = load_views(folder, collections=Path(collections) if collections is not None else None)
    dags, refused = dags_of(views, folder, lambda config: build_view_dag(config, **options))
    return {dag.dag_id: dag for dag in (*dags, *stand_ins([*errors, *refused], folder, DAG_PREFIX))}


def _schedule(config: ViewConfig, persist_conn_id: str) -> Any:
    if config.schedule != ON_INPUT:
        return interval_schedule(config.schedule)
    return any_asset([make_asset(shard_uri(persist_conn_id, name)) for name in config.inputs])


def _document(config: ViewConfig) -> str:
    inputs = ", ".join(f"`{name}`" for name in config.inputs)
    query = config.query if config.query is not None else config.definition
    return f"""{config.description}

| | |
| --- | --- |
| shard | `{config.name}` |
| inputs | {inputs} |
| read-only | {"yes: it says what it would write, and writes nothing" if config.read_only else "no"} |

```sql
{query.strip()}
```

`persist snapshot {config.name}` prints its rows, `persist changes {config.name} --after ...` what changed.
"""
