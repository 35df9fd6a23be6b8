"""How the schema of a shard may change in place: columns added, dropped, renamed and widened.

    a definition ──names, `renamed_from`──> ids of the shard's columns ──what is refused?──> the next version

Nothing is guessed. A stored value is the same value in a wider type, so no file is written again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from persist_core.errors import SchemaMismatch
from persist_core.schema import CollectionSchema, Column, decimal_of, show_order, show_times, show_types

_WIDER = {("int", "bigint"), ("float", "double")}
_REBUILD = (
    "`persist rebuild` reads all input again by the file as it is now, beside the shard, and swaps the result in:"
    " readers see no gap"
)
_OF_A_VIEW = (
    "Give the column another name, or drop the shard and its history (`persist drop`): `persist run --recreate` makes"
    " it again from its inputs"
)


def evolved(history: Sequence[CollectionSchema], next_id: int, wanted: CollectionSchema) -> CollectionSchema:
    """`wanted` after the schemas `history`, oldest first: the newest if they are equal, else the next version.

    New columns have ids from `next_id` on. Raises `SchemaMismatch`, which shows both side by side.
    """
    ids = _known_ids(history, wanted)
    added = itertools.count(next_id)
    newest = history[-1] if history else None
    inheriting = {column.id for column in newest.values if column.inherits} if newest else set()
    key, values = (
        tuple(_with_id(column, ids.get(column.name) or next(added), inheriting) for column in columns)
        for columns in (wanted.key, wanted.values)
    )
    found = replace(wanted, key=key, values=values, version=len(history) + 1, dropped=())
    if newest is not None and wanted.timed_by is None:  # a program's
        found = replace(found, timed_by=newest.timed_by, zone=newest.zone)
    if newest is None:
        return found
    _check(newest, wanted, found)
    return newest if newest == found and _ids(newest) == _ids(found) else found


def changes_between(before: CollectionSchema | None, after: CollectionSchema) -> list[str]:
    """The changes from `before` to `after`, in words."""
    if before is None:
        return [f"{len(after.columns)} columns: {show_types(after.columns)}"]
    old, new = ({column.id: column for column in schema.columns} for schema in (before, after))
    words = [f"{old[each].name} is dropped; its history stays readable" for each in old.keys() - new.keys()]
    for each, column in new.items():
        if each not in old:
            words.append(f"{column.name} ({column.type}) is added: null in earlier rows")
            continue
        if old[each].name != column.name:
            words.append(f"{old[each].name} is renamed to {column.name}")
        if old[each].type != column.type:
            digits = "; a record with more digits is a true update" if column.type == "double" else ""
            words.append(f"{column.name} is widened from {old[each].type} to {column.type}{digits}")
    return words or ["the columns are in another order, or inherit values"]


def is_wider(before: str, after: str) -> bool:
    """True if each value of the first type is the same value in the second."""
    old, new = decimal_of(before), decimal_of(after)
    return (before, after) in _WIDER or bool(old and new and old[1] == new[1] and old[0] < new[0])


def has_other_times(before: CollectionSchema, after: CollectionSchema) -> bool:
    """True if records of the second have times of another meaning."""
    return (before.timed_by, before.zone) != (after.timed_by, after.zone)


def _fits(before: str, after: str) -> bool:
    return before == after or is_wider(before, after)


def _otherwise(schema: CollectionSchema) -> str:
    return _REBUILD if schema.key else _OF_A_VIEW


def _ids(schema: CollectionSchema) -> list[int | None]:
    return [column.id for column in schema.columns]


def _with_id(column: Column, number: int, inheriting: set[int | None]) -> Column:
    # What is stored may still say of values that they were inherited.
    return replace(column, id=number, inherits=column.inherits or number in inheriting, renamed_from=None)


def _known_ids(history: Sequence[CollectionSchema], wanted: CollectionSchema) -> Mapping[str, int | None]:
    """The ids of the shard's living columns, by their names in `wanted`."""
    if not history:
        return {}
    living = {column.name: column.id for column in history[-1].columns}
    names = {column.name for column in wanted.columns}
    found = dict[str, int | None]()
    renamed = {column.name: column.renamed_from for column in wanted.columns if column.renamed_from}
    _check_no_exchange(renamed)
    left = set[str]()  # a name that a column leaves in this run can be the new one of another column
    while more := {old for new, old in renamed.items() if old in living and (new in left or new not in living)} - left:
        left |= more
    for column in wanted.columns:
        if column.id is not None and column.id in living.values():
            found[column.name] = column.id
        elif column.renamed_from is not None:
            found[column.name] = _renamed(history, living, names, column, column.renamed_from, left)
    if len(set(found.values())) < len(found):
        numbers = list(found.values())
        twice = sorted(name for name, number in found.items() if numbers.count(number) > 1)
        raise SchemaMismatch(
            f"two columns are `renamed_from` one: {', '.join(twice)}. Declare it for one of them, or rename one"
            " after the other, in a run of its own"
        )
    taken = set(found.values())
    return {**{name: each for name, each in living.items() if each not in taken}, **found}


