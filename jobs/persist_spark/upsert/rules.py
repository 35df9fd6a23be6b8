"""The arguments of one upsert, and the plain names of its columns: k0.. for keys, v0.. within one struct for values.

So no name of a user's column can clash with ours, or break out of an SQL text.
"""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.schema import ACTED, BEATEN_BY, INDEX_KIND, TIME, CollectionSchema, Late
from persist_spark.frame import BAD_KEY, OP, ORDER, passed, quoted
from persist_spark.upsert.counts import AT, COMMITTED, ERR, FROM, INDEXED, LATE, PHASE, VALUE

# Columns of arrivals, bigint: the batch's bounds, the time of records without one, the least time of an update.
LOWER, UPPER, GIVEN, FLOOR = "_persist_lower", "_persist_upper", "_persist_given", "_persist_floor"
CANONICAL = "_persist_canonical"  # bytes that decide between records of one order
_NO_CELLS = "'is_there', true"  # a collection may have a key and nothing else; Spark has no empty structs


# Columns that only `sequence` order has, see `persist_spark.upsert.sequence`.
ENTRY = "_persist_entry"  # struct: of a row of the order index, what it says
TRUNCATED = "_persist_truncated"  # struct: the order of a truncate that is above the row's; else null
IS_OLD = "_persist_is_old"  # boolean: a forgotten tombstone has a higher order
SEEN = (ENTRY, TRUNCATED, IS_OLD)


@dataclass(frozen=True)
class SequenceRules:
    """What `sequence` order adds: which of its two states there are before the batch, and before which time (ms)
    tombstones are forgotten (`None`: never)."""

    has_index: bool
    has_late: bool
    forgets_before: int | None


@dataclass(frozen=True)
class UpsertRules:
    """The arguments of one upsert, and the columns and windows that follow from them."""

    schema: CollectionSchema
    lower: int
    upper: int | None
    floor: int
    late: Late
    may_stash: bool
    is_thorough: bool
    sequence: SequenceRules | None = None

    @property
    def bounds(self) -> list[str]:
        """The numbers of this batch as columns: nowhere else do they occur in the plan, see `frame.passed`."""
        numbers = {LOWER: self.lower, GIVEN: self.lower, FLOOR: self.floor}
        if self.upper is not None:
            numbers |= {GIVEN: self.upper - 1, UPPER: self.upper}
        return [f"{sql} AS {name}" for name, sql in zip(numbers, passed(*numbers.values()), strict=True)]

    @property
    def keys(self) -> list[str]:
        """The key columns' plain names, `k0`.. ."""
        return [f"k{i}" for i in range(len(self.schema.key))]

    @property
    def values(self) -> list[str]:
        """The value columns' plain names, `v0`.. , which they have within one struct."""
        return [f"v{i}" for i in range(len(self.schema.values))]

    @property
    def slot(self) -> list[str]:
        """The columns that name a slot, compared null-safe."""
        return [*self.keys, BAD_KEY]

    @property
    def chain(self) -> list[str]:
        """The columns of arrivals, stashed and committed rows, all in one frame."""
        return [*self.slot, TIME, AT, FROM, PHASE, LATE, OP, ORDER, VALUE, ERR, *(SEEN if self.sequence else ())]

    @property
    def key_columns(self) -> list[str]:
        """The user's key columns under their plain names."""
        return [f"{quoted(c.name)} AS {flat}" for flat, c in zip(self.keys, self.schema.key, strict=True)]

    @property
    def value_struct(self) -> str:
        """The user's value columns as one struct, under their plain names."""
        cells = [f"'{flat}', {quoted(c.name)}" for flat, c in zip(self.values, self.schema.values, strict=True)]
        return f"named_struct({', '.join(cells) or _NO_CELLS})"

    @property
    def state_columns(self) -> tuple[str, ...]:
        """The columns that operator state has besides those of parts; in `sequence` order, parts have their `ORDER`."""
        if self.sequence:
            return (OP, ORDER, BAD_KEY, INDEX_KIND, BEATEN_BY, ACTED)
        return (OP, ORDER, BAD_KEY) if self.may_stash else ()

    def over(self, *order: str) -> str:
        """A window over the rows of a slot."""
        return f"OVER (PARTITION BY {', '.join(self.slot)} ORDER BY {', '.join(order)})"

    @staticmethod
    def before(window: str) -> str:
        """The same window, of all rows before the current one."""
        return f"{window[:-1]} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"

    @property
    def by_rank(self) -> str:
        """The rows of a slot in order: the last of a time is its winner."""
        at = f"CASE WHEN {FROM} IN ({COMMITTED}, {INDEXED}) THEN {AT} END" if self.sequence else AT
        return self.over(TIME, at, ORDER, *([CANONICAL] if self.is_thorough else []))
