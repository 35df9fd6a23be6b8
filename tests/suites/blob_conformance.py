"""The conformance suite of `Blob`: subclass it, define how to make a store and how to bypass it, and run pytest.

    class TestMine(BlobConformance):
        def make(self, folder): return MyBlob(...)       # a fresh, empty store
        def reopen(self, blob): ...                      # another object for the same store
        def raw_read(self, blob, key): ...               # what is stored, without using MyBlob
        def raw_write(self, blob, key, data): ...        # store a value, without using MyBlob
        def address(self, blob): return "mine://..."     # for other processes; None if they cannot reach it

Every rule of the contract is a test here; a backend is done when it passes. Needs pytest.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from persist_core.errors import InvalidInput, InvalidName
from persist_core.location.blob import Blob, BlobMetadata, FileTaker
from tests.suites.race_conformance import BlobRaceConformance, keys

# In the order of their UTF-8 bytes. Pairs among them would meet, or change places, if a backend folded case,
# normalized Unicode, matched patterns, decoded percents, sorted by UTF-16 or sorted directory by directory.
HOSTILE_KEYS = (
    " ",
    "#",
    "%",
    "%00",
    "%2e%2e",
    "%2f",
    "' OR 1=1",
    "*",
    "-rf",
    "...",
    "..a",
    ".a.crc",
    "0",
    "00",
    "?x=1&y=2",
    "A",
    "CON",
    "Z",
    "[a]",
    "_SUCCESS",
    "_temporary/0/x",
    "a",
    "a ",
    "a!",
    "a\"b'",
    "a-",
    "a-b/c",
    "a.",
    "a.b/c",
    "a0",
    "a:b",
    "aa",
    "b.c",
    "b/..c",
    "b/.c",
    "b/A",
    "b/a",
    "b/a+b",
    "b/day=2024-01-01 00%3A00/part-0",
    "b0",
    "cafe\u0301",
    "caf\u00e9",
    "z/" + "y/" * 40 + "x",
    "{a,b}",
    "~",
    "\u202egnp",
    "\u65e5\u672c/\u8a9e",
    "\uff5e",
    "\U0001f980",
)
LONGEST_KEY = "/".join(["k" * 204] * 5)
ILLEGAL_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "./a",
    "../a",
    "a/..",
    "a/../b",
    "a/./b",
    "a\x00b",
    "a\nb",
    "a\x7f",
    "a\\b",
    "..\\a",
    "k" * 1025,
    "\ud800",
)


class BlobConformance(BlobRaceConformance):
    """Tests for every `Blob`. See the module's first lines for how to use it."""

    # Whether `a` and `a/b` may both hold values. If not, the second must be refused, changing nothing.
    key_may_be_prefix: ClassVar[bool] = True

    # get, set, delete

    def test_an_empty_store(self, blob: Blob) -> None:
        assert blob.get("a") is None
        assert blob.get("a/b/c") is None
        assert blob.delete("a") is None
        assert blob.delete("a/b/c") is None
        assert keys(blob, "") == []
        assert keys(blob, "a/b") == []

    @pytest.mark.parametrize(
        "data",
        [b"", b"\x00", b"a\r\nb\n", b"\xff\xfe", bytes(range(256)) * (5 << 12)],
        ids=["empty", "nul", "newlines", "no-utf8", "5MiB"],
    )
    def test_data_of_all_kinds(self, blob: Blob, tmp_path: Path, data: bytes) -> None:
        if isinstance(blob, FileTaker):
            (tmp_path / "file").write_bytes(data)
            blob.set_file("a/b", tmp_path / "file")
            assert self.raw_read(blob, "a/b") == data
            assert blob.delete("a/b") == len(data)
        blob.set("a/b", data)
        read = blob.get("a/b")
        assert type(read) is bytes
        assert read == data
        assert self.raw_read(blob, "a/b") == data
        assert list(blob.list_keys_and_metadata("")) == [BlobMetadata("a/b", len(data))]
        assert blob.delete("a/b") == len(data)

    @pytest.mark.parametrize("data", ["text", 3, None, bytearray(b"x")], ids=["str", "int", "none", "bytearray"])
    def test_data_must_be_bytes(self, blob: Blob, data: bytes) -> None:
        with pytest.raises(InvalidInput):
            blob.set("a", data)
        assert keys(blob, "") == []

    def test_set_replaces_the_whole_value(self, blob: Blob) -> None:
        for data in (b"short", b"a much longer value", b"x", b"", b"again"):
            blob.set("a/b", data)
            assert blob.get("a/b") == data
            assert sizes(blob, "a/b") == {"a/b": len(data)}

    def test_set_is_idempotent(self, blob: Blob) -> None:
        blob.set("a", b"x")
        blob.set("a", b"x")
        assert blob.get("a") == b"x"
        assert keys(blob, "") == ["a"]

    def test_delete_tells_the_size_once(self, blob: Blob) -> None:
        blob.set("a/b", b"12345")
        blob.set("a/c", b"")
        assert blob.delete("a/b") == 5
        assert blob.delete("a/b") is None
        assert blob.get("a/b") is None
        assert self.raw_read(blob, "a/b") is None
        assert keys(blob, "") == ["a/c"]
        assert blob.delete("a/c") == 0
        assert blob.delete("a/c") is None
        assert keys(blob, "") == []

    def test_a_key_lives_again_after_delete(self, blob: Blob) -> None:
        for data in (b"one", b"two"):
            blob.set("a/b/c", data)
            assert blob.get("a/b/c") == data
            assert blob.delete("a/b/c") == 3

    # keys

    def test_keys_do_not_interfere(self, blob: Blob) -> None:
        expected = {key: key.encode() for key in HOSTILE_KEYS}
        for key, data in expected.items():
            blob.set(key, data)
        for key, data in expected.items():
            assert blob.get(key) == data
            assert self.raw_read(blob, key) == data
        assert keys(blob, "") == list(HOSTILE_KEYS)
        for key in HOSTILE_KEYS[::2]:
            assert blob.delete(key) == len(expected[key])
        assert keys(blob, "") == list(HOSTILE_KEYS[1::2])
        for key in HOSTILE_KEYS[1::2]:
            assert blob.get(key) == expected[key]

    def test_the_longest_key(self, blob: Blob) -> None:
        assert len(LONGEST_KEY) == 1024
        blob.set(LONGEST_KEY, b"x")
        assert blob.get(LONGEST_KEY) == b"x"
        assert keys(blob, LONGEST_KEY) == [LONGEST_KEY]
        assert blob.delete(LONGEST_KEY) == 1

    @pytest.mark.parametrize("key", ILLEGAL_KEYS, ids=lambda key: ascii(key)[:20])
    def test_illegal_keys_are_refused_by_every_call(self, blob: Blob, key: str) -> None:
        blob.set("a/b", b"untouched")
        with pytest.raises(InvalidName):
            blob.set(key, b"x")
        with pytest.raises(InvalidName):
            blob.get(key)
        with pytest.raises(InvalidName):
            blob.delete(key)
        with pytest.raises(InvalidName):
            blob.uri_of(key)
        assert sizes(blob, "") == {"a/b": 9}

    def test_a_key_that_begins_another(self, blob: Blob) -> None:
        blob.set("a/b", b"below")
        if self.key_may_be_prefix:
            blob.set("a", b"above")
            blob.set("a/b/c", b"deeper")
            assert sizes(blob, "") == {"a": 5, "a/b": 5, "a/b/c": 6}
            return
        for key in ("a", "a/b/c", "a/b/c/d"):
            with pytest.raises(InvalidName, match="below"):
                blob.set(key, b"refused")
            assert blob.get(key) is None
            assert blob.delete(key) is None
            assert keys(blob, key + "/") == [k for k in ["a/b"] if k.startswith(key + "/")]
        assert sizes(blob, "") == {"a/b": 5}

    def test_a_key_is_free_once_those_below_it_are_gone(self, blob: Blob) -> None:
        blob.set("a/b/c/d", b"1")
        blob.set("a/b/e", b"2")
        blob.delete("a/b/c/d")
        blob.set("a/b/c", b"3")
        blob.delete("a/b/c")
        blob.delete("a/b/e")
        blob.set("a", b"4")
        assert sizes(blob, "") == {"a": 1}
        blob.delete("a")
        blob.set("a/b", b"5")
        assert sizes(blob, "") == {"a/b": 1}

    # listings

    def test_listing_is_by_string_prefix(self, blob: Blob) -> None:
        for key in HOSTILE_KEYS:
            blob.set(key, b"x")
        prefixes = {key[:length] for key in HOSTILE_KEYS for length in range(min(len(key), 12) + 1)}
        for prefix in sorted(prefixes | {"b/", "b/a", "no", "no/such", "b/a/", "a/", "y/y"}):
            assert keys(blob, prefix) == [key for key in HOSTILE_KEYS if key.startswith(prefix)], prefix

    @pytest.mark.parametrize(
        "prefix", ["/", "/a", "..", "../", "../a", "a//", "./", "a/../", "a\x00", "\ud800"], ids=ascii
    )
    def test_a_prefix_that_no_key_has(self, blob: Blob, prefix: str) -> None:
        blob.set("a", b"x")
        if prefix == "..":  # `..b` is a key
            assert keys(blob, prefix) == []
            return
        with pytest.raises(InvalidName):
            blob.list_keys_and_metadata(prefix)

    def test_a_listing_of_many(self, blob: Blob) -> None:
        wanted = {f"s/{index % 7}/{index}": index for index in range(300)}
        for key, size_bytes in wanted.items():
            self.raw_write(blob, key, bytes(size_bytes))
        assert sizes(blob, "s/") == wanted
        assert keys(blob, "s/") == sorted(wanted)

    def test_deleting_while_listing(self, blob: Blob) -> None:
        wanted = sorted(f"s/{index % 5}/{index}" for index in range(20))
        for key in wanted:
            blob.set(key, b"x")
        deleted = []
        for metadata in blob.list_keys_and_metadata("s/"):
            assert blob.delete(metadata.key) == 1
            deleted.append(metadata.key)
        assert deleted == wanted
        assert keys(blob, "") == []

    # the same store, seen from other processes

    def test_what_others_wrote_is_seen_at_once(self, blob: Blob) -> None:
        blob.set("a/b", b"ours")
        self.raw_write(blob, "a/b", b"theirs, longer")
        assert blob.get("a/b") == b"theirs, longer"
        for key in ("a/_SUCCESS", "a/.b.crc", "new/part=oks/x.parquet"):
            self.raw_write(blob, key, b"new")
            assert blob.get(key) == b"new"
        assert sizes(blob, "") == {"a/.b.crc": 3, "a/_SUCCESS": 3, "a/b": 14, "new/part=oks/x.parquet": 3}
        blob.make_durable("new/")
        blob.make_durable("absent/")
        assert blob.delete("new/part=oks/x.parquet") == 3

    def test_two_objects_share_one_store(self, blob: Blob) -> None:
        other = self.reopen(blob)
        blob.set("a", b"1")
        assert other.get("a") == b"1"
        other.set("a", b"2")
        assert blob.get("a") == b"2"
        assert other.delete("a") == 1
        assert blob.get("a") is None
        other.close()
        blob.set("a", b"3")
        assert blob.get("a") == b"3"

    def test_values_outlive_their_object(self, blob: Blob) -> None:
        blob.set("a/b", b"1")
        other = self.reopen(blob)
        blob.close()
        blob.close()  # harmless
        assert other.get("a/b") == b"1"
        other.close()

    def test_uris_can_be_printed(self, blob: Blob) -> None:
        assert ":" in blob.uri
        if self.address(blob) is None:
            with pytest.raises(InvalidInput):
                blob.uri_of("a/b")
        else:
            assert blob.uri_of("a/b").endswith("/a/b")


def sizes(blob: Blob, prefix: str) -> dict[str, int]:
    """The sizes in bytes of a listing, by key."""
    return {metadata.key: metadata.size_bytes for metadata in blob.list_keys_and_metadata(prefix)}
