"""What a test writes behind a store's back is what the store reads."""

from __future__ import annotations

import pytest

from persist_core.errors import Corruption
from persist_core.location import VersionedData, open_location
from tests.servers.stored_bytes import StoredBytes, flipped, on_each_backend

VALUE = b"a value"


@on_each_backend
def test_a_bit_of_a_blob(stored: StoredBytes) -> None:
    with open_location(stored.location) as location:
        location.blob.set("a/b", VALUE)
        assert stored.read_blob("a/b") == VALUE
        stored.write_blob("a/b", flipped(VALUE, 9))
        assert location.blob.get("a/b") == b"a\x22value"
        stored.write_blob("a/b", None)
        assert location.blob.get("a/b") is None


@on_each_backend
def test_a_bit_of_the_newest_version(stored: StoredBytes) -> None:
    with open_location(stored.location) as location:
        location.consensus.compare_and_set("k", None, VersionedData(0, b"an older value"))
        location.consensus.compare_and_set("k", 0, VersionedData(3, VALUE))
        found = stored.read_version("k")
        assert found.endswith(VALUE)
        damaged = flipped(found, (len(found) - len(VALUE)) * 8 + 9)
        stored.write_version("k", damaged)
        if found == VALUE:  # the backend keeps no more than it was given
            assert location.consensus.head("k") == VersionedData(3, b"a\x22value")
        else:
            with open_location(stored.location) as fresh, pytest.raises(Corruption):
                fresh.consensus.head("k")
        stored.write_version("k", found)
    with open_location(stored.location) as location:
        assert location.consensus.head("k") == VersionedData(3, VALUE)
        assert location.consensus.scan("k", 0)[0] == VersionedData(0, b"an older value")
