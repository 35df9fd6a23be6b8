"""The arguments of one upsert, and what follows from them: the plain names of its columns, and its windows.

Within the plan a row has these columns, and no other names: `k0`.. and `bad_key` (the slot), `value` (a struct of
`v0`..) and `err` (a struct), of which a tombstone has neither, unless it is a file's, and

    time      where it acts, ms. Negative: it comes before all that its slot holds
    own_time  the original time of a record, ms
    diff      of a committed update
    op        the ASCII code of u, d, t or s in the records frame
    ord       a struct: the order. `canonical`, in the thorough plan, decides between equal ones
    is_due    the record is processed now
    waits     it is not due before the upper. A record for which neither is true is only counted
    is_late   `own_time` lies before the batch's lower, and before `in_time_from`
    stashed   the record is from the stash
    expanded  it is a tombstone that a truncate is expanded to

if a column of the collection inherits

    inherited   `INHERITED`: the columns that the record does not carry (`persist_spark.upsert.inherited`)
    is_partial  in its place, in a plan that guesses that it is always null: it is not

if bad values of a column become null

    marks  the columns of the record that had bad values, each with the text; null if none had (of the stash too)

and in `sequence` order

    entry         a struct: what a row of the order index says of its slot
    truncated_by  the order of the truncate that the row lies below
    is_beyond     a forgotten tombstone has a higher order

and if the exchange is by ranges of keys that we know (`persistent_upsert`, `cuts`)

    key_range  the number of its range, and of the task after the exchange

`op` is a number, and the last ones of the lists are booleans: strings would cost a seventh of the time of a batch.

So no name of a user's column can clash with ours, or break out of an SQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from persist_core.contents.schema_versions import SchemaVersion
from persist_core.schema import (
    ACTED,
    BEATEN_BY,
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    ERR_PAYLOAD,
    ERR_POSITION,
    INDEX_KIND,
    INHERITED,
    CollectionSchema,
    Column,
    Late,
)
from persist_spark.frame import BAD_KEY, OP, ORDER, quoted, sql_type
from persist_spark.order_memory import NOTHING, Memory
from persist_spark.upsert.eras import Eras

ERR_CELLS = {  # by plain name
    "kind": ERR_KIND,
    "message": ERR_MESSAGE,
    "key": ERR_KEY,
    "payload": ERR_PAYLOAD,
    "position": ERR_POSITION,
}
# An err's message and position are for people. The payload of one that could not be completed shows what is known.
SAME_VALUE = " AND ".join(
    ["(err IS NOT NULL OR value <=> before.value)"]
    + [f"{cell} <=> before.{cell}" for cell in ("err.kind", "err.key", "err.payload")]
)
MARKS_TYPE = "ARRAY<STRUCT<name: STRING, text: STRING>>"
KEY_RANGE = "key_range"
ACTS = "is_due AND op != ascii('t')"  # the row may change its slot
_NO_CELLS = "'is_there', true"  # a collection may have a key and nothing else; Spark has no empty structs
_STATE_COLUMNS = {"op": OP, "ord": ORDER, "bad_key": BAD_KEY}
_SEQUENCE_COLUMNS = {"kind": INDEX_KIND, "beaten_by": BEATEN_BY, "acted": ACTED}


@dataclass(frozen=True)
class SeenBefore:
    """The state that a batch in `sequence` order reads besides its input, its stash and the committed updates.

    `index`: the files of the order index that may meet the batch, in the columns of `seen.index_type`; `None`: none do.
    `memory`: what of the index belongs to no slot. `slots`: only the entries of these (key columns and `BAD_KEY`, to be
    broadcast) are needed; `None`: all. `has_index`, `has_late`: which states there are before the batch. Tombstones
    that acted before `forgets_before` (ms; `None`: no time) are forgotten.
    """

    index: DataFrame | None = None
    memory: Memory = NOTHING
    slots: DataFrame | None = None
    has_index: bool = False
    has_late: bool = False
    forgets_before: int | None = None


@dataclass(frozen=True)
class Watched:
    """Something that a batch counts and takes samples of: bad values of a `column`, or rows for which `sql` is not true
    (`persist_spark.upsert.warnings`). `fails`: then nothing is committed."""

    name: str
    column: str | None = None
    sql: str | None = None
    fails: bool = False


@dataclass(frozen=True)
class Arguments:
    """The arguments of `persistent_upsert` that its stages share. `floor`: the least time of an update (ms).

    `inherits`: the plan has registers for values that records leave out. If not, though a column inherits, it guesses
    that no record does, and counts them. `seen`: in `sequence` order; `None`: in `log` order, where a batch has seen
    nothing, so nothing beats a record. `is_new`: no slot holds anything, and each gets at most one record that wins.
    `eras`: of orders that may not be comparable; `None`: they always are. `in_rest`: see `persistent_upsert`,
    and `versions`. `has_ranges`: rows have the column `key_range`.
    """

    schema: CollectionSchema
    lower: int
    upper: int | None
    floor: int
    in_time_from: int
    late: Late
    may_stash: bool
    is_new: bool
    is_thorough: bool
    inherits: bool
    seen: SeenBefore | None
    eras: Eras | None
    watched: tuple[Watched, ...] = ()
    in_rest: Callable[[DataFrame], DataFrame] | None = None
    versions: Sequence[SchemaVersion] = ()
    has_ranges: bool = False

    @property
    def keys(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.schema.key))]

    @property
    def values(self) -> list[str]:
        """The plain names of value columns, within `value`."""
        return [f"v{i}" for i in range(len(self.schema.values))]

    @property
    def slot(self) -> list[str]:
        """The columns that name a slot, compared null-safe."""
        return [*self.keys, "bad_key"]

    @property
    def partition(self) -> list[str]:
        """The columns by which windows partition: the slot, and its `key_range`, which follows from the slot."""
        return [*self.slot, *([KEY_RANGE] if self.has_ranges else [])]

    @property
    def columns(self) -> list[str]:
        more = ["inherited"] if self.inherits else ["is_partial"] if self.guesses else []
        more += ["marks"] if self.has_marks else []
        more += [] if self.seen is None else ["entry", "truncated_by", "is_beyond"]
        booleans = ["is_due", "waits", "is_late", "stashed", "expanded"]
        return [*self.partition, "time", "own_time", "diff", *booleans, "op", "ord", "value", "err", *more]

    @property
    def guesses(self) -> bool:
        """True if the plan has no registers, though a column inherits."""
        return self.schema.inherits and not self.inherits

    def inherited(self, stored: str | None = None, where: str = "true") -> list[str]:
        """The column for `INHERITED` of records; or of what is stored, by the SQL `stored`, if `where` is true."""
        if self.guesses:
            # Manifests say that nothing stored has inherited: so its many columns are not read.
            return [f"{'false' if stored else f'{INHERITED} IS NOT NULL'} AS is_partial"]
        return [f"CASE WHEN {where} THEN {stored or INHERITED} END AS inherited"] if self.inherits else []

    @property
    def has_marks(self) -> bool:
        return any(each.column is not None for each in self.watched)

    def marks(self, found: str = f"CAST(NULL AS {MARKS_TYPE})") -> list[str]:
        """The column `marks` of rows, if there is one; null by default."""
        return [f"{found} AS marks"] if self.has_marks else []

    @property
    def key_columns(self) -> list[str]:
        return [f"{quoted(c.name)} AS {plain}" for plain, c in zip(self.keys, self.schema.key, strict=True)]

    @property
    def inheriting(self) -> list[tuple[str, Column]]:
        """The columns that can be left out, by the plain names of their cells within `value`."""
        return [(plain, c) for plain, c in zip(self.values, self.schema.values, strict=True) if c.inherits]

    def value_struct(self, in_rest: str = "NULL") -> str:
        """The user's value columns as one struct, under their plain names; see `in_rest_cell`."""
        cells = [f"'{plain}', {quoted(c.name)}" for plain, c in zip(self.values, self.schema.values, strict=True)]
        return f"named_struct({', '.join([*cells, *self.in_rest_cell(in_rest)]) or _NO_CELLS})"

    def in_rest_cell(self, sql: str = "NULL") -> list[str]:
        """A cell more of `value`, if `rest` may hold values of columns. It follows from the others: equal values have
        equal ones."""
        kinds = ", ".join(f"{plain}: {sql_type(column.type)}" for plain, column in self.inheriting)
        return [] if self.in_rest is None else [f"'in_rest', CAST({sql} AS STRUCT<{kinds}>)"]

    @property
    def state_columns(self) -> dict[str, str]:
        """The columns that only operator state has, by plain name. `sequence` parts have `ORDER` too."""
        inherited = {"inherited": INHERITED} if self.inherits else {}
        if self.seen is not None:
            return _STATE_COLUMNS | _SEQUENCE_COLUMNS | inherited
        return (_STATE_COLUMNS if self.may_stash else {}) | inherited

    def placed(self, order: str, *, is_stored: bool = True) -> str:
        """SQL: the order, stored or of a record of the feed, with its era as the user declares it now."""
        if self.eras is None:
            return order
        return self.eras.placed(order, self.schema.position, is_stored=is_stored)

    @property
    def placed_inherited(self) -> str:
        """SQL: `INHERITED` as it is stored, with the eras of its orders."""
        placed = self.placed("e.ord")
        if self.seen is None or placed == "e.ord":
            return INHERITED
        return f"transform({INHERITED}, e -> named_struct('id', e.id, 'known', e.known, 'ord', {placed}))"

    @property
    def decides(self) -> list[str]:
        """The columns that decide between the records of one slot and time, before canonical bytes."""
        return ["own_time", "ord"] if self.seen is None else ["ord"]

    @property
    def ranks(self) -> list[str]:
        """The order of a slot's rows: the last of a time is its winner.

        `diff` puts a retraction before the insertion that replaced it at the same time.
        """
        return ["time", "diff", *self.decides, *(["canonical"] if self.is_thorough else [])]

    @property
    def by_rank(self) -> str:
        """A window over the rows of a slot in order."""
        return self.over(*self.ranks)

    def over(self, *order: str) -> str:
        return f"OVER (PARTITION BY {', '.join(self.partition)} ORDER BY {', '.join(order)})"

    @staticmethod
    def so_far(window: str) -> str:
        """The window of all rows before the current one."""
        return f"{window[:-1]} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"

    @staticmethod
    def whole(window: str) -> str:
        """The window of all rows of the slot. In the order of other windows: so Spark sorts and passes once."""
        return f"{window[:-1]} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"

    def latest(self, value: str, window: str, *, where: str) -> str:
        """SQL: `value` of the newest row before the current one for which `where` is true.

        In `log` order this must be the row before, if any, and a caller knows that: Spark finds it in less time.
        """
        if self.is_new:  # a constant, so Spark drops the window and all that depends on the value
            return f"CASE WHEN false THEN {value} END"
        found = f"CASE WHEN {where} THEN {value} END"
        return f"lag({found}) {window}" if self.seen is None else f"last({found}, true) {self.so_far(window)}"
