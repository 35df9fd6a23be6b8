"""Pages of a shard's contents, read by pyarrow within bounds: rows as of a time, changes between two, errors.

A reader has to join insertions with retractions, so a page costs the keys of the whole read. A read that would open
more rows or stored bytes than the bounds is refused before it begins, from the counts in the state; one that would hold
more decoded bytes is refused as soon as it does (`handles.limited`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents.batch import HollowBatch
from persist_core.contents.err_groups import MAX_GROUPS, MAX_READ, grouped, rows_of_errs
from persist_core.contents.key_range import KeyRange, exactly, meets_any, parse_key
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.limited import LimitedReader, ReadBudget
from persist_core.handles.read import ReadHandle, check_as_of, schema_of
from persist_core.inspection.facts import ColumnFacts, RowsPage
from persist_core.inspection.values import json_rows
from persist_core.protocol.compare import Side, compare
from persist_core.protocol.difference import Differences
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, MISSING_ORDER, TIME
from persist_core.shard.state import ShardState

MAX_ROWS_READ = 2_000_000
MAX_BYTES_READ = 256 << 20  # of Parquet
MAX_BYTES_HELD = 128 << 20  # decoded, of one page
MAX_COMPARED = 200_000  # updates, 1.2 KiB of memory each: `delta.MAX_UPDATES`
MAX_LIMIT = 1_000  # rows of one page
MAX_CELL_CHARS = 2_000  # a longer text is cut
MAX_EXACT = 2**53  # browsers read JSON numbers as doubles
_ROWS_AT_ONCE = 20  # of a page as Python objects, before their texts are cut
ERR_COLUMNS = (TIME, ERR_KIND, ERR_POSITION, ERR_KEY, ERR_MESSAGE, ERR_PAYLOAD)  # in the order in which they are shown


@dataclass(frozen=True)
class Cut:
    """The selection of a page of rows: rows with this `key`, from `offset` on, `limit` at most.

    `key` has a text for each of the first key columns.
    """

    key: tuple[str, ...] = ()
    offset: int = 0
    limit: int = 100

    @property
    def rows(self) -> int:
        return min(self.limit, MAX_LIMIT)


def rows_as_of(
    client: PersistClient, shard: str, as_of: int | None, cut: Cut, *, budget: ReadBudget | None = None
) -> RowsPage:
    """A page of the rows, in the order of the key (of a view: of all columns).

    Raises `OutsideFrontiers`, and `InvalidInput` for a read that is too large or a key that is not one.
    """
    state, reader = client.state(shard), LimitedReader(client, shard, budget or ReadBudget(MAX_BYTES_HELD))
    time, keys = check_as_of(state, as_of), key_of(state, cut.key)
    _check_size(client, state, [batch for batch in state.batches if batch.lower <= time], keys)
    return _page(state, first_rows(reader, state, time, keys, cut.offset, cut.rows), None, time, cut)


def changes_between(
    client: PersistClient,
    shard: str,
    after: int,
    through: int | None,
    cut: Cut,
    *,
    of_errors: bool = False,
    budget: ReadBudget | None = None,
) -> RowsPage:
    """A page of the updates with `after < time <= through`, by time and key, with their time and diff.

    Raises as `rows_as_of` does.
    """
    state = client.state(shard)  # people look at its own history
    budget = budget or ReadBudget(MAX_BYTES_HELD)
    reader = LimitedReader(client, shard, budget, generation=state.origin.generation)
    time, keys = check_as_of(state, through), key_of(state, cut.key)
    batches = [b for b in state.batches if b.lower <= time and (b.upper is None or b.upper > after + 1)]
    _check_size(client, state, batches, keys)
    found = first_changes(reader, state, after, time, keys, cut.offset, cut.rows, of_errors=of_errors)
    return _page(state, found, after, time, cut)


def errors_as_of(
    client: PersistClient, shard: str, as_of: int | None, cut: Cut, *, budget: ReadBudget | None = None
) -> RowsPage:
    """A page of the errors, newest first: time, kind, key bytes, message, payload, and key columns."""
    state = client.state(shard)
    time = check_as_of(state, as_of)
    counts = [batch.counts for batch in state.batches if batch.lower <= time]
    _refuse_too_large(state, sum(each.err_insertions + each.err_retractions for each in counts), 0)
    reader = LimitedReader(client, shard, budget or ReadBudget(MAX_BYTES_HELD))
    table = errors_in_order(state, reader.errors(time))
    first = max(0, len(table) - cut.offset - cut.rows)
    shown = table.slice(first, max(0, len(table) - cut.offset - first))
    newest_first = pa.array(range(len(shown) - 1, -1, -1), pa.int64())
    page = _page(state, (shown.take(newest_first), len(table)), None, time, cut)
    if cut.offset:
        return page
    newest = rows_of_errs(table.slice(max(0, len(table) - MAX_READ)))
    return replace(page, groups=grouped(newest, MAX_GROUPS, of=len(table)))


def differences_between(
    client: PersistClient, a: Side, b: Side, cut: Cut, *, budget: ReadBudget
) -> tuple[RowsPage, Differences]:
    """A page of the rows that differ, each with its kind, and all of them. Raises as `compare` does, for less."""

    def reader_of(shard: str) -> LimitedReader:
        return LimitedReader(client, shard, budget)

    found = compare(client, a, b, max_updates=MAX_COMPARED, reader_of=reader_of)
    shown = found.rows.slice(cut.offset, cut.rows)
    return _page(b.state, (shown, len(found.rows)), None, b.time, cut), found


def first_rows(
    reader: ReadHandle, state: ShardState, time: int, keys: Sequence[KeyRange] | None, start: int, limit: int | None
) -> tuple[pa.Table, int]:
    """Rows `[start, start + limit)` as of `time`, in the order of the key or of all columns; how many there are."""
    if schema_of(state).key and isinstance(reader, LimitedReader):
        return reader.page_of_rows(state, time, keys, start, limit)
    table = in_key_order(state, reader.snapshot_of(state, time, keys=keys))
    return table.slice(start, limit), len(table)


def first_changes(
    reader: ReadHandle,
    state: ShardState,
    after: int,
    through: int,
    keys: Sequence[KeyRange] | None,
    start: int,
    limit: int | None,
    *,
    of_errors: bool,
    schema: int | None = None,
) -> tuple[pa.Table, int]:
    """Changes `[start, start + limit)`, by time and key or all columns; how many there are. `schema`: its version,
    which `state` shows."""
    if schema_of(state).key and not of_errors and isinstance(reader, LimitedReader):
        table, total = reader.page_of_changes(after, through, keys, start, limit, schema)
        return in_time_order(state, table), total
    read = reader.error_changes if of_errors else reader.changes
    table = in_time_order(state, read(after, through, keys=keys, schema=schema))
    return table.slice(start, limit), len(table)


def in_key_order(state: ShardState, table: pa.Table) -> pa.Table:
    """A snapshot, sorted by the key; without a key by all columns."""
    names = schema_of(state).key_names or tuple(table.column_names)
    return table.sort_by([(name, "ascending") for name in names])


def in_time_order(state: ShardState, table: pa.Table) -> pa.Table:
    """Changes (of rows or of errors), sorted by time, key and diff, with time and diff as their first columns."""
    table = _for_users(state, table)
    keys = [name for name in schema_of(state).key_names if name in table.column_names]
    others = [name for name in table.column_names if name not in (TIME, DIFF)]
    order = [TIME, *(keys or others), DIFF]
    return table.sort_by([(name, "ascending") for name in order]).select([TIME, DIFF, *others])


def errors_in_order(state: ShardState, table: pa.Table) -> pa.Table:
    """Errors, sorted by time, kind and key, the columns that every error has first."""
    ordered = table.sort_by([(name, "ascending") for name in (TIME, ERR_KIND, ERR_KEY)])
    shown = _for_users(state, ordered)
    first = [name for name in ERR_COLUMNS if name in shown.column_names]
    return shown.select([*first, *(name for name in shown.column_names if name not in first)])


def _for_users(state: ShardState, table: pa.Table) -> pa.Table:
    """Without the digests by which a view knows its inputs' errs: they could confirm a guess of the record.

    The key of a record without an order is its position.
    """
    if not schema_of(state).key:
        return table.drop_columns([name for name in (ERR_KEY, ERR_PAYLOAD, ERR_POSITION) if name in table.column_names])
    if ERR_KIND not in table.column_names or not pc.any(pc.equal(table[ERR_KIND], MISSING_ORDER)).as_py():
        return table
    place, is_unordered = table.column_names.index(ERR_KEY), pc.equal(table[ERR_KIND], MISSING_ORDER)
    shown = pc.if_else(is_unordered, table[ERR_POSITION].cast(pa.binary()), table[ERR_KEY])
    return table.set_column(place, table.schema.field(place), shown)


def key_of(state: ShardState, texts: Sequence[str]) -> list[KeyRange] | None:
    """The keys that start with these values, for a reader; `None` for all keys. Raises `InvalidInput`."""
    return [exactly(parse_key(texts, schema_of(state).key))] if texts else None


def _check_size(
    client: PersistClient, state: ShardState, batches: Sequence[HollowBatch], keys: Sequence[KeyRange] | None
) -> None:
    """Raise `InvalidInput` if the read takes more than the bounds; manifests are asked only for a read of some keys."""
    rows = sum(batch.counts.rows + batch.counts.history for batch in batches)
    size_bytes = sum(batch.size_bytes for batch in batches)
    if keys is not None and _is_too_large(rows, size_bytes):
        parts = [part for manifest in client.manifests(batches) for part in manifest.parts]
        opened = [part for part in parts if meets_any(part.keys, keys)]
        rows, size_bytes = sum(part.rows or 0 for part in opened), sum(part.size_bytes for part in opened)
    _refuse_too_large(state, rows, size_bytes)


def _is_too_large(rows: int, size_bytes: int) -> bool:
    return rows > MAX_ROWS_READ or size_bytes > MAX_BYTES_READ


def _refuse_too_large(state: ShardState, rows: int, size_bytes: int) -> None:
    if _is_too_large(rows, size_bytes):
        raise InvalidInput(
            f"shard {state.shard}: the read opens {rows} rows and {size_bytes} bytes, expected at most {MAX_ROWS_READ}"
            f" rows and {MAX_BYTES_READ} bytes. Give a key or a shorter interval, or read it with `persist snapshot`,"
            " `persist changes` or Spark"
        )


def _page(state: ShardState, found: tuple[pa.Table, int], after: int | None, as_of: int, cut: Cut) -> RowsPage:
    keys = schema_of(state).key_names
    types = {column.name: column.type for column in schema_of(state).columns}
    shown, total = found
    return RowsPage(
        shard=state.shard,
        since=state.since.time,
        upper=state.upper.time,
        after=after,
        as_of=as_of,
        columns=tuple(
            ColumnFacts(field.name, types.get(field.name, str(field.type)), field.name in keys)
            for field in shown.schema
        ),
        rows=tuple(tuple(map(_cell, row.values())) for row in json_rows(shown, rows_at_once=_ROWS_AT_ONCE)),
        offset=cut.offset,
        total=total,
    )


def _cell(value: Any) -> Any:
    """The value as a browser can show it: integers that it would round are texts, as decimals are."""
    if isinstance(value, dict):  # bytes that are not text
        return {"hex": _cell(value["hex"])}
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        return str(value)
    if not isinstance(value, str) or len(value) <= MAX_CELL_CHARS:
        return value
    return f"{value[:MAX_CELL_CHARS]}... ({len(value)} characters)"
