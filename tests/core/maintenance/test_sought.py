"""Keys in texts: however JSON writes them, and in texts that are cut; and digests of early times."""

from __future__ import annotations

import json
from itertools import product
from typing import Literal
from unicodedata import normalize
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


@pytest.mark.parametrize("text", ['ann "x" smith', 'änn "x" smith', "šárka@example.org"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_key_is_found_in_csv_latin_1_and_nfd(text: str, form: Literal["NFC", "NFD"]) -> None:
    """In a field of CSV a quote is doubled, and the field may be JSON."""
    sought = Sought.of([(text,)], EMAIL)
    said = normalize(form, text)
    for each in (said, json.dumps({"email": said}), json.dumps({"email": said}, ensure_ascii=False)):
        field = '1,"' + each.replace('"', '""') + '",'
        assert sought.is_said([field])
        assert sought.is_in_object(field.encode())
        if form == "NFC":
            assert sought.is_in_object(field.encode("cp1252"))
    assert not sought.is_in_object(f'1,"x{said}",'.encode())


def test_text_of_utf_8_is_not_read_as_another() -> None:
    assert not Sought.of([("Ã¼ber",)], EMAIL).is_in_object("1,über".encode())


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


@pytest.mark.parametrize(
    ("written", "is_found"),
    [
        *(("1.5E-7", True), ("0.00000015", True), ("0.0000001500", True)),
        *(("1.5E-70", False), ("21.5E-7", False), ("1.5E-8", False), ("1.5", False), ("0.000000015", False)),
    ],
)
def test_a_small_decimal_is_found_with_an_exponent(written: str, is_found: bool) -> None:
    columns = (Column("id", "decimal(12,8)", nullable=False),)
    sought = Sought.of([parse_key(["0.00000015"], columns)], columns)
    for said in (f'{{"id":{written}}}', f'["{written}","x"]'):
        assert sought.is_in_object(b"no JSON " + said.encode()) == is_found


TIMES = (Column("born", "timestamp", nullable=False), Column("name", "string", nullable=False))


@pytest.mark.parametrize("year", ["0985", "1969", "2026"])
@pytest.mark.parametrize("fraction", ["", ".5", ".025", ".123456"])
def test_a_time_is_found_with_any_zeros(year: str, fraction: str) -> None:
    moment = f"{year}-03-07T09:11:10"
    sought, other = (Sought.of([parse_key([moment + fraction, name], TIMES)], TIMES) for name in ("ann", "bo"))
    zeros = [fraction, *((fraction or ".") + "0" * count for count in range(1, 4))]
    for shown, between, zone in product(zeros, "T ", ["Z", "+00:00", "-00:00", "+0000", "", " UTC"]):
        said = json.dumps({"born": moment.replace("T", between) + shown + zone, "name": "ann"})
        assert sought.is_said([said])
        assert sought.is_in_object(json.dumps({"warnings": [{"samples": [said]}]}).encode())
        assert sought.is_in_object(b"no JSON but " + said.encode())
        assert not other.is_said(said)
        assert other.is_said(said + "x" * 186), "it is cut"


OTHERS = ["10", "10.55", "10.05", "1", "10.5+02:00", "10.5 +02:00", "10.5-00:30", "10.5+0030", "10.5x", "10.50.1"]


@pytest.mark.parametrize("seconds", OTHERS)
def test_another_time_is_not_found(seconds: str) -> None:
    sought = Sought.of([parse_key(["1969-03-07 09:11:10.5", "ann"], TIMES)], TIMES)
    assert not sought.is_said(json.dumps({"born": f"1969-03-07T09:11:{seconds}", "name": "ann"}))


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


@pytest.mark.parametrize("year", ["0000", "-0001", "-0400", "+10000", "+12000", "+294246", "-290307"])
def test_a_far_year_has_a_sign_in_a_digest(year: str) -> None:
    """As Spark writes it: the digests of a job and of an erasure are equal."""
    columns = (Column("at", "timestamp", nullable=False), Column("day", "date", nullable=False))
    texts = [f"{year}-01-02T03:04:05.000006Z", f"{year}-02-28"]
    assert list(key_texts(parse_key(texts, columns), columns).values()) == texts


@pytest.mark.parametrize("text", ["+294248-01-01T00:00:00Z", "-290309-01-01", "+9999999-01-01T00:00:00Z", "+10000-x"])
def test_a_time_beyond_the_type_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a value of type timestamp"):
        parse_key([text], (Column("at", "timestamp", nullable=False),))


def test_a_reason_with_a_key_is_refused() -> None:
    history = Erasing(in_memory(), KEYED, 1)
    history.append()
    with pytest.raises(InvalidInput, match="the reason holds a key"):
        erase(history.client, "s", ["1", "north"], by="me", reason="asked by North")
