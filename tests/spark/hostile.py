"""Hostile texts of a given size, and lines of every text format that hold one in each place where a value may stand."""

from __future__ import annotations

import json
from collections.abc import Iterator

TYPES = (
    "int", "bigint", "decimal(38,9)", "decimal(10,2)", "decimal(5,0)", "float", "double", "boolean", "date",
    "timestamp", "binary", "string", "json",
)  # fmt: skip
COLUMNS = {"id": {"type": "string"}, **{f"c{i}": {"type": name} for i, name in enumerate(TYPES)}}
CSV_HEADER = ",".join(COLUMNS)

_PIECES = (
    "1", "0", "9", "e", "E5", "-", "+", ".", " ", "\t", '"', '""', "\\", "\\\\", "[", "{", "}", "]", ",", ":", "=",
    "/", "A", "f", "0x", "\\x", "N", "NaN", "Infinity", "null", "\\ud800", "\\udc00", "\\u005c", "\ufdd0", "\u00e9",
    '{"a":', '[{"a":[', '"payload" : { ', '{"ts_ms":1} ', "2026-01-02T03:04:05", "Z", "00:00", "1 ", "1,", '"MARK', "'",
)  # fmt: skip
_AROUND = (
    ("", ""), ("1", "x"), ("0.", "1x"), ("1", ".5"), ("1.", "e5"), ("1e", ""), ("1E-", ""), ("-", " x"), ("0x", "g"),
    ("2026-01-02T03:04:05.", "0"), ("2026-01-02T03:04:05.1", "Zx"), ("2026-01-02T00:00:00.", "Z"), ('"', ""),
    ("{", "}"), ("\\x", "=="), (" ", " 1"),
)  # fmt: skip


def texts(size: int) -> dict[str, str]:
    """About `size` characters each, by name: one piece again and again, between a start and an end."""
    found = {}
    for piece in _PIECES:
        for start, end in _AROUND:
            found[f"{start}({piece})*{end}"] = start + piece * (size // len(piece)) + end
    return found


def lines(kind: str, text: str) -> Iterator[str]:
    """Lines of a format with `text` in all places: as a quoted value, as a bare one, and as the line itself."""
    flat = text.replace("\n", " ")
    if kind in ("csv", "dms-csv"):
        start = "U," if kind == "dms-csv" else ""
        for field in (flat, '"' + flat.replace('"', '""') + '"', '"' + flat):
            yield start + ",".join(["k", *[field] * len(TYPES)])
        yield flat
        return
    for value in (json.dumps(flat), flat, f'"{flat}"'):
        row = "{" + ",".join(['"id":"k"', *[f'"c{i}":{value}' for i in range(len(TYPES))]]) + "}"
        yield row
        if kind == "debezium-json":
            yield f'{{"op":"u","after":{row},"source":{{"lsn":{value},"file":{value},"pos":{value}}},"ts_ms":{value}}}'
            yield f'{{"key":{value},"value":{value}}}'
            yield f'{{"payload":{{"ts_ms":1}}{flat if not flat.strip() else ""},"x":{value}}}'
            yield f'{{"key":{{"id":"k"}},"value":{{"op":"d","before":{row}}}}}'
        if kind == "dms-json":
            yield f'{{"data":{row},"metadata":{{"operation":"update","record-type":"data","timestamp":{value}}}}}'
    yield flat
