"""Errors in a collection file: `<file>: <dotted field>: found <value>, expected <what>; <remedy>`.

pydantic finds the mistakes; this module writes the messages. `refuse` makes an error inside a validator,
`validated` turns a `ValidationError` into lines.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from persist_core.errors import ConfigError

M = TypeVar("M", bound=BaseModel)

MAX_LINES = 20  # a file with more errors usually repeats one mistake
_MAX_FOUND_CHARS = 80
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TYPES: Mapping[str, tuple[str, str]] = {  # pydantic's error type -> (expected, remedy)
    "string_type": ("text", "put it in quotes"),
    "bool_type": ("true or false", "write one of the two"),
    "bool_parsing": ("true or false", "write one of the two"),
    "int_type": ("a whole number", "write digits only"),
    "int_parsing": ("a whole number", "write digits only"),
    "int_from_float": ("a whole number", "write digits only"),
    "dict_type": ("a mapping", "write `name: value` lines, indented"),
    "model_type": ("a mapping", "write `field: value` lines, indented"),
    "model_attributes_type": ("a mapping", "write `field: value` lines, indented"),
    "tuple_type": ("a list", "write [a, b]"),
}
_BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}


def refuse(found: object, expected: str, remedy: str, *, at: Sequence[str | int] = ()) -> PydanticCustomError:
    """The error for a validator to raise; `at` is the field below the field of the validator."""
    context = {"found": show(found), "expected": expected, "remedy": remedy, "at": list(at)}
    return PydanticCustomError("persist", "found {found}, expected {expected}; {remedy}", context)


def show(value: object) -> str:
    """`value` for a message: one line, bounded, with control and invisible characters escaped."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"a mapping with {len(value)} fields"
    text = ascii(value)[: _MAX_FOUND_CHARS * 3] if not isinstance(value, str) else _quoted(value)
    return text if len(text) <= _MAX_FOUND_CHARS else text[: _MAX_FOUND_CHARS - 3] + "..."


def _quoted(text: str) -> str:
    """`text` in quotes. Letters of any script stay readable; characters that are not printable are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in repr(text[:_MAX_FOUND_CHARS]))


def nearest(name: object, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or an empty string."""
    names = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name).lower()[:_MAX_FOUND_CHARS], names, n=1, cutoff=0.6)
    return f"did you mean {names[close[0]]!r}?" if close else ""


def dotted(path: Iterable[str | int]) -> str:
    """`columns.id.type`, `key[0]`, `columns["odd name"].type`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN.fullmatch(step) and len(step) <= _MAX_FOUND_CHARS:
            text += f".{step}" if text else step
        else:
            text += f"[{show(step)}]"
    return text


def validated(model: type[M], fields: Mapping[str, Any], path: Path) -> M:
    """The model of a file's fields. Raises `ConfigError` with a line for each mistake."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(explain(error, model, str(path))) from None


def explain(error: ValidationError, model: type[BaseModel], file: str) -> str:
    """All errors, one per line, at most `MAX_LINES`."""
    lines = []
    for detail in error.errors(include_url=False):
        context = detail.get("ctx", {})
        path = (*detail["loc"], *context.get("at", ()))
        lines.append(f"{file}: {dotted(path) or 'the file'}: {_sentence(detail, context, model)}")
    more = len(lines) - MAX_LINES
    return "\n".join(lines[:MAX_LINES] + ([f"{file}: and {more} more errors"] if more > 0 else []))


def _sentence(detail: Mapping[str, Any], context: Mapping[str, Any], model: type[BaseModel]) -> str:
    kind: str = detail["type"]
    found = show(detail["input"])
    last = detail["loc"][-1] if detail["loc"] else ""
    if kind == "persist":
        return str(detail["msg"])
    if kind == "missing":
        return "found nothing, expected this field; add it"
    if kind == "extra_forbidden":
        fields = list(_model_at(model, detail["loc"][:-1]).model_fields)
        remedy = nearest(last, fields) or "remove it"
        return f"found an unknown field, expected one of {', '.join(fields)}; {remedy}"
    if kind == "literal_error":
        expected = str(context["expected"])
        remedy = nearest(detail["input"], re.findall(r"'([^']*)'", expected)) or _write(expected)
        return f"found {found}, expected {'one of ' if ' or ' in expected else ''}{expected}; {remedy}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"found {found}, expected {words} {context[bound]}; change the number"
    expected, remedy = _TYPES.get(kind, (f"a valid value ({detail['msg']})", "correct the value"))
    return f"found {found}, expected {expected}; {remedy}"


def _write(expected: str) -> str:
    return "write one of them" if " or " in expected else f"write {expected}: this release supports no other value"


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel]:
    """The model that the field at `path` belongs to, by walking annotations."""
    current: type[BaseModel] = model
    for step in path:
        field = current.model_fields.get(str(step))
        found = _first_model(field.annotation) if field else None
        current = found or current
    return current


def _first_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner: Callable[[Any], tuple[Any, ...]] = typing.get_args
    return next((found for found in map(_first_model, inner(annotation)) if found), None)
