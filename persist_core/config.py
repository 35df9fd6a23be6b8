"""One collection, as its YAML file describes it: frozen, validated, with errors that name file, field and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from persist_core.schema import CollectionSchema

Format = Literal["debezium-json", "dms-csv", "dms-parquet", "dms-json", "json", "csv", "parquet"]
Unit = Literal["s", "ms", "us", "ns", "days"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class SourceConfig(_Model):
    """Where records come from.

    `path` is a glob; it may hold one `{date:%Y-%m-%d}` (any strftime pattern of year/month/day/hour), which dates its
    files in UTC: a file dated at or after the run's upper is not yet due.
    """

    path: str
    format: Format
    decimals: Literal["precise", "string", "double"] = "precise"
    delimiter: str = ","
    header: bool = True


class ColumnConfig(_Model):
    """One column: its type, where its value is found in the record (default: under its name), its integer unit."""

    type: str
    field: str | None = None
    unit: Unit | None = None
    nullable: bool = True


class OrderConfig(_Model):
    """What orders the records of a key: `position` alone, `auto` (the format's own: LSN, binlog), or fields."""

    by: Literal["auto", "position", "fields"] = "auto"
    fields: tuple[str, ...] = ()
    mode: Literal["log"] = "log"


class TimeConfig(_Model):
    """Where a record's time comes from; `late` says what to do with one that lies before the batch's lower."""

    source: Literal["description", "path", "field"] = "description"
    field: str | None = None
    unit: Unit = "ms"
    late: Literal["lift", "error"] = "lift"


class DeleteConfig(_Model):
    """What marks a delete in plain formats: a column equal to one of `values`, or all value columns null."""

    column: str | None = None
    values: tuple[str, ...] = ()
    null_value: bool = False


class RetentionConfig(_Model):
    """Checkpoints to keep, and how often operator state is saved whole."""

    keep_last: Annotated[int, Field(ge=1, le=1000)] = 10
    keep_daily: Annotated[int, Field(ge=0, le=366)] = 7
    keep_weekly: Annotated[int, Field(ge=0, le=520)] = 4
    snapshot_every: Annotated[int, Field(ge=1, le=100)] = 10


class LimitsConfig(_Model):
    """Bounds of one run. `max_errors=None` is no bound."""

    max_errors: Annotated[int, Field(ge=0)] | None = 1000
    max_files: Annotated[int, Field(ge=1)] = 100_000
    max_bytes: Annotated[int, Field(ge=1)] | None = None


class CollectionConfig(_Model):
    """A whole collection file."""

    name: str
    description: str = ""
    source: SourceConfig
    key: tuple[str, ...]
    columns: dict[str, ColumnConfig]
    order: OrderConfig = OrderConfig()
    time: TimeConfig = TimeConfig()
    delete: DeleteConfig = DeleteConfig()
    schedule: str | None = "@daily"
    start_date: str | None = None
    end_of_input: Literal["keep_open", "close"] = "keep_open"
    retention: RetentionConfig = RetentionConfig()
    limits: LimitsConfig = LimitsConfig()
    base_dir: str = "."

    def collection_schema(self) -> CollectionSchema:
        """Key columns in the order of `key`, then the others in the order of the file."""
        raise NotImplementedError


def load_collection(path: Path) -> CollectionConfig:
    """Parse and check one file."""
    raise NotImplementedError
