"""Keys in texts: however JSON writes them, and in texts that are cut; and digests of early times."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest

from persist_core.contents.erased import key_texts
from persist_core.contents.key_range import parse_key
from persist_core.errors import InvalidInput
from persist_core.maintenance.actions import erase
from persist_core.maintenance.sought import Sought
from persist_core.schema import Column
from tests.core.compaction.histories import KEYED
from tests.core.maintenance.test_erase import Erasing, in_memory

EMAIL = (Column("email", "string", nullable=False),)
TEXTS = ['ann"q"smith@example.org', "CORP\\ann", "änn@example.org", "a/b/c@example.org", "😀ann@example.org"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_key_is_found_however_json_writes_it(text: str, is_ascii: bool) -> None:
    sought = Sought.of([(text,)], EMAIL)
    said = json.dumps({"email": text, "n": 1}, ensure_ascii=is_ascii)
    for _ in range(2):
        for each in (said, said.replace("/", "\\/"), f"?q={quote(said)}&n=1", f"?q={quote_plus(said)}&n=1"):
            assert sought.is_said([each])
            assert sought.is_in_object(json.dumps({"warnings": [{"samples": [each]}]}).encode())
            assert sought.is_in_object(b"no JSON but " + each.encode())
        said = json.dumps(said, ensure_ascii=is_ascii)
    assert not sought.is_said(json.dumps({"email": f"x{text}"}))


@pytest.mark.parametrize("written", ["fbefbe00ff", "FBEFBE00FF", "++++AP8=", "----AP8", "++++AP8"])
def test_a_key_of_bytes_is_found_in_hex_and_base64(written: str) -> None:
    columns = (Column("id", "binary", nullable=False),)
    sought = Sought.of([parse_key(["fbefbe00ff"], columns)], columns)
    assert sought.is_in_object(f'no JSON {{"id":"{written}"}}'.encode())
    assert sought.is_said(f"{'x' * 186} {written[:5]}")
    assert not sought.is_in_object(f'no JSON {{"id":"{written[:4]}"}}'.encode())


@pytest.mark.parametrize(
    ("written", "is_found"),
    [
        *(("12345", True), ("12345.0", True), ("12345.000", True)),
        *(("9.12345", False), ("12345.05", False), ("12345.005", False), ("1234", False)),
    ],
)
def test_a_decimal_key_is_found_with_any_zeros(written: str, is_found: bool) -> None:
    columns = (Column("id", "decimal(9,2)", nullable=False),)
    sought = Sought.of([parse_key(["12345"], columns)], columns)
    for said in (f'{{"id":{written}}}', f'["{written}","x"]'):
        assert sought.is_in_object(b"no JSON " + said.encode()) == is_found


def test_a_cut_text_may_hold_a_part_of_a_key() -> None:
    sought = Sought.of([("ann.smith@example.org",)], EMAIL)
    filler = "x" * 186 + " "
    assert sought.is_said(f"{filler}ann.smi")
    assert not sought.is_said(f"{filler}bob.smi")
    assert not sought.is_said("ann.smi")
    for end in ("ann.smith%", "ann.smith%4", "ann.smith%40exam"):
        assert sought.is_said(f"{filler}q={end}")


@pytest.mark.parametrize("year", ["0001", "0999", "9999"])
def test_a_year_has_four_digits_in_a_digest(year: str) -> None:
    columns = (Column("at", "timestamp", nullable=False), Column("day", "date", nullable=False))
    key = parse_key([f"{year}-01-02T03:04:05Z", f"{year}-01-02"], columns)
    assert list(key_texts(key, columns).values()) == [f"{year}-01-02T03:04:05.000000Z", f"{year}-01-02"]


def test_a_reason_with_a_key_is_refused() -> None:
    history = Erasing(in_memory(), KEYED, 1)
    history.append()
    with pytest.raises(InvalidInput, match="the reason holds a key"):
        erase(history.client, "s", ["1", "north"], by="me", reason="asked by North")
