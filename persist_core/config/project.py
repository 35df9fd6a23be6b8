"""Settings of a whole project: `persist.yaml`, beside the folders of collections and views.

maintenance:
  schedule: "@hourly"      of the DAG persist_maintenance; null: only by hand
  pool: default_pool       another pool must exist in Airflow
  max_rows: 5000000        a merge of more rows is done by Spark
watch:
  schedule: "*/5 * * * *"  of the DAG persist_watch
groups:
  crm: {collections: [crm_*]}   one DAG for all collections of these names (`persist_core.config.groups`)
timezone, freshness, alerts, notify: for all collections and views that say nothing else (`persist_core.config.alerts`)
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from persist_core.config.alerts import WatchFields
from persist_core.config.files import PROJECT_FILE, read_fields
from persist_core.config.groups import GroupConfig, GroupName
from persist_core.config.model import AirflowName, ConfigModel, Schedule, TimeZone, Whole
from persist_core.config.problems import refuse, validated
from persist_core.time_text import HOUR_MS, UTC_ZONE

MAX_HOURS = 8760


class MaintenanceConfig(ConfigModel):
    """When and how the DAG `persist_maintenance` runs, and how much one dag run does.

    At most `max_shards` shards a dag run, `max_tasks` of them at the same time. At most `max_merges` merges of a shard,
    up to `max_rows` rows in the task's own process (one or two minutes for 5 million rows of 180 bytes), and
    larger ones by Spark. A merge that would rewrite more than `max_merge_bytes`, and more than a 20th of the shard, is
    done in steps, each a merge. GC deletes a file at least `grace_hours` after nothing needs it, and refuses batches
    that were described more than `intent_hours` ago.
    """

    schedule: Schedule = "@hourly"
    pool: AirflowName = "default_pool"
    max_shards: Annotated[Whole, Field(ge=1, le=1000)] = 200
    max_tasks: Annotated[Whole, Field(ge=1, le=1000)] = 1
    max_merges: Annotated[Whole, Field(ge=0, le=1000)] = 16
    max_rows: Annotated[Whole, Field(ge=0)] = 5_000_000
    max_merge_bytes: Annotated[Whole, Field(ge=1)] = 2 << 30
    grace_hours: Annotated[Whole, Field(ge=1, le=MAX_HOURS)] = 24
    intent_hours: Annotated[Whole, Field(ge=1, le=MAX_HOURS)] = 72

    @property
    def grace_ms(self) -> int:
        return self.grace_hours * HOUR_MS

    @property
    def intent_ms(self) -> int:
        return self.intent_hours * HOUR_MS

    @model_validator(mode="after")
    def _check_hours(self) -> MaintenanceConfig:
        if self.grace_hours > self.intent_hours:
            raise refuse(self.grace_hours, f"at most intent_hours, {self.intent_hours}", "change one of the two",
                         at=["grace_hours"])  # fmt: skip
        return self


KEEP_LONGEST = MaintenanceConfig(grace_hours=MAX_HOURS, intent_hours=MAX_HOURS)
"""Bounds while `persist.yaml` is wrong: GC deletes nothing that any `persist.yaml` would keep."""


class WatchConfig(ConfigModel):
    """When and how the DAG `persist_watch` runs. `guide` is where its messages find docs/operations.md."""

    schedule: Schedule = "*/5 * * * *"
    pool: AirflowName = "default_pool"
    guide: Annotated[str, Field(min_length=1, max_length=1000)] = "docs/operations.md"


class ProjectConfig(WatchFields):
    """A complete `persist.yaml`. A section that is left out has its defaults.

    `freshness`, `alerts`, `notify` and `timezone` are for the collections and views whose files do not have them.
    """

    timezone: TimeZone = UTC_ZONE
    maintenance: MaintenanceConfig = MaintenanceConfig()
    watch: WatchConfig = WatchConfig()
    groups: dict[GroupName, GroupConfig] = {}  # noqa: RUF012 - pydantic copies defaults


def load_project(path: Path) -> ProjectConfig:
    """Parse and check the file. Raises `ConfigError`: one line per mistake, as `load_collection`."""
    return validated(ProjectConfig, read_fields(path, first_fields="maintenance:"), path)


def project_of(folder: str | Path) -> ProjectConfig:
    """`persist.yaml` of the folder; the defaults if there is no such file. Raises `ConfigError`."""
    path = Path(folder) / PROJECT_FILE
    return load_project(path) if path.is_file() else ProjectConfig()
