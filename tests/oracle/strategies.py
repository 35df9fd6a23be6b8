"""Hypothesis strategies for upsert histories: small key spaces, several times a batch, everything that goes wrong.

    histories() -> History: contiguous batches [0, 3), [3, 4), [4, 9) ... each with the records that it reads
    redelivered(records) -> the same records permuted, some of them repeated

Few keys, few values and few times, so that records meet: equal values, deletes of what is not there, records of one
key at one time, errs that heal, records before their batch's lower (late) and after its upper (stashed).
Needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from persist_core.config.collection import FILE_POSITION
from persist_core.schema import CollectionSchema, Column
from tests.oracle.consolidate import canonical_key
from tests.oracle.upsert import (
    NOT_SENT,
    SKIP,
    TOMBSTONE,
    TRUNCATE,
    Err,
    Mark,
    Record,
    Slot,
    Value,
)

SCHEMA = CollectionSchema(
    key=(Column("region", "string", nullable=False), Column("id", "bigint", nullable=False)),
    values=(Column("name", "string"), Column("amount", "bigint"), Column("rate", "double")),
    position=FILE_POSITION,
)
ORDER_FIELDS = ("seq", *(column.name for column in SCHEMA.position))  # of every `Record.order`

KEYS: tuple[tuple[str, int], ...] = (("", 0), ("eu", 1), ("eu", 2), ("\u00fc", -1))
BAD_KEYS = (b"\xff\x00", b'{"id": "x"}')
NAMES = (None, "", "a", "b", "\u00e9")
AMOUNTS = (None, 0, 7, -(2**63))
RATES = (None, 0.0, 0.5, float("nan"))
ERR_KINDS = ("value", "time")
MAX_WIDTH = 4  # times in a batch
STRAY = 3  # how far a record's time may lie outside of its batch


@dataclass(frozen=True)
class SealedInput:
    """The input of one batch `[lower, upper)`; `upper` is `None` if the input ends."""

    lower: int
    upper: int | None
    records: tuple[Record, ...]


@dataclass(frozen=True)
class History:
    """Contiguous batches from time 0 on, of a collection with `SCHEMA`; all orders have `ORDER_FIELDS`."""

    batches: tuple[SealedInput, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, in the order in which they are read."""
        return tuple(record for batch in self.batches for record in batch.records)


def ok_values(*, partial: bool = False) -> SearchStrategy[Value]:
    """Rows of value columns; few, so that equal ones are frequent. `partial`: a name or an amount may not be sent."""
    names: tuple[Any, ...] = NAMES
    amounts: tuple[Any, ...] = AMOUNTS
    if partial:
        names, amounts = (NOT_SENT, NOT_SENT, *names), (NOT_SENT, *amounts)
    return st.tuples(st.sampled_from(names), st.sampled_from(amounts), st.sampled_from(RATES))


def key_errs(slot: Slot) -> SearchStrategy[Value]:
    """Errs of records in `slot`: under the raw key bytes, or, where no key could be had, under the payload."""
    if isinstance(slot, bytes):
        raw = st.builds(Err, st.just("key"), st.just(slot), st.sampled_from((b"{}", b"p")), st.just("bad key"))
        return raw | st.just(Err("key", None, slot, "no key"))
    key_bytes = canonical_key(slot)
    payloads = st.sampled_from((b"", b"broken", b"{"))
    messages = st.sampled_from(("one message", "another message"))
    return st.builds(Err, st.sampled_from(ERR_KINDS), st.just(key_bytes), payloads, messages)


@st.composite
def slots_and_values(
    draw: st.DrawFn, *, errors: bool = True, truncates: bool = True, partial: bool = False
) -> tuple[Slot | None, Value | Mark]:
    """The contents of a record, without time and order."""
    kinds = ["ok"] * 5 + ["tombstone"] * 2 + ["skip"] + ["err", "err", "bad_key", "bad_key_gone"] * errors
    kind = draw(st.sampled_from([*kinds, *["truncate"] * truncates]))
    if kind == "skip":
        return None, SKIP
    if kind == "truncate":
        return None, TRUNCATE
    slots: tuple[Slot, ...] = BAD_KEYS if kind.startswith("bad_key") else KEYS
    slot = draw(st.sampled_from(slots))
    if kind == "ok":
        return slot, draw(ok_values(partial=partial))
    return slot, TOMBSTONE if kind in ("tombstone", "bad_key_gone") else draw(key_errs(slot))


@st.composite
def records(
    draw: st.DrawFn,
    *,
    lower: int,
    upper: int,
    file: str,
    row: int,
    errors: bool = True,
    truncates: bool = True,
    strays: bool = True,
    ties: bool = False,
    partial: bool = False,
) -> Record:
    """A record that a batch `[lower, upper)` reads from `file` at `row`.

    `strays`: its time may lie outside of the batch. `ties`: another record may have the same order, with another
    value; else (`file`, `row`) must make it unique. `partial`: it may not carry all values; records of equal orders do.
    """
    slot, value = draw(slots_and_values(errors=errors, truncates=truncates, partial=partial))
    first, last = (max(0, lower - STRAY), upper - 1 + STRAY) if strays else (lower, upper - 1)
    time = draw(st.none() | st.integers(first, last) | st.integers(lower, upper - 1))
    seq = draw(st.integers(0, 2))
    if ties and partial and isinstance(value, tuple) and draw(st.booleans()):
        return Record(slot, ("tied", 7, value[2]), time, (seq, "tied", 0, 0))
    if ties and not partial and value is not TRUNCATE and draw(st.booleans()):
        return Record(slot, value, time, (seq, "tied", 0, 0))
    return Record(slot, value, time, (seq, file, 0, row))


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    max_batches: int = 4,
    max_records: int = 10,
    errors: bool = True,
    truncates: bool = True,
    strays: bool = True,
    ties: bool = False,
    may_close: bool = True,
    partial: bool = False,
) -> History:
    """A whole history. The flags leave out: errs and bad keys; truncates; records outside of their batch's bounds;
    records with equal orders; an input that ends; records that do not carry all values."""
    batches, lower = [], 0
    for number in range(draw(st.integers(1, max_batches))):
        upper = lower + draw(st.integers(1, MAX_WIDTH))
        rows = draw(st.integers(0, max_records))
        made = [
            draw(
                records(
                    lower=lower,
                    upper=upper,
                    file=f"day-{number}.json",
                    row=row,
                    errors=errors,
                    truncates=truncates,
                    strays=strays,
                    ties=ties,
                    partial=partial,
                )
            )
            for row in range(rows)
        ]
        batches.append(SealedInput(lower, upper, tuple(made)))
        lower = upper
    if may_close and draw(st.booleans()):
        batches[-1] = SealedInput(batches[-1].lower, None, batches[-1].records)
    return History(tuple(batches))


@st.composite
def redelivered(draw: st.DrawFn, delivered: Sequence[Record]) -> list[Record]:
    """These records in another order, some of them more than once."""
    if not delivered:
        return []
    repeated = draw(st.lists(st.sampled_from(delivered), max_size=len(delivered)))
    return draw(st.permutations([*delivered, *repeated]))
