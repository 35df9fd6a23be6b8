"""The parts of a manifest with many files: lists of them beside it, so that a reader of other facts reads no part.

    manifest.json      all facts, and of each list: its digest, and what it holds together
    parts-000000.json  the parts of one kind that follow each other by key
    parts-000001.json  ...

The manifest binds each list by its digest, and the state binds the manifest. A list has one kind of part and says of
all its parts what a part says of itself, so a reader of a range of keys opens only the lists that may hold some.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from persist_core.contents.key_range import Key, KeyRange, spanning
from persist_core.schema import CollectionSchema
from persist_core.sealed import check_in_place, seal, sealed_digest, unseal

MAX_PARTS = 1000  # in one object: about 0.5 MB
LIST_VERSION = 1
_LIST = "part_list"


@dataclass(frozen=True)
class PartList:
    """A list of parts of one kind: how many, and the sums and bounds of what they say of themselves (`Part`)."""

    kind: str
    files: int
    size_bytes: int
    rows: int | None
    last_time: int | None
    first_key: Key | None
    last_key: Key | None
    inherits: bool
    sha256: str

    @property
    def keys(self) -> KeyRange:
        return KeyRange(self.first_key, self.last_key)

    def read(self, data: bytes, *, what: str) -> list[dict[str, Any]]:
        """The parts in its bytes, as the manifest would hold them. Raises `CorruptArtifact` naming `what`."""
        body = unseal(data, kind=_LIST, version=LIST_VERSION, what=what)
        check_in_place(sealed_digest(data), self.sha256, what=what)
        parts: list[dict[str, Any]] = body["parts"]
        return parts


@dataclass(frozen=True)
class UnreadParts(Sequence[Any]):
    """The parts of a manifest whose lists were not read: only their number is known."""

    lists: tuple[PartList, ...]
    schemas: Mapping[int, CollectionSchema]

    def __len__(self) -> int:
        return sum(each.files for each in self.lists)

    def __getitem__(self, place: Any) -> NoReturn:
        raise AssertionError("the parts of this manifest were not read: `client.manifests` reads them")


def split(parts: Iterable[Mapping[str, Any]]) -> Iterator[tuple[PartList, bytes]]:
    """Lists of these parts, and their bytes; none for at most `MAX_PARTS`. Equal parts give equal bytes."""
    ordered = sorted(parts, key=lambda part: (part["kind"], part["first_key"] or ()))
    if len(ordered) <= MAX_PARTS:
        return
    for kind, found in itertools.groupby(ordered, key=lambda part: str(part["kind"])):
        while listed := list(itertools.islice(found, MAX_PARTS)):
            data = seal(_LIST, LIST_VERSION, {"parts": listed})
            yield _list_of(kind, listed, sealed_digest(data)), data


def _list_of(kind: str, parts: Sequence[Mapping[str, Any]], sha256: str) -> PartList:
    rows = [part["rows"] for part in parts]
    times = [part["last_time"] for part in parts]
    keys = spanning([KeyRange(part["first_key"], part["last_key"]) for part in parts])
    return PartList(
        kind,
        len(parts),
        sum(part["size_bytes"] for part in parts),
        None if None in rows else sum(rows),
        None if None in times else max(times),
        keys.first,
        keys.last,
        any(part["inherits"] for part in parts),
        sha256,
    )
