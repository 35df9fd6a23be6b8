"""Keys in stored objects: found wherever they can be.

Parquet       rows by their key columns, whatever their names were; errs by the bytes of their key; and a record whose
              key could not be decoded, if its bytes hold each text of the key as a word, in UTF-8 or Latin-1, accents
              composed or not (NFC, NFD), the escapes of JSON, of a URL and of quotes in CSV read or not, bytes in hex
              or base64, and decimals and times with any zeros at their end
sealed JSON   bounds of files; texts for people: samples of errs and warnings, which may be cut; reasons that users gave
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from persist_core.contents.erased import key_texts
from persist_core.contents.key_range import Key, KeyRange, exactly, is_within, meets_any
from persist_core.schema import (
    BAD_KEY,
    ERR_KEY,
    ERR_PAYLOAD,
    Column,
    arrow_type,
    field_id,
)

MIN_WORD = 4  # characters of a key's text: a shorter one is in many records
_CUT = 190  # bytes: a text for people that is as long may be cut
_ENCODINGS = ("utf-8", "cp1252")  # the second has all letters of Latin-1
_NESTED = 3  # JSON in a text in JSON, in a text
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))""")
_CONTROLS = dict(zip("bfnrt", "\b\f\n\r\t", strict=True))
_TAIL = re.compile(r"(\\(u[0-9a-fA-F]{0,3})?|%[0-9a-fA-F]?|\ufffd+)$")  # of a text that was cut within a character
_IN_UTC = rb" ?(?:Z|UTC|[+-]00(?::?00)?(?!:))(?![\w-])"  # after a time
_WITHOUT_ZONE = rb"(?![\w-]|\.\d| *[+-]?\d)"
_PARQUET = b"PAR1"
_RAW = (ERR_KEY, BAD_KEY, ERR_PAYLOAD)
_BOUNDS = ("first_key", "last_key", "merged_to")
_TEXTS = ("samples", "sample", "first", "payload", "reason")  # for people: to delete one too many costs nothing


@dataclass(frozen=True)
class Sought:
    """Keys of a shard to look for."""

    keys: tuple[Key, ...]
    columns: tuple[Column, ...]
    _words: tuple[tuple[re.Pattern[bytes], ...], ...]
    _texts: tuple[Mapping[str, str], ...]
    _bounds: frozenset[Key]

    @classmethod
    def of(cls, keys: Sequence[Key], columns: Sequence[Column]) -> Sought:
        """From whole keys."""
        texts = tuple(key_texts(key, columns) for key in keys)
        ranges = [each for key in keys for each in (exactly(key), exactly(key).shortened())]
        bounds = {bound for each in ranges for bound in (each.first, each.last) if bound is not None}
        words = tuple(tuple(re.compile(_word_of(each[c.name], c)) for c in columns) for each in texts)
        return cls(tuple(keys), tuple(columns), words, texts, frozenset(bounds))

    @property
    def ranges(self) -> list[KeyRange]:
        return list(map(exactly, self.keys))

    def may_be_within(self, keys: KeyRange) -> bool:
        """True unless the bounds of a file rule all keys out."""
        return meets_any(keys, self.ranges)

    def is_bound(self, keys: KeyRange) -> bool:
        """True if a bound is the text of a key, or the beginning of one."""
        return keys.first in self._bounds or keys.last in self._bounds

    def rows_of(self, table: pa.Table) -> pa.ChunkedArray | pa.Array:
        """For each row of a stored file, whether it is of one of the keys."""
        names = {field_id(column): column.name for column in table.schema}
        return self._rows_by(table, [names.get(column.id) for column in self.columns])

    def is_in_rows(self, table: pa.Table) -> bool:
        """True if the file may hold a row of the keys, whichever generation of the shard has written it."""
        by_name = [column.name if column.name in table.column_names else None for column in self.columns]
        with suppress(pa.ArrowException):  # a column of another type
            if pc.any(self.rows_of(table)).as_py():
                return True
        with suppress(pa.ArrowException):
            return bool(pc.any(self._rows_by(table, by_name)).as_py())
        return False

    def _rows_by(self, table: pa.Table, stored: Sequence[str | None]) -> pa.ChunkedArray | pa.Array:
        if None in stored:
            return pa.repeat(False, len(table))
        cells = {
            column.name: table[name].cast(arrow_type(column.type))
            for column, name in zip(self.columns, stored, strict=True)
        }
        found = is_within(pa.table(cells), self.ranges, self.columns)
        raw = [name for name in _RAW if name in table.column_names]
        unread = pc.is_null(table[stored[0]])
        if not raw or not pc.any(unread).as_py():
            return found
        rows = table.select(raw).append_column("row", pa.array(range(len(table)), pa.int64())).filter(unread)
        hits = [row["row"] for row in rows.to_pylist() if any(self._is_in(row[name]) for name in raw)]
        return pc.or_(found, pc.is_in(pa.array(range(len(table)), pa.int64()), pa.array(hits, pa.int64())))

    def _is_in(self, raw: bytes | None) -> bool:
        """True if bytes from a feed are a key, or hold one as words that are not short."""
        if raw is None:
            return False
        long = [max(map(len, texts.values())) >= MIN_WORD for texts in self._texts]
        sought = [words for is_long, words in zip(long, self._words, strict=True) if is_long]
        if any(_all_in(words, each) for each in _spellings(raw) for words in sought):
            return True
        try:
            return json.loads(raw) in [list(texts.values()) for texts in self._texts]
        except ValueError:
            return False

    def is_said(self, value: Any) -> bool:
        """True if a text for people, or one in a list of them, mentions a key, or if it is cut and mentions a part."""
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            return any(map(self.is_said, value))
        if not isinstance(value, str):
            return False
        raw = value.encode("utf-8", "replace")
        is_cut = len(raw) >= _CUT
        return any(
            any(_all_in(words, each) for words in self._words) or (is_cut and self._is_part_in(each.decode()))
            for each in _spellings(raw, is_cut=is_cut)
        )

    def _is_part_in(self, said: str) -> bool:
        spelled = (
            text for texts in self._texts for column in self.columns for text in _written(texts[column.name], column)
        )
        cells = {text for text in spelled if len(text) >= MIN_WORD}
        return any(text in said or _ends_within(said, text) for text in cells)

    def is_in_object(self, data: bytes) -> bool:
        """True if a stored object, of any kind, holds one of the keys."""
        if data.startswith(_PARQUET):
            file = pq.ParquetFile(io.BytesIO(data))
            names = {column.name for column in self.columns}
            return self.is_in_rows(file.read(columns=columns_of(file, self, names)))
        try:
            return self._is_in_json(json.loads(data))
        except ValueError:
            return self._is_in(data)

    def _is_in_json(self, body: Any) -> bool:
        if isinstance(body, list):
            return any(self._is_in_json(each) for each in body)
        if not isinstance(body, dict):
            return False
        bounds = {tuple(body[name]) for name in _BOUNDS if body.get(name)}
        said = [body[name] for name in _TEXTS if body.get(name)]
        is_here = not self._bounds.isdisjoint(bounds) or self.is_said(said)
        return is_here or any(self._is_in_json(each) for each in body.values())


