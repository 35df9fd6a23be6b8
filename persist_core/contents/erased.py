"""The list of a shard's erasures: who asked when and why, and a keyed digest of each key instead of the key.

    key ──HMAC, by the list's secret──> digest ──> records of the key from before its erasure are dropped by a write

The state names the newest list; each change makes another object. The secret is in the list: who can read the location
can ask whether a key that they know was erased, and learns no key that they do not know.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from persist_core.contents.key_range import Key, value_at
from persist_core.contents.operator_state import OrderKey
from persist_core.errors import InvalidInput
from persist_core.keys import digest_in, erased_key
from persist_core.schema import CollectionSchema, Column
from persist_core.sealed import Sealed, check_in_place, sealed_digest

MAX_KEYS = 10_000  # of one shard: a write joins its records with them


@dataclass(frozen=True)
class ErasedKey:
    """One key. A record of it is dropped if its order, positions aside, is not above all of `orders` (`highest`), or if
    its time is before `time`: the end of the newest commit that took in input, or after the last record that waited for
    its time. One erasure gives one of them, orders if any was seen; several may give both."""

    digest: str
    time: int | None
    orders: tuple[OrderKey, ...]

    def later(self, other: ErasedKey | None) -> ErasedKey:
        """Both of the same key as one."""
        if other is None:
            return self
        times = [each for each in (self.time, other.time) if each is not None]
        orders = sorted({*self.orders, *other.orders}, key=_rank)
        return replace(self, time=max(times, default=None), orders=tuple(orders))


def highest(orders: Iterable[OrderKey], schema: CollectionSchema) -> tuple[OrderKey, ...]:
    """The orders of which one is the highest. There is more than one only if eras may decide
    (`persist_spark.upsert.eras`), which users may declare or correct later: of each server, those above all that have a
    later clock."""
    if not schema.beside:
        return tuple(sorted(orders, key=_rank)[-1:])
    found: list[OrderKey] = []
    latest: dict[Any, Any] = {}
    for order in sorted(orders, key=lambda each: _rank(each[1:]), reverse=True):  # without the era
        server, source_ms, _ = order[-len(schema.beside) :]
        clock = _rank([source_ms])
        if server not in latest or clock > latest[server]:
            latest[server] = clock
            found.append(order)
    return tuple(sorted(found, key=_rank))


def _rank(order: Sequence[Any]) -> list[tuple[bool, Any]]:
    """The sort key of orders: null is the least."""
    return [(cell is not None, cell) for cell in order]


@dataclass(frozen=True)
class Erasure:
    """The record of one request. `rows` and `files`: versions and errors that it removed, and files that it rewrote.

    `waiting`: keys of files that a reader with a lease of an era before `era` may still read; they are deleted when it
    ends. `ended_ms`: when everything else was done. `order_types`: of the columns of the shard's order.
    `upper`: the shard's, when the keys were erased.
    """

    by: str
    reason: str
    begun_ms: int
    keys: tuple[ErasedKey, ...]
    rows: int = 0
    files: int = 0
    waiting: tuple[str, ...] = ()
    era: int = 0
    ended_ms: int | None = None
    order_types: tuple[str, ...] = ()
    upper: int = 0

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(each.digest for each in self.keys)


@dataclass(frozen=True)
class ErasedList(Sealed):
    """All erasures of a shard, oldest first. `step` counts the changes, so no two lists are equal."""

    KIND = "erased_list"

    secret: str
    erasures: tuple[Erasure, ...] = ()
    step: int = 0

    def known(self) -> dict[str, ErasedKey]:
        found: dict[str, ErasedKey] = {}
        for erasure in self.erasures:
            for each in erasure.keys:
                found[each.digest] = each.later(found.get(each.digest))
        return found

    def digest(self, key: Key, columns: Sequence[Column]) -> str:
        """The digest of a key: HMAC-SHA256 of its texts, each after its length in bytes."""
        texts = key_texts(key, columns).values()
        said = b"".join(b"%d:%s" % (len(text.encode()), text.encode()) for text in texts)
        return hmac.new(bytes.fromhex(self.secret), said, hashlib.sha256).hexdigest()

    def changed(self, erasure: Erasure, place: int | None) -> ErasedList:
        """The next list, with `erasure` at that place; `None`: at the end. `InvalidInput` beyond `MAX_KEYS`."""
        erasures = list(self.erasures)
        if place is None:
            erasures.append(erasure)
        else:
            erasures[place] = erasure
        after = replace(self, erasures=tuple(erasures), step=self.step + 1)
        if len(after.known()) > MAX_KEYS:
            raise InvalidInput(f"the shard would have {len(after.known())} erased keys; expected {MAX_KEYS} at most")
        return after

    def knows(self, other: ErasedList) -> bool:
        """True if the two are of one shard, and this one has all requests of the other one."""
        ours, theirs = (
            [(each.begun_ms, each.digests) for each in listed.erasures[: len(other.erasures)]]
            for listed in (self, other)
        )
        return (self.secret, ours) == (other.secret, theirs)

    def goes_on_from(self, earlier: ErasedList) -> bool:
        """True if this is a later step of the `earlier` list, or an equal one."""
        return self.knows(earlier) and self.step >= earlier.step

    def key_in(self, shard: str) -> str:
        return erased_key(shard, sealed_digest(self.encode()))

    @classmethod
    def read(cls, data: bytes, key: str) -> ErasedList:
        """The list under `key`. Raises `CorruptArtifact` or `UnknownVersion`."""
        check_in_place(sealed_digest(data), digest_in(key), what=f"list of erasures {key}")
        return cls.decode(data, what=f"list of erasures {key}")


def key_texts(key: Key, columns: Sequence[Column]) -> dict[str, str]:
    """The canonical text of each key column, by its name (docs/architecture.md, "The records frame")."""
    return {column.name: _text(value_at(scalar, column)) for scalar, column in zip(key, columns, strict=True)}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.hex() if isinstance(value, bytes) else str(value)
