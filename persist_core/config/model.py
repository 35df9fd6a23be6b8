"""The base of all models of files, and the types of fields that several models have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt

from persist_core.config import checks


class ConfigModel(BaseModel):
    """Frozen; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


Whole = StrictInt
"""A whole number: not `true`, `5.0` or `"5"`."""
Flag = StrictBool
OneOrMore = BeforeValidator(checks.listed)
"""Before a tuple: a file may have a single text in its place."""
Names = Annotated[tuple[str, ...], OneOrMore]
AirflowName = Annotated[str, Field(min_length=1, max_length=250)]
FieldName = Annotated[str, AfterValidator(checks.field_name)]
Schedule = Annotated[str, AfterValidator(checks.schedule)] | None
TimeZone = Annotated[str, AfterValidator(checks.timezone)]