def _all_in(words: tuple[re.Pattern[bytes], ...], raw: bytes) -> bool:
    return all(word.search(raw) for word in words)


def _spellings(raw: bytes, *, is_cut: bool = False) -> Iterator[bytes]:
    """The bytes, then their text, with the escapes of JSON, of a URL or of a quote in CSV read, again and again."""
    try:
        texts = {raw.decode()}
    except UnicodeDecodeError:
        texts = {raw.decode(each, "replace") for each in _ENCODINGS}
    yield from {raw, *(text.encode() for text in texts)}
    for _ in range(_NESTED):
        plain = {unquote_plus(text) for text in texts if "%" in text or "+" in text}
        for text in texts:
            if "\\" in text:
                said = _ESCAPE.sub(_read, _TAIL.sub("", text) if is_cut else text)
                plain.add(said.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
            if '""' in text:
                plain.add(text.replace('""', '"'))
        yield from (text.encode() for text in plain)
        texts = plain


def _read(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _CONTROLS.get(escape[2], escape[2])


def _ends_within(cut: str, text: str) -> bool:
    """True if the end of a cut text is the beginning of another one."""
    tail = _TAIL.sub("", cut)[-len(text) :]
    return any(text.startswith(tail[place:]) for place in range(max(0, len(tail) - MIN_WORD + 1)))


def _word_of(text: str, column: Column) -> bytes:
    if column.type.startswith("decimal") and "." in text:  # not within a longer number
        of_spark = re.escape(str(Decimal(text)).encode())  # 1E-7
        return rb"(?<![\w-])(?<!\d\.)(?:%s|%s)(?![\w-]|\.\d)" % (_with_zeros(text), of_spark)
    if column.type == "timestamp":
        moment = _with_zeros(text.removesuffix("Z")).replace(b"T", b"[T ]")
        return rb"(?<![\w-])%s(?:%s|%s)" % (moment, _IN_UTC, _WITHOUT_ZONE)
    spelled = b"|".join(re.escape(each.encode()) for each in _written(text, column))
    return rb"(?<![\w-])(?:%s)(?![\w-])" % spelled


def _with_zeros(text: str) -> bytes:
    """A pattern: a number, or a time, with any zeros at the end of its fraction."""
    kept = re.escape(text.rstrip("0").encode())
    return kept.removesuffix(rb"\.") + rb"(?:\.0*)?" if kept.endswith(rb"\.") else kept + b"0*"


def _written(text: str, column: Column) -> list[str]:
    """A text of a key as feeds may write it: accents composed or not; bytes in hex or base64; of times what all
    spellings begin with."""
    if column.type == "timestamp":
        moment = text.removesuffix("Z").rstrip("0").removesuffix(".")
        return [moment, moment.replace("T", " ")]
    if column.type != "binary":
        return [text, *{normalize("NFC", text), normalize("NFD", text)} - {text}]
    data = bytes.fromhex(text)
    encoded = [each(data).decode().rstrip("=") for each in (base64.b64encode, base64.urlsafe_b64encode)]
    return [text, text.upper(), *encoded]


def columns_of(file: pq.ParquetFile, sought: Sought, names: Collection[str]) -> list[str]:
    """The columns of a file in which keys are looked for. `names`: of key columns of other generations."""
    ids = {column.id for column in sought.columns}
    return [each.name for each in file.schema_arrow if each.name in {*_RAW, *names} or field_id(each) in ids]