def _check_no_exchange(renamed: Mapping[str, str]) -> None:
    """`renamed`: old names by new ones. If they go around in a circle, nothing tells a rename from one that is done."""
    for name in renamed:
        circle = [name]
        while (old := renamed.get(circle[-1])) is not None and old not in circle:
            circle.append(old)
        if old == name:
            raise SchemaMismatch(
                f"columns {', '.join(sorted(circle))} exchange their names (`renamed_from`). Rename one of them to"
                " another name first, in a run of its own"
            )


def _renamed(
    history: Sequence[CollectionSchema],
    living: Mapping[str, int | None],
    names: set[str],
    column: Column,
    old: str,
    left: set[str],
) -> int | None:
    """The id of a column with `renamed_from: old`. One that was applied already has no effect."""
    number = living.get(column.name)
    was = number and any(each.id == number and each.name == old for schema in history for each in schema.columns)
    number = None if column.name in left and not was else number
    if number is None and old not in living:
        raise SchemaMismatch(
            f"column {column.name}: `renamed_from: {old}`, but the shard has no column {old}; its columns are"
            f" {', '.join(living)}. Write the name that the column has now"
        )
    if number is None:
        return living[old]
    # A rebuild begins with a file whose renames are done. The old name may be one of a column that came then, or later.
    is_done = was or (old in names and number in {each.id for each in history[0].columns})
    if old in living and not is_done:
        raise SchemaMismatch(
            f"column {column.name}: `renamed_from: {old}`, and the shard has both. To rename {old}, drop {column.name}"
            f" first, in a run of its own; to drop {old}, remove `renamed_from`"
        )
    return number


def _check(newest: CollectionSchema, wanted: CollectionSchema, found: CollectionSchema) -> None:
    """Raise `SchemaMismatch` unless `newest` may become `found`, as the definition `wanted` says."""
    if found.order != newest.order:
        raise SchemaMismatch(
            f"the order does not fit the shard's: the shard is in {show_order(newest)} order, the collection asks for"
            f" {show_order(found)} order. A shard keeps the order that it began with, which has decided what it holds."
            f" Write `order:` as it was. {_otherwise(newest)}"
        )
    if found.position != newest.position:
        raise SchemaMismatch(
            f"the source does not fit the shard's: the positions of its records have the fields"
            f" ({show_types(found.position)}), the shard's have ({show_types(newest.position)}). Positions of two"
            f" sources cannot be compared. {_otherwise(newest)}"
        )
    if newest.timed_by is not None and has_other_times(newest, found):
        raise SchemaMismatch(
            f"the times of records do not fit the shard's: the shard has `{show_times(newest)}`, the collection has"
            f" `{show_times(found)}`. The earlier rows keep theirs, so the two would mix. Write `time:` and `timezone:`"
            f" as they were. {_otherwise(newest)}"
        )
    reason = _refusal(newest, found) or _guess(newest, wanted, found)
    if reason:
        raise SchemaMismatch(
            f"the schema does not fit the shard's: {reason}. The shard has (left), the collection has (right):\n"
            + _side_by_side(newest, found)
        )


def _refusal(newest: CollectionSchema, found: CollectionSchema) -> str | None:
    if [column.id for column in newest.key] != [column.id for column in found.key]:
        names = [", ".join(schema.key_names) or "none" for schema in (newest, found)]
        return f"the key is {names[0]}, and would be {names[1]}. {_otherwise(newest)}"
    old = {column.id: column for column in newest.columns}
    for column in found.columns:
        before = old.get(column.id)
        if before is None and not column.nullable:
            return (
                f"the new column {column.name} is not nullable, and earlier rows have no value for it. Make it"
                f" nullable. {_otherwise(newest)}"
            )
        if before is not None and not _fits(before.type, column.type):
            return (
                f"{column.name} would go from {before.type} to {column.type}; only int to bigint, float to double, and"
                f" decimal to more digits at its scale keep each value. {_otherwise(newest)}"
            )
        if before is not None and before.nullable != column.nullable:
            was, now = ("nullable" if each else "required" for each in (before.nullable, column.nullable))
            return f"{column.name} would go from {was} to {now}. {_otherwise(newest)}"
    return None


def _guess(newest: CollectionSchema, wanted: CollectionSchema, found: CollectionSchema) -> str | None:
    """The question that `wanted` leaves open: is it a rename?"""
    known, kept = set(_ids(newest)), set(_ids(found))
    gone = [column for column in newest.values if column.id not in kept and column.name not in wanted.dropped]
    new = {column.name for column in wanted.values if column.id is None}
    for column in found.values:
        if column.id in known or column.name not in new:
            continue
        for old in gone:
            if _fits(old.type, column.type):
                declared = f"{column.name}: {{type: {column.type}, renamed_from: {old.name}}}"
                if not newest.key:
                    declared = f"renamed: {{{column.name}: {old.name}}}"
                return (
                    f"{old.name} is gone and {column.name} is new, of a type that would fit. If it is the same column,"
                    f" write `{declared}`; if not, write `dropped: [{old.name}]`"
                )
    return None


def _side_by_side(newest: CollectionSchema, found: CollectionSchema) -> str:
    texts = (
        [f"{c.name}: {c.type}{'' if c.nullable else ' not null'}" for c in schema.columns] for schema in (newest, found)
    )
    pairs = list(itertools.zip_longest(*texts, fillvalue=""))
    width = max((len(left) for left, _ in pairs), default=0)
    return "\n".join(f"  {a:<{width}}  {'   ' if a == b else '!= '}{b}" for a, b in pairs)
