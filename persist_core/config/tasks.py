"""Options of the tasks of a shard in Airflow: the section `airflow:` of a collection or view.

    airflow:
      owner: data-team
      all: {retries: 5}                        of all four tasks
      write: {pool: spark, timeout_s: 7200}    over that, of one of them

Nothing here changes what a run writes, and `persist run` does not read it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from persist_core.config.model import AirflowName, ConfigModel


class TaskConfig(ConfigModel):
    """Airflow's options of one task. `None`: what `default_args`, the factory or Airflow says.

    `priority` is Airflow's `priority_weight`, `timeout_s` its `execution_timeout`. `executor_config` is plain data.
    """

    pool: AirflowName | None = None
    pool_slots: Annotated[int, Field(ge=1)] | None = None
    queue: AirflowName | None = None
    priority: int | None = None
    retries: Annotated[int, Field(ge=0, le=1000)] | None = None
    retry_delay_s: Annotated[int, Field(ge=0)] | None = None
    timeout_s: Annotated[int, Field(ge=1)] | None = None
    executor_config: dict[str, Any] | None = None


class AirflowConfig(ConfigModel):
    """Options of the DAG: `owner`, `tags`, `max_active_runs`; and of the tasks: `all`, and each by its stage."""

    owner: AirflowName | None = None
    tags: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = ()
    max_active_runs: Annotated[int, Field(ge=1, le=1000)] = 1
    all: TaskConfig = TaskConfig()
    mint: TaskConfig = TaskConfig()
    write: TaskConfig = TaskConfig()
    append: TaskConfig = TaskConfig()
    checkpoint: TaskConfig = TaskConfig()
