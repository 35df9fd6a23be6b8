"""The rows that a restore undoes in `sequence` order: rows together with the orders that made them.

    changes since the checkpoint ─────── sorted by slot, time ──> each retraction gets the order of what it retracts
    insertions as of it, of the slots ─┘
    whose first retraction has no order

So a row that was replaced and came back with a higher order is undone too: its value is the same, its order is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents import pieces
from persist_core.contents.key_range import range_of
from persist_core.contents.parts import ERR_IDENTITY, errs_schema, updates_schema
from persist_core.contents.row_versions import same_as_before
from persist_core.exact import exact_rows
from persist_core.handles.read import ReadHandle
from persist_core.schema import DIFF, INHERITED, ORDER, TIME
from persist_core.shard.state import ShardState

_FLAT = "_persist_order_"  # columns within a restore only: the fields of the order
_INHERITED = f"{_FLAT}inherited"
_ROW = "_persist_row"  # the number of a row


def with_orders_of_oks(oks: pa.Table, reader: ReadHandle, state: ShardState, after: int) -> pa.Table:
    """`oks`, the changes after `after`, where each retraction has the order of the row that it retracts."""
    schema = state.schema
    if schema is None or schema.order is None:
        return oks
    oks = _filled(oks, schema.key_names)
    lacking = oks.filter(oks[ORDER].is_null())
    if not len(lacking):
        return oks
    keys = lacking.select(list(schema.key_names))
    wanted, ranges = keys.group_by(keys.column_names).aggregate([]), [range_of(lacking, schema.key)]

    def touched(table: pa.Table) -> pa.Table:
        numbered = table.select(keys.column_names).append_column(_ROW, pa.array(range(len(table)), pa.int64()))
        return table.take(numbered.join(wanted, keys.column_names, join_type="left semi")[_ROW])

    names = [*schema.key_names, TIME, DIFF, ORDER, INHERITED]
    columns = pa.schema([field for field in updates_schema(schema) if field.name in names])
    before = reader.read(  # each file alone: only rows that are touched stay in memory, whatever the shard's size
        [batch for batch in state.batches if batch.lower <= after],
        columns,
        lambda batch, manifest: (
            replace(piece, keep=touched) for piece in pieces.within(pieces.oks_as_of(batch, manifest, after), ranges)
        ),
    )
    return _filled(oks, schema.key_names, before, after)


def with_orders_of_errs(errs: pa.Table, reader: ReadHandle, state: ShardState, after: int) -> pa.Table:
    """The errs with the orders that made them."""
    schema = state.schema
    if schema is None or schema.order is None:
        return errs
    errs = _filled(errs, ERR_IDENTITY)
    if not errs[ORDER].null_count:
        return errs
    batches = [batch for batch in state.batches if batch.lower <= after]
    before = reader.read(batches, errs_schema(schema), lambda b, m: pieces.errs_as_of(b, m, after))
    return _filled(errs, ERR_IDENTITY, before, after)


def flattened(updates: pa.Table) -> tuple[pa.Table, list[str]]:
    """`updates` with columns for their orders and for what they have inherited, by which they can be grouped; and these
    names.

    Nothing is added in `log` order.
    """
    if ORDER not in updates.column_names:
        return updates, []
    order = updates[ORDER].combine_chunks()
    names = [f"{_FLAT}{place}" for place in range(order.type.num_fields)]
    for name, values in zip(names, order.flatten(), strict=True):
        updates = updates.append_column(name, values)
    if INHERITED in updates.column_names:  # Arrow groups by no lists
        found = (row[INHERITED] for row in exact_rows(updates.select([INHERITED])))
        texts = [None if entries is None else repr(entries) for entries in found]
        updates, names = updates.append_column(_INHERITED, pa.array(texts, pa.string())), [*names, _INHERITED]
    return updates, names


def _filled(updates: pa.Table, slot: Sequence[str], before: pa.Table | None = None, after: int = -1) -> pa.Table:
    """`updates` with an order for each retraction that lacks one, from the insertion just before it in its slot.

    `before`: what the slots held up to `after`; only its insertions count. Without it, only insertions among the
    updates are found.
    """
    if not updates[ORDER].null_count:
        return updates
    both = updates
    if before is not None:
        inserted = before.filter(pc.greater(before[DIFF], 0))
        both = pa.concat_tables([inserted, updates], promote_options="default")
    both = both.sort_by([*((name, "ascending") for name in slot), (TIME, "ascending"), (DIFF, "ascending")])
    places = pa.array(range(-1, len(both) - 1), pa.int64())
    before_it = pc.if_else(same_as_before(both.select(list(slot))), places, pa.scalar(None, pa.int64()))
    own = pa.array(range(len(both)), pa.int64())
    source = pc.if_else(both[ORDER].combine_chunks().is_valid(), own, before_it)
    done = both
    for name in (ORDER, INHERITED):
        if name in both.column_names:
            done = done.set_column(both.column_names.index(name), both.field(name), both[name].take(source))
    return done.filter(pc.greater(done[TIME], after)).select(updates.column_names)
