"""The rules of an upsert as two tables: which case a row is, and what each effect of a case writes.

docs/semantics.md, section 4, shows both, and a test compares them. Conditions and values are SQL over the columns of a
row (`persist_spark.upsert.arguments`) and over what the plan knows about it:

    before        a struct: what the slot held just before the row: `value`, `err`, and as stored `ord`, `inherited`
    had           boolean: it held something
    holds         boolean: the row leaves something there: `value` and `err`, by the order `row_ord`
    is_same       boolean: both, and they are equal
    gives         boolean: the row is beaten, and the slot's row has inherited values, which it may replace
    is_beaten     boolean: an order seen before is higher, or the same with greater bytes
    beaten_by     the order that is higher
    settles       boolean: nothing else that the batch does to the slot comes after the row
    known         a struct: what the newest entry of the order index says of the slot
    is_forgotten  boolean: the entry is a tombstone that does not count any more
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, PartKind


@dataclass(frozen=True)
class Case:
    """A winner of its time and slot. Of all cases whose condition is true, the first one applies."""

    name: str
    condition: str
    effects: tuple[str, ...]


@dataclass(frozen=True)
class Effect:
    """A write that happens if `condition` is true: `part` (`None`: it is only counted), `diff`, and SQL by column.

    Columns that are not named are null.
    """

    name: str
    part: str | None
    columns: Mapping[str, str] = field(default_factory=dict)
    diff: int | None = None
    condition: str = ""


def _columns(*names: str, **others: str) -> dict[str, str]:
    return {name: name for name in names} | others


CASES = (
    Case("waits", "waits", ("stash", "revive", "forget")),
    Case("truncate", "op = ascii('t')", ("floor",)),
    Case("late", "is_beaten AND NOT gives", ("keep", "late")),
    Case("same", "is_same", ("keep", "late", "raise", "forget")),
    Case("update", "had AND holds", ("retract", "insert", "late", "clear", "forget")),
    Case("delete", "had", ("retract", "bury", "clear", "forget")),
    Case("insert", "holds", ("insert", "clear", "forget")),
    Case("absent", "true", ("bury", "forget")),
)

EFFECTS = (
    Effect(
        "stash",
        STASH_OPERATOR,
        _columns("slot", "ord", "value", "err", "inherited", op="chr(op)", time="own_time"),
        condition="NOT stashed",
    ),
    Effect("keep", None, condition="had"),
    # The retraction of a row of this batch has no order: an equal value may have come after the row with another order,
    # and a restore finds the row among the same updates.
    Effect(
        "retract",
        PartKind.RETRACTIONS,
        _columns("key", "time", value="before.value", err="before.err", ord="before.ord", inherited="before.inherited"),
        diff=-1,
    ),
    Effect("insert", PartKind.INSERTIONS, _columns("key", "time", "value", "err", "inherited", ord="row_ord"), diff=1),
    Effect(
        "late",
        LATE_OPERATOR,
        _columns("slot", "ord", "beaten_by", "inherited", op="chr(op)", time="own_time", acted="time"),
        condition="beaten_by IS NOT NULL AND NOT expanded",
    ),
    Effect("floor", ORDER_INDEX_OPERATOR, _columns("time", "ord", kind="'floor'")),
    Effect(
        "raise",
        ORDER_INDEX_OPERATOR,
        _columns("slot", "time", "inherited", ord="row_ord", kind="'raised'"),
        condition="settles",
    ),
    Effect(
        "bury",
        ORDER_INDEX_OPERATOR,
        _columns("slot", "time", "ord", kind="'deleted'"),
        condition="settles AND NOT expanded",
    ),
    Effect(
        "clear",
        ORDER_INDEX_OPERATOR,
        _columns("slot", "time", "ord", kind="'in_row'"),
        condition="settles AND known.kind != 'in_row' AND (holds OR expanded)",
    ),
    # From now on the slot is awaited, and what was forgotten must stay so.
    Effect(
        "revive",
        ORDER_INDEX_OPERATOR,
        _columns("slot", time="known.acted + 1", ord="known.ord", kind="'in_row'"),
        condition="settles AND is_forgotten",
    ),
    Effect(
        "forget",
        ORDER_INDEX_OPERATOR,
        _columns(time="known.acted", ord="known.ord", kind="'forgotten'"),
        condition="settles AND is_forgotten",
    ),
)
OF_LOG = ("stash", "keep", "retract", "insert")  # `log` order beats no record and has no order index

_NUMBERS = {each.name: f"{number}" for number, each in enumerate(EFFECTS)}  # Spark compares strings byte by byte


def effects(*, is_sequence: bool, inherits: bool) -> list[Effect]:
    """The effects of an order. In `log` order a row has no order beside it."""
    known = [each for each in EFFECTS if is_sequence or each.name in OF_LOG]
    lost = {each.name: {"ord"} if each.diff and not is_sequence else set() for each in known}
    if not inherits:
        lost = {name: {*columns, "inherited"} for name, columns in lost.items()}
    return [
        replace(each, columns={name: sql for name, sql in each.columns.items() if name not in lost[each.name]})
        for each in known
    ]


def effects_sql(*, is_sequence: bool) -> str:
    """SQL: the effects of a row, as an array of their numbers; null or empty if it has none."""
    known = effects(is_sequence=is_sequence, inherits=True)
    cases = [case for case in CASES if is_sequence or case.name != "late"]  # in `log` order `gives` is unknown too
    arrays = [(case.condition, _array([each for each in known if each.name in case.effects])) for case in cases]
    return "CASE " + " ".join(f"WHEN {condition} THEN {array or 'NULL'}" for condition, array in arrays) + " END"


def _array(chosen: Sequence[Effect]) -> str:
    always = [_NUMBERS[each.name] for each in chosen if not each.condition]
    others = [(each.condition, _NUMBERS[each.name]) for each in chosen if each.condition]
    arrays = [f"array({', '.join(always)})"] if always else []
    # One array alone may be null: it has no effects either.
    none = " ELSE CAST(array() AS ARRAY<INT>)" if len(chosen) > 1 else ""
    arrays += [f"CASE WHEN {condition} THEN array({number}){none} END" for condition, number in others]
    return arrays[0] if len(arrays) == 1 else f"concat({', '.join(arrays)})" if arrays else ""


def written_sql(slot: Sequence[str], *, is_sequence: bool, inherits: bool) -> dict[str, str]:
    """The columns that effects write, `diff` and `part` included, and SQL for each. `slot`: key columns, `bad_key`."""
    cells: dict[str, dict[str, list[str]]] = {}
    known = [each for each in effects(is_sequence=is_sequence, inherits=inherits) if each.part]
    for each in known:
        columns = {"diff": f"{each.diff}L"} if each.diff else {}
        for name, sql in {**columns, "part": f"'{each.part}'", **each.columns}.items():
            for column in {"slot": slot, "key": slot[:-1]}.get(name, [name]):
                cells.setdefault(column, {}).setdefault(column if sql == name else sql, []).append(_NUMBERS[each.name])
    return {column: _chosen(by_sql, len(known)) for column, by_sql in cells.items()}


def _chosen(by_sql: Mapping[str, Sequence[str]], count: int) -> str:
    for sql, names in by_sql.items():
        if len(names) == count:
            return sql
    whens = (f"WHEN effect IN ({', '.join(names)}) THEN {sql}" for sql, names in by_sql.items())
    return f"CASE {' '.join(whens)} END"
