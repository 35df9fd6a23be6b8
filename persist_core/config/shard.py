"""The fields that every kind of shard has in its YAML file: name, schedule, retention.

Collections and views build on them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from persist_core.config import checks
from persist_core.config.problems import refuse
from persist_core.errors import InvalidName
from persist_core.shard.keys import check_shard_name


class ConfigModel(BaseModel):
    """Frozen; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class RetentionConfig(ConfigModel):
    """Checkpoints to keep, and how often operator state is saved in full."""

    keep_last: Annotated[int, Field(ge=1, le=1000)] = 10
    keep_daily: Annotated[int, Field(ge=0, le=366)] = 7
    keep_weekly: Annotated[int, Field(ge=0, le=520)] = 4
    snapshot_every: Annotated[int, Field(ge=1, le=100)] = 10


class ShardConfig(ConfigModel):
    """The fields of a shard's file that do not depend on its source."""

    name: str
    description: Annotated[str, Field(max_length=10_000)] = ""
    schedule: str | None = "@daily"
    start_date: str | None = None
    retention: RetentionConfig = RetentionConfig()
    base_dir: str = "."

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        try:
            return check_shard_name(name)
        except InvalidName as error:
            raise refuse(name, checks.rule_of(error), "rename the file") from None

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, schedule: str | None) -> str | None:
        return None if schedule is None else checks.schedule(schedule)

    @field_validator("start_date")
    @classmethod
    def _check_start_date(cls, text: str | None) -> str | None:
        return None if text is None else checks.start_date(text)

    @field_validator("base_dir")
    @classmethod
    def _check_base_dir(cls, folder: str) -> str:
        return checks.folder(folder)
