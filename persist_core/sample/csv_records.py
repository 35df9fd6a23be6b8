"""CSV: lines to records, and records to fields.

A record is on several lines if a quoted field holds line breaks (RFC 4180). In a damaged line a quote is missing too,
and the next quote of some later record would close its field, with all records between them in it. So lines are joined
only if that gives a record without a fault; otherwise each is a record of its own, and the damaged one an err.
"""

from __future__ import annotations

import csv
import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator

DMS_NULL = "NULL"  # unless its endpoint's setting `CsvNullValue` says another text
_MAX_LINES = 4_000_000  # of a record
csv.field_size_limit(1 << 30)  # Python's own limit, 128 KiB, would end the program at a longer field


def csv_rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """The fields of each record. Python's reader ends at a CR outside of quotes."""
    return csv.reader((line.replace("\r", " ") for line in lines), delimiter=delimiter)


def null_text(format: str, given: str | None) -> str | None:
    """The text that is null in CSV, by `source.null_value`; an unquoted empty field may be null too."""
    return DMS_NULL if given is None and format == "dms-csv" else given


def whole_records(lines: Iterable[bytes], delimiter: str, *, max_bytes: int, is_cut: bool = False) -> Iterator[bytes]:
    """The records of a file's lines (without LF): lines, some of them joined by LF.

    Lines are joined if the first one leaves a quoted field open, the next one with an odd number of quotes ends the
    record, they are four million at most and have at most `max_bytes` together, and there are as many fields as in the
    file's first record.
    `is_cut`: a field that is open at the end goes on in lines that are not here; its lines are left out.
    """
    opens = re.compile(open_field(delimiter).encode())
    held: list[bytes] = []  # lines from one that leaves a field open
    held_bytes = count = 0
    for line in lines:
        is_odd = line.count(b'"') % 2 == 1
        if held:
            held.append(line)
            held_bytes += len(line) + 1
            record = b"\n".join(held) if is_odd and held_bytes <= max_bytes else b""
            found = record and _field_count(record, delimiter)
            if found and count in (0, found):
                yield record
                held, count = [], found
                continue
            if not is_odd and held_bytes <= max_bytes and len(held) < _MAX_LINES:
                continue
            yield from held[:-1]
            held = []
        if is_odd and opens.search(line):
            held, held_bytes = [line], len(line) + 1
            continue
        if not count and line.strip():
            count = len(next(csv_rows([line.removeprefix(BOM_UTF8).decode("utf-8", "replace")], delimiter)))
        yield line
    if not is_cut:
        yield from held


def open_field(delimiter: str) -> str:
    """A pattern, of Python and of Java, that is found in a line which leaves a quoted field open."""
    return f'(?:^(?:\ufeff)?|{re.escape(delimiter)})"(?:[^"]++|"")*+$'


def _field_count(record: bytes, delimiter: str) -> int:
    """The number of fields of a record without a fault, else 0."""
    text = io.StringIO(record.removeprefix(BOM_UTF8).removesuffix(b"\r").decode("utf-8", "replace"), newline="")
    try:
        rows = list(csv.reader(text, delimiter=delimiter, strict=True))
    except csv.Error:
        return 0
    return len(rows[0]) if len(rows) == 1 else 0
