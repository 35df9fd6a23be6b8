"""Lines of CSV to records: any record that a writer makes, and damaged ones that take no other with them."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Literal

import pytest

from persist_core.sample.csv_records import whole_records

MIB = 1 << 20


def written(rows: Sequence[Sequence[str]], delimiter: str, quoting: Literal[0, 1], end: str) -> list[bytes]:
    """The records as Python's writer makes them, without the last LF."""
    found = []
    for row in rows:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end).writerow(row)
        found.append(text.getvalue().encode().removesuffix(b"\n"))
    return found


def joined(text: bytes, *, max_bytes: int = MIB, is_cut: bool = False, delimiter: str = ",") -> list[bytes]:
    return list(whole_records(text.split(b"\n"), delimiter, max_bytes=max_bytes, is_cut=is_cut))


def random_rows(rng: random.Random, letters: Sequence[str], fields: int) -> list[list[str]]:
    return [
        ["".join(rng.choices(letters, k=rng.randint(0, 6))) for _ in range(fields)] for _ in range(rng.randint(1, 12))
    ]


@pytest.mark.parametrize("seed", range(200))
def test_what_a_writer_makes_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    delimiter = rng.choice([",", ";", "\t", "|", "é"])
    quoting: Literal[0, 1] = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    rows = random_rows(rng, ["a", "b", "\n", '"', delimiter, "\r\n", "ü", " "], rng.randint(2, 4))
    records = written(rows, delimiter, quoting, rng.choice(["\n", "\r\n"]))
    assert joined(b"\n".join(records), delimiter=delimiter) == records


@pytest.mark.parametrize("seed", range(200))
def test_a_lost_quote_harms_its_own_record_only(seed: int) -> None:
    """Texts that begin or end in a line break or delimiter are left out: with a quote lost, they have two readings.

    The first record stays whole: the others need as many fields as it has.
    """
    rng = random.Random(seed)
    rows = random_rows(rng, ["a", "b", "c", "x\ny", "x\n\ny", "x,y"], 3)
    records = written(rows, ",", csv.QUOTE_MINIMAL, "\n")
    quotes = [(at, place) for at, each in enumerate(records) if at for place, byte in enumerate(each) if byte == 34]
    if not quotes:
        return
    at, place = rng.choice(quotes)
    damaged = [*records]
    damaged[at] = records[at][:place] + records[at][place + 1 :]
    found = joined(b"\n".join(damaged))
    assert b"\n".join(found) == b"\n".join(damaged)
    assert [each for each in records[:at] if each not in found] == []
    assert [each for each in records[at + 1 :] if each not in found] == []


CASES = {
    "an inch is no field": (b'a,b\n1,5"\n2,x\n3,7"', [b"a,b", b'1,5"', b"2,x", b'3,7"']),
    "another count of fields": (b'a,b\n1,"x\n2,y\nz",3', [b"a,b", b'1,"x', b"2,y", b'z",3']),
    "behind the closing quote": (b'a,b\n1,"x\n2,y\nz"w', [b"a,b", b'1,"x', b"2,y", b'z"w']),
    "whole quotes between": (b'a,b\n1,"x\n2,"y"\nz"', [b"a,b", b'1,"x', b'2,"y"', b'z"']),
    "two open fields": (b'a,b,c\n1,"x\ny","z\nw"', [b"a,b,c", b'1,"x\ny","z\nw"']),
    "the next one is whole": (b'a,b\n1,"x\n2,"y\nz"', [b"a,b", b'1,"x', b'2,"y\nz"']),
    "a blank line first": (b'\n\na,b\n1,"x\n"', [b"", b"", b"a,b", b'1,"x\n"']),
    "a header of two lines": (b'a,"b\nc"\n1,2', [b'a,"b\nc"', b"1,2"]),
    "BOM and a quoted header": (b'\xef\xbb\xbf"a,x",b\n1,"x\ny"', [b'\xef\xbb\xbf"a,x",b', b'1,"x\ny"']),
    "BOM and a header of two lines": (b'\xef\xbb\xbf"a\nx",b\n1,"x\ny"', [b'\xef\xbb\xbf"a\nx",b', b'1,"x\ny"']),
    "never closed": (b'a,b\n1,"x\n2,y', [b"a,b", b'1,"x', b"2,y"]),
}


@pytest.mark.parametrize("case", CASES)
def test_lines_and_their_records(case: str) -> None:
    text, records = CASES[case]
    assert joined(text) == records


def test_a_record_above_the_limit_stays_lines() -> None:
    text = b'a,b\n1,"x\ny\nz"\n2,"v\nw"'
    assert joined(text, max_bytes=8) == [b"a,b", b'1,"x', b"y", b'z"', b'2,"v\nw"']


def test_a_record_of_too_many_lines_stays_lines() -> None:
    """They are not held: a text of short lines takes many times its memory."""
    lines = chain([b'1,"x'], repeat(b"", 9_000_000))
    assert next(whole_records(lines, ",", max_bytes=1 << 30, is_cut=True)) == b'1,"x'
    assert len(list(lines)) >= 5_000_000, "those behind the limit are not read for the first record"


def test_a_record_that_a_sample_cuts_is_left_out() -> None:
    assert joined(b'a,b\n1,x\n2,"y\nz', is_cut=True) == [b"a,b", b"1,x"]
    assert joined(b'a,b\n1,x\n2,"y\nz') == [b"a,b", b"1,x", b'2,"y', b"z"]


def test_a_large_field_is_joined() -> None:
    lines = b"\n".join([b"x" * 1000] * 3000)
    assert len(joined(b'a,b\n1,"' + lines + b'"\n2,y', max_bytes=8 * MIB)) == 3
