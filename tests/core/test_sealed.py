"""Sealed objects: every flipped bit is found, and a version or a kind that is not the expected one is refused."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.errors import CorruptArtifact, UnknownVersion
from persist_core.sealed import is_sealed, seal, sealed_digest, unseal

BODY: dict[str, Any] = {"name": "née", "none": None, "rows": [[1, 2.5], True], "nested": {"b": 1, "a": 'x"y'}}


def test_golden_bytes() -> None:
    assert seal("thing", 3, {"b": 1, "a": {"z": None, "y": "é"}}) == (
        b'{"sha256":"34faeabf0ada46f3782a3e0129c0c2d9e43444ccaafd76dac2cadf1530b2f25c","kind":"thing","version":3,'
        b'"a":{"y":"\\u00e9","z":null},"b":1}'
    )


def test_the_digest_is_of_the_bytes_with_zeros_in_its_place() -> None:
    data = seal("thing", 1, BODY)
    digest = sealed_digest(data)
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert hashlib.sha256(data.replace(digest.encode(), b"0" * 64, 1)).hexdigest() == digest
    assert list(json.loads(data))[:3] == ["sha256", "kind", "version"]


@pytest.mark.parametrize("body", [BODY, {}], ids=["body", "empty"])
def test_every_flipped_bit_is_found(body: dict[str, Any]) -> None:
    data = seal("thing", 1, body)
    assert unseal(data, kind="thing", version=1, what="it") == body
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptArtifact, match=r"^it is damaged"):
            unseal(bytes(damaged), kind="thing", version=1, what="it")


def test_bytes_cut_off_or_added_anywhere_are_found() -> None:
    data = seal("thing", 1, BODY)
    for position in range(len(data)):
        for damaged in (data[:position], data[:position] + b"x" + data[position:], data[:position] + b"}"):
            if damaged != data:
                with pytest.raises(CorruptArtifact, match=r"^it is damaged"):
                    unseal(damaged, kind="thing", version=1, what="it")


def test_another_kind_and_another_version_are_refused() -> None:
    data = seal("thing", 2, BODY)
    with pytest.raises(CorruptArtifact, match="it is a thing, expected a part"):
        unseal(data, kind="part", version=2, what="it")
    with pytest.raises(UnknownVersion, match="it has version 2; this release reads version 1"):
        unseal(data, kind="thing", version=1, what="it")


def test_a_body_with_a_reserved_field_is_refused() -> None:
    with pytest.raises(ValueError, match="reserved fields"):
        seal("thing", 1, {"kind": "other"})


def test_the_order_of_fields_is_kept_on_request() -> None:
    body = {"b": 1, "a": {"z": 1, "y": 2}}
    kept = unseal(seal("thing", 1, body, sort_keys=False), kind="thing", version=1, what="it")
    assert (list(kept), list(kept["a"])) == (["b", "a"], ["z", "y"])


TEXT = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too: file names may have them
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=4))


@given(st.dictionaries(TEXT.filter(lambda name: name not in ("sha256", "kind", "version")), JSON, max_size=5))
def test_any_body_comes_back(body: dict[str, Any]) -> None:
    data = seal("thing", 1, body)
    assert is_sealed(data)
    assert data.isascii()
    assert unseal(data, kind="thing", version=1, what="it") == body
