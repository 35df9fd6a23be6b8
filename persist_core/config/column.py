"""One column of a collection, as its file describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator

from persist_core.config import checks
from persist_core.config.model import ConfigModel, FieldName, Flag
from persist_core.config.problems import refuse

Unit = Literal["s", "ms", "us", "ns", "days"]
Decimals = Literal["precise", "string"]
Binary = Literal["base64", "hex"]


class ColumnConfig(ConfigModel):
    """One column: its type, where its value is found in the record (default: under its name), its integer unit.

    `decimals` and `binary` are as in `source` (`SourceConfig`), for this column alone. `on_error`: a bad value
    makes its record an err, or (`null`, for nullable columns) is null, and is counted with a sample. `renamed_from`:
    the name that the column has had in the shard.
    """

    type: Annotated[str, AfterValidator(checks.type_name)]
    field: FieldName | None = None
    unit: Unit | None = None
    decimals: Decimals | None = None
    binary: Binary | None = None
    nullable: Flag = True
    on_error: Literal["err", "null"] = "err"
    renamed_from: FieldName | None = None

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "on_error" in data and data["on_error"] is None:
            return {**data, "on_error": "null"}  # YAML's own null
        return {"type": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_type_of_settings(self) -> ColumnConfig:
        settings = {"unit": ("date", "timestamp"), "decimals": ("int", "bigint", "decimal"), "binary": ("binary",)}
        for name, types in settings.items():
            found = getattr(self, name)
            if found is not None and not self.type.startswith(types):
                listed = f"{', '.join(types[:-1])} or {types[-1]}" if len(types) > 1 else types[0]
                article = "a unit" if name == "unit" else name
                raise refuse(found, f"{article} only with {listed}, not {self.type}", "remove it", at=[name])
        return self
