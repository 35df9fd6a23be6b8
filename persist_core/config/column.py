"""One column of a collection, as its file describes it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from persist_core.config import checks
from persist_core.config.model import ConfigModel
from persist_core.config.problems import refuse

Unit = Literal["s", "ms", "us", "ns", "days"]


class ColumnConfig(ConfigModel):
    """One column: its type, where its value is found in the record (default: under its name), its integer unit."""

    type: str
    field: str | None = None
    unit: Unit | None = None
    nullable: bool = True

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        return {"type": data} if isinstance(data, str) else data

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        return checks.type_name(name)

    @field_validator("field")
    @classmethod
    def _check_field(cls, name: str | None) -> str | None:
        return None if name is None else checks.field_name(name)

    @model_validator(mode="after")
    def _check_unit(self) -> ColumnConfig:
        if self.unit is not None and self.type not in ("date", "timestamp"):
            raise refuse(self.unit, f"a unit only with date or timestamp, not {self.type}", "remove it", at=["unit"])
        return self
