"""Numbers and booleans in files are taken as they are written, in each field of each model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from persist_core.config.model import ConfigModel
from persist_core.config.project import ProjectConfig
from persist_core.config.view import ViewConfig


def _models(model: type[ConfigModel] = ConfigModel) -> Iterator[type[ConfigModel]]:
    for each in model.__subclasses__():
        yield from (each, *_models(each))


def test_no_value_is_taken_for_a_number_or_a_boolean() -> None:
    """`true` is not 1, and `off` is not false: in no field of any file."""
    found, models = 0, set(_models())
    assert {ProjectConfig, ViewConfig} < models
    for model in models:
        for name, field in model.model_fields.items():
            form: Any = Annotated[field.annotation, *field.metadata, None]
            adapter: TypeAdapter[Any] = TypeAdapter(form)
            for said in (True, False, 1, 0, 5, 5.0, "5", "1_000", "1", "off", "yes", "true"):
                with suppress(ValidationError):
                    value = adapter.validate_python(said)
                    assert not isinstance(value, int) or type(value) is type(said), (model, name, said)
                    found += isinstance(value, int)
    assert found > 50
