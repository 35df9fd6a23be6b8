"""The base of all models of files: frozen; an unknown field is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigModel(BaseModel):
    """Frozen; an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)
