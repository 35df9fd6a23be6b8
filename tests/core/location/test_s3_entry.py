"""The bytes of an entry of an S3 log: their exact form, and that damaged bytes are never read as an entry."""

from __future__ import annotations

from typing import Any

import pytest

from persist_core.errors import Corruption
from persist_core.location.consensus import VersionedData
from persist_core.location.s3.entry import (
    Entry,
    decode_entry,
    decode_header,
    entry_after,
    folder_of,
    truncation_after,
)

FOLDER = folder_of("k\u00e9\n")
FIRST = entry_after(None, "k\u00e9\n", VersionedData(5, b"data"), "id-1")
TRUNCATION = truncation_after(entry_after(FIRST, "k\u00e9\n", VersionedData(9, b""), "id-2"), FIRST.header, "id-3")


def flipped(data: bytes, bit: int) -> bytes:
    byte, mask = divmod(bit, 8)
    return data[:byte] + bytes([data[byte] ^ 1 << mask]) + data[byte + 1 :]


def test_golden_bytes() -> None:
    assert FIRST.encode() == (
        b"persist-consensus-1 e560a899d5870938fc951ee089d1af012717305cd26c710941cb3daed801485b "
        b'{"id":"id-1","key":"k\xc3\xa9\\n","seqno":5,"number":1,"first":0,"truncated":0,"restates":false,'
        b'"sha256":"3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"}\ndata'
    )


@pytest.mark.parametrize("entry", [FIRST, TRUNCATION])
def test_what_was_encoded_is_decoded(entry: Entry) -> None:
    data, position = entry.encode(), entry.header.position
    assert decode_entry(data, FOLDER, position, "here") == entry
    assert decode_header(data, FOLDER, position, "here") == entry.header


@pytest.mark.parametrize("entry", [FIRST, TRUNCATION])
def test_every_flipped_bit_is_found(entry: Entry) -> None:
    data, position = entry.encode(), entry.header.position
    for bit in range(len(data) * 8):
        damaged = flipped(data, bit)
        with pytest.raises(Corruption, match=r"^here: "):
            decode_entry(damaged, FOLDER, position, "here")
        if bit < data.index(b"\n") * 8:
            with pytest.raises(Corruption, match=r"^here: "):
                decode_header(damaged, FOLDER, position, "here")


def test_an_entry_at_another_position_is_found() -> None:
    with pytest.raises(Corruption, match="position 1"):
        decode_header(FIRST.encode(), FOLDER, 1, "here")


@pytest.mark.parametrize("read", [decode_header, decode_entry])
def test_an_entry_of_another_log_is_found(read: Any) -> None:
    with pytest.raises(Corruption, match="another log's object is in its place"):
        read(FIRST.encode(), folder_of("another"), 0, "here")


@pytest.mark.parametrize("size_bytes", range(len(FIRST.encode())))
def test_a_cut_entry_is_found(size_bytes: int) -> None:
    with pytest.raises(Corruption):
        decode_entry(FIRST.encode()[:size_bytes], FOLDER, 0, "here")
