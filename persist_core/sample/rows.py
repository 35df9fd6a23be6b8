"""The raw records of a sample: each as the fields that its row has, before any type.

What cannot be read as its format is left out: the job that decodes the sample reports it as an err.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from persist_core.sample.files import SampledFile

DMS_OP = "Op"


@dataclass(frozen=True)
class RawRow:
    """`row`: the fields of a row (for Debezium: after the change, else before it). `message`: what it came in."""

    row: Mapping[str, Any]
    message: Mapping[str, Any]

    @property
    def has_schema(self) -> bool:
        """True if the message says its own types."""
        return isinstance(self.message.get("schema"), dict)


def raw_rows(
    files: Sequence[SampledFile], format: str, *, delimiter: str = ",", names: Sequence[str] | None = None
) -> list[RawRow]:
    """The records of all files. `names`: of the fields of text files without a header line."""
    found: list[RawRow] = []
    for file in files:
        if file.table is not None:
            found += [RawRow(row, row) for row in file.table.to_pylist()]
        elif format.endswith("csv"):
            found += _csv(file.lines, delimiter, names)
        else:
            found += [_of_message(message, format) for message in messages(file.lines)]
    return found


def messages(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; numbers with a point or an exponent are decimals."""
    for line in lines:
        try:
            found = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


def _of_message(message: dict[str, Any], format: str) -> RawRow:
    found = RawRow(message, message)
    if format == "debezium-json":
        payload = message["payload"] if isinstance(message.get("payload"), dict) else message
        return RawRow(_object(payload.get("after")) or _object(payload.get("before")), message)
    return RawRow(_object(message.get("data")), message) if format == "dms-json" else found


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _csv(lines: Sequence[bytes], delimiter: str, names: Sequence[str] | None) -> list[RawRow]:
    texts = [line.decode("utf-8-sig", "replace").rstrip("\r\n") for line in lines if line.strip()]
    rows = list(csv.reader(texts, delimiter=delimiter))
    header, rows = (rows[0], rows[1:]) if names is None and rows else (list(names or ()), rows)
    found = (dict(zip(header, (value or None for value in row), strict=False)) for row in rows)
    return [RawRow(row, row) for row in found]


def value_at(row: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path of names; `None` if it is not there."""
    found: Any = row
    for name in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found
