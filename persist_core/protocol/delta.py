"""The net change of a shard since a time, rows with the orders that made them. Restores undo it, corrections too.

    batches after `after` ──read──> updates, with orders ──net_of──> at one time: what it takes to get there

So the cost follows the changes, whatever the shard's size; in `sequence` order keys and orders of older rows may be
read too (`restore_orders`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents import pieces
from persist_core.contents.batch import BatchCounts, HollowBatch
from persist_core.contents.parts import ERR_IDENTITY, errs_schema, updates_schema
from persist_core.contents.row_versions import sum_diffs
from persist_core.errors import InvalidInput, InvariantViolation
from persist_core.exact import exact_rows
from persist_core.handles.read import ReadHandle, check_as_of
from persist_core.protocol.restore_orders import flattened, with_orders_of_errs, with_orders_of_oks
from persist_core.schema import DIFF, TIME, CollectionSchema
from persist_core.shard.state import ShardState
from persist_core.time_text import MAX_TIME

MAX_UPDATES = 2_000_000  # that this process reads: measured 1.2 KiB of memory each, at 180 bytes a row
BYTES_OF_AN_UPDATE = 256  # of Parquet; an update that takes more counts for as many as it would make
BEGINNING = -1  # `after` of all that a shard has ever held: what it holds now


@dataclass(frozen=True)
class Delta:
    """Updates, as `updates_schema` and `errs_schema` have them."""

    oks: pa.Table
    errs: pa.Table

    @property
    def counts(self) -> BatchCounts:
        inserted, errs_inserted = (int(pc.sum(pc.greater(t[DIFF], 0)).as_py() or 0) for t in (self.oks, self.errs))
        return BatchCounts(inserted, len(self.oks) - inserted, errs_inserted, len(self.errs) - errs_inserted)


def check_size(
    reader: ReadHandle,
    state: ShardState,
    after: int,
    max_updates: int,
    since: str,
    remedy: str = "",
    *,
    through: int = MAX_TIME,
) -> None:
    """Raise `InvalidInput` if the shard has changed too much for one process since `after`, in words `since`, and up to
    `through`."""
    later = [batch for batch in state.batches if (batch.changed_at or 0) > after and batch.lower <= through]
    whole: list[HollowBatch] = []
    partial: list[HollowBatch] = []  # with other updates too, as a run may: counted row by row, or by few rows
    for batch in later:
        is_whole = after == BEGINNING or (batch.lower > after and batch.last_time <= through)
        (whole if is_whole else partial).append(batch)
    updates = sum(batch.counts.updates for batch in whole)
    updates += reader.count_changes(partial, after, through, enough=max_updates - updates)
    size_bytes = sum(batch.size_bytes for batch in whole)
    if max(updates, size_bytes // BYTES_OF_AN_UPDATE) > max_updates:
        raise InvalidInput(
            f"shard {state.shard} has changed by {updates} updates ({size_bytes} bytes) since {since}; the"
            f" limit is {max_updates} ({max_updates * BYTES_OF_AN_UPDATE} bytes). If there is memory for them (1.2 KiB"
            f" per update), raise --max-updates (in Airflow: max_updates){remedy}"
        )


def delta_since(
    reader: ReadHandle, state: ShardState, after: int, through: int | None = None, *, orders: bool = True
) -> Delta:
    """The updates with `after < time <= through` (default: all later ones), in the state's schema.

    `orders`: with the orders of rows. Raises `OutsideFrontiers` for times that cannot be read.
    """
    schema = state.schema
    assert schema is not None
    if after > BEGINNING:
        check_as_of(state, after)
    last = check_as_of(state, through)
    batches = [batch for batch in state.batches if batch.last_time > after and batch.lower <= last]
    oks = reader.read(
        batches,
        updates_schema(schema, orders=orders),
        lambda b, m: pieces.oks_as_of(b, m, last) if after == BEGINNING else pieces.oks_between(b, m, after, last),
    )
    errs = reader.read(
        batches,
        errs_schema(schema, orders=orders),
        lambda b, m: pieces.errs_as_of(b, m, last) if after == BEGINNING else pieces.errs_between(b, m, after, last),
    )
    if not orders:
        return Delta(oks, errs)
    return Delta(with_orders_of_oks(oks, reader, state, after), with_orders_of_errs(errs, reader, state, after))


def net_of(
    summands: Sequence[tuple[int, Delta]], schema: CollectionSchema, time: int, *, since: str, remedy: str = ""
) -> Delta:
    """The sum of deltas since a time (in words `since`), each times its sign, as updates at `time`.

    Raises `InvariantViolation` for a row that it would insert or retract more than once.
    """
    names = [column.name for column in schema.columns]
    oks = [(sign, delta.oks) for sign, delta in summands]
    errs = [(sign, delta.errs) for sign, delta in summands]
    return Delta(
        _net(oks, names, updates_schema(schema), time, since, remedy),
        _net(errs, list(ERR_IDENTITY), errs_schema(schema), time, since, remedy),
    )


def _net(
    summands: Sequence[tuple[int, pa.Table]], identity: list[str], schema: pa.Schema, time: int, since: str, remedy: str
) -> pa.Table:
    flat, orders = flattened(pa.concat_tables([signed(table, sign) for sign, table in summands]))
    summed = sum_diffs(flat, [*identity, *orders])
    broken = summed.filter(pc.greater(pc.abs(summed[DIFF]), 1))
    if len(broken):
        row = next(exact_rows(broken.slice(0, 1)))
        raise InvariantViolation(
            f"since {since} {row} was inserted or retracted more than once; a key has at"
            f" most one value. Nothing was committed; run `persist fsck`{remedy}"
        )
    timed = summed.set_column(summed.column_names.index(TIME), TIME, pa.repeat(time, len(summed)))
    return timed.select(schema.names)


def signed(updates: pa.Table, sign: int) -> pa.Table:
    """The updates, their diffs times `sign`."""
    return updates.set_column(updates.column_names.index(DIFF), DIFF, pc.multiply(updates[DIFF], sign))
