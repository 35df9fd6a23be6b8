"""`ReadHandle`: snapshots and changes of a shard as Arrow tables.

    head -> state -> hollow batches that overlap the requested times -> manifests -> parts -> one Arrow table

A keyed shard is read by its invariants (docs/architecture.md, "Parts"): an insertion is live as of `t` iff no
retraction of its key has `insertion.time < retraction.time <= t`; so only keys and times are compared, never whole
rows. A shard without a key is a multiset and is consolidated by whole rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents import pieces
from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.contents.key_range import KeyRange, is_within
from persist_core.contents.parts import ERR_IDENTITY, errs_schema, nullable, updates_schema
from persist_core.contents.pieces import Piece
from persist_core.contents.row_versions import sum_diffs
from persist_core.errors import InvalidInput, InvariantViolation, OutsideFrontiers
from persist_core.exact import exact_rows
from persist_core.frontier import Frontier
from persist_core.handles.load import load_manifests, read_part
from persist_core.handles.overtaken import check_generation, named_if_slow
from persist_core.handles.side_by_side import side_by_side
from persist_core.handles.store import Store
from persist_core.row_text import show_row
from persist_core.schema import DIFF, ENDED, TIME, CollectionSchema
from persist_core.shard import state as transitions
from persist_core.shard.state import Lease, ShardState
from persist_core.time_text import MAX_TIME, check_time, show_time

MAX_COPIES = 10_000_000  # of one row in a multiset: a table with more does not fit in memory

# Columns within a read only: the time of a retraction (null for an insertion), and numbers of keys and rows.
_RETRACTED_AT, _SLOT, _ROW = "_persist_retracted_at", "_persist_slot", "_persist_row"

Choose = Callable[[HollowBatch, BatchManifest], Iterable[Piece]]


class ReadHandle:
    """Reads one shard. Without a lease it holds nothing back; with one, read or `heartbeat` in time or get
    `LeaseExpired`. A read renews the lease only after a third of its time, so most reads write no version.
    """

    def __init__(self, store: Store, shard: str, *, reader: str | None = None, generation: int | None = None) -> None:
        self._store = store
        self.reader = reader
        self.shard = shard
        self.generation = generation  # that the caller knows: see `check_generation`

    def state(self) -> ShardState:
        """The newest state; with a lease, `LeaseExpired` if it has expired."""
        if self.reader is not None:
            return self._apply_lease(
                lambda state, reader: transitions.keep_lease(state, reader, now_ms=self._store.clock.now_ms())
            )
        state, _ = self._store.machine.apply(self.shard, lambda state: (state, None))
        return state

    def register(self, lease_ms: int) -> None:
        """Register this reader's lease (`PersistClient.open_leased_reader` does)."""
        check_time(lease_ms, what="lease_ms")
        self._apply_lease(
            lambda state, reader: transitions.register_lease(
                state, reader, now_ms=self._store.clock.now_ms(), duration_ms=lease_ms
            )
        )

    def heartbeat(self, since: Frontier | None = None) -> ShardState:
        """Keep the lease for another `lease_ms`, and move its hold up to `since` if given."""
        return self._apply_lease(
            lambda state, reader: transitions.renew_lease(state, reader, now_ms=self._store.clock.now_ms(), since=since)
        )

    def expire(self) -> bool:
        """Release the lease. A second call is harmless."""
        reader = self.reader
        if reader is None:
            return False
        _, released = self._store.machine.apply(self.shard, lambda state: transitions.release_lease(state, reader))
        return released

    def _apply_lease(self, change: Callable[[ShardState, str], tuple[ShardState, Lease]]) -> ShardState:
        reader = self.reader
        if reader is None:
            raise InvalidInput("this reader has no lease; open it with `open_leased_reader`")
        state, _ = self._store.machine.apply(self.shard, lambda state: change(state, reader))
        return state

    def snapshot(
        self, as_of: int | None = None, *, keys: Sequence[KeyRange] | None = None, schema: int | None = None
    ) -> pa.Table:
        """The oks as of `as_of` (default: the newest time), one row per row; columns of the schema.

        `keys`: only rows whose key is in one of these ranges; files that cannot hold any are not opened. Raises
        `OutsideFrontiers` unless `since <= as_of < upper`, `InvalidInput` for `keys` of a shard without a key.

        `schema`: the version to show, whose columns can be read until one of them was dropped: a smaller `upper`.
        """
        return self.snapshot_of(in_schema(self.state(), schema), as_of, keys=keys)

    def snapshot_of(
        self, state: ShardState, as_of: int | None = None, *, keys: Sequence[KeyRange] | None = None
    ) -> pa.Table:
        """Like `snapshot`, for an earlier state. Raises `ReadTooSlow` if its files have been collected."""
        schema = schema_of(state)
        time = check_as_of(state, as_of)
        return self._fit(self._as_of(state, time, updates_schema(schema, orders=False), keys), schema, time)

    def _as_of(self, state: ShardState, time: int, columns: pa.Schema, keys: Sequence[KeyRange] | None) -> pa.Table:
        """The rows as of `time`, with these columns: the key's, time and diff at least; without a key, all."""
        schema = schema_of(state)
        batches = [batch for batch in state.batches if batch.lower <= time]
        below, above = (
            self._read_keys(some, columns, lambda b, m: pieces.oks_as_of(b, m, time), schema, keys)
            for some in (batches[:1], batches[1:])
        )
        is_run = bool(batches) and batches[0].run_changed_at is not None
        if schema.key and is_run and pc.all(pc.equal(below[DIFF], 1)).as_py() is not False:
            return self._live_above(below, above, schema, time)
        return self._live(pa.concat_tables([below, above]), schema.key_names, time, schema)

    def _fit(self, live: pa.Table, schema: CollectionSchema, time: int) -> pa.Table:
        try:
            return live.select(schema.arrow().names).cast(schema.arrow())
        except (pa.ArrowException, ValueError) as error:  # a null in a column that is not nullable
            raise InvariantViolation(
                f"shard {self.shard}: the rows as of {show_time(time)} do not fit the schema: {error}. Run `persist"
                f" fsck {self.shard}`"
            ) from error

    def errors(self, as_of: int | None = None, *, schema: int | None = None) -> pa.Table:
        """The errs as of `as_of`: key columns (null if undecodable), kind, message, key bytes, payload, time."""
        state = in_schema(self.state(), schema)
        columns = errs_schema(schema_of(state), orders=False)
        time = check_as_of(state, as_of)
        batches = [batch for batch in state.batches if batch.lower <= time]
        updates = self.read(batches, columns, lambda b, m: pieces.errs_as_of(b, m, time))
        return self._repeated(updates, list(ERR_IDENTITY), time).drop_columns([DIFF])

    def changes(
        self,
        after: int,
        through: int | None = None,
        *,
        keys: Sequence[KeyRange] | None = None,
        orders: bool = False,
        schema: int | None = None,
    ) -> pa.Table:
        """The oks' updates with `after < time <= through`, each once, with time and diff; ordered by time, then diff.

        `snapshot(after)` plus these is `snapshot(through)`; `keys` and `schema` as for `snapshot`. `orders`: with the
        rows', in `sequence` order. Raises `OutsideFrontiers` unless `since <= after <= through < upper`, and
        `GenerationChanged`.
        """
        return self._changes(updates_schema, pieces.oks_between, after, through, keys, orders, schema)

    def error_changes(
        self,
        after: int,
        through: int | None = None,
        *,
        keys: Sequence[KeyRange] | None = None,
        orders: bool = False,
        schema: int | None = None,
    ) -> pa.Table:
        """The errs' updates with `after < time <= through`, as `changes` gives the oks'."""
        return self._changes(errs_schema, pieces.errs_between, after, through, keys, orders, schema)

    def _changes(
        self,
        columns: Callable[..., pa.Schema],
        between: Callable[[HollowBatch, BatchManifest, int, int], Iterable[Piece]],
        after: int,
        through: int | None,
        keys: Sequence[KeyRange] | None,
        orders: bool,
        version: int | None,
    ) -> pa.Table:
        batches, schema, low, high = self._range(after, through, version)
        wanted = columns(schema, orders=orders)
        found = self._read_keys(batches, wanted, lambda b, m: between(b, m, low, high), schema, keys)
        return found.sort_by([(TIME, "ascending"), (DIFF, "ascending")])

    def count_changes(self, batches: Sequence[HollowBatch], after: int, through: int, *, enough: int = 0) -> int:
        """The number of updates of these batches, oks and errs, with `after < time <= through`. Decodes times only.

        If the manifests say that there are at most `enough`, it is what they say, and no file is read.
        """
        times = pa.schema([pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64())])
        with named_if_slow(self._store.machine, self.shard, batches):
            manifests = load_manifests(self._store.blob, batches, threads=self._store.fetch_threads)
            chosen = [
                piece
                for batch, manifest in zip(batches, manifests, strict=True)
                for between in (pieces.oks_between, pieces.errs_between)
                for piece in between(batch, manifest, after, through)
            ]
            rows = [piece.part.rows for piece in chosen for _ in range(1 + piece.has_ends)]  # each has two updates
            most = sum(count or 0 for count in rows)
            return most if None not in rows and most <= enough else len(self.read_pieces(chosen, times))

    def _range(
        self, after: int, through: int | None, version: int | None = None
    ) -> tuple[list[HollowBatch], CollectionSchema, int, int]:
        state = in_schema(self.state(), version)
        schema = schema_of(state)
        high = check_as_of(state, through)
        low = check_as_of(state, after)
        check_generation(state, low, self.generation)
        if low > high:
            raise InvalidInput(f"changes after {low} through {high}: expected after <= through")
        batches = [b for b in state.batches if b.lower <= high and (b.upper is None or b.upper > low + 1)]
        return batches, schema, low, high

    def _read_keys(
        self,
        batches: Sequence[HollowBatch],
        columns: pa.Schema,
        choose: Choose,
        schema: CollectionSchema,
        keys: Sequence[KeyRange] | None,
    ) -> pa.Table:
        if keys is None:
            return self.read(batches, columns, choose)
        if not schema.key:
            raise InvalidInput(f"shard {self.shard} has no key: its rows cannot be selected by key")
        found = self.read(batches, columns, lambda b, m: pieces.within(choose(b, m), keys))
        return found.filter(is_within(found, keys, schema.key))

    def read(self, batches: Sequence[HollowBatch], schema: pa.Schema, choose: Choose) -> pa.Table:
        """The rows of all pieces that `choose` picks of these batches, with the columns of `schema`, all nullable."""
        with named_if_slow(self._store.machine, self.shard, batches):
            manifests = load_manifests(self._store.blob, batches, threads=self._store.fetch_threads)
            pairs = zip(batches, manifests, strict=True)
            return self.read_pieces([piece for batch, manifest in pairs for piece in choose(batch, manifest)], schema)

    def read_pieces(self, chosen: list[Piece], schema: pa.Schema) -> pa.Table:
        """The rows of these pieces, with the columns of `schema`, all nullable."""
        columns = nullable(schema)
        tables = side_by_side(lambda piece: self._piece(piece, columns), chosen, threads=self._store.fetch_threads)
        return pa.concat_tables(tables) if tables else columns.empty_table()

    def _piece(self, piece: Piece, schema: pa.Schema) -> pa.Table:
        columns = schema.append(pa.field(ENDED, pa.int64())) if piece.has_ends else schema
        return piece.of(read_part(self._store.blob, piece.part, columns, self._store.part_format))

    def _live_above(self, run: pa.Table, above: pa.Table, schema: CollectionSchema, time: int) -> pa.Table:
        """The rows of a snapshot whose bottom batch is a run: it holds each of its keys once, as its merge made sure.

        So only its rows with keys of the batches above are compared, and only these keys are hashed.
        """
        if not len(above):
            return run
        keys = list(schema.key_names)
        if len(keys) == 1:
            is_touched = pc.is_in(run[keys[0]], above[keys[0]].combine_chunks())
        else:
            changed = above.select(keys).group_by(keys).aggregate([])
            rows = run.select(keys).append_column(_ROW, _numbers(len(run)))
            touched = rows.join(changed, keys=keys, join_type="left semi")[_ROW]
            is_touched = pc.is_in(rows[_ROW], touched.combine_chunks())
        compared = self._live(pa.concat_tables([run.filter(is_touched), above]), schema.key_names, time, schema)
        return pa.concat_tables([run.filter(pc.invert(is_touched)), compared])

    def _live(self, updates: pa.Table, keys: tuple[str, ...], time: int, schema: CollectionSchema) -> pa.Table:
        """The rows of a snapshot. `InvariantViolation` with the row if a count is not one that a shard may hold."""
        if not keys:
            return self._repeated(updates, schema.arrow().names, time)
        odd = updates.filter(pc.and_(pc.not_equal(updates[DIFF], 1), pc.not_equal(updates[DIFF], -1)))
        if len(odd):
            row = next(exact_rows(odd.slice(0, 1)))
            raise self._broken({name: row[name] for name in keys}, f"a diff of {row[DIFF]} at {row[TIME]}", time)
        forward = pc.greater(updates[DIFF], 0)
        retracted_at = pc.if_else(forward, pa.scalar(None, pa.int64()), updates[TIME])
        slots = updates.append_column(_RETRACTED_AT, retracted_at).group_by(list(keys))
        slots = slots.aggregate([(DIFF, "sum"), (_RETRACTED_AT, "max")])
        slots = slots.append_column(_SLOT, _numbers(len(slots)))
        insertions = updates.filter(forward)
        # Only keys and row numbers are joined, so that any type of value column is carried along by `take`.
        rows = insertions.select([*keys, TIME]).append_column(_ROW, _numbers(len(insertions)))
        joined = rows.join(slots, keys=list(keys), join_type="left outer")
        was_retracted = pc.less(joined[TIME], joined[f"{_RETRACTED_AT}_max"])
        live = joined.filter(pc.invert(pc.fill_null(was_retracted, False)))  # null: the key was never retracted
        self._check_live(slots, live, keys, time)
        return insertions.take(live[_ROW])

    def _check_live(self, slots: pa.Table, live: pa.Table, keys: tuple[str, ...], time: int) -> None:
        """Each key's diffs add up to 0 or 1, and that is how many of its insertions are live."""
        sums = slots[f"{DIFF}_sum"]
        is_a_value = pc.and_(pc.greater_equal(sums, 0), pc.less_equal(sums, 1))
        counts = (len(live), pc.sum(live[f"{DIFF}_sum"]).as_py() or 0, pc.count_distinct(live[_SLOT]).as_py())
        if pc.all(is_a_value).as_py() is not False and counts == (pc.sum(sums).as_py() or 0,) * 3:
            return
        counted = live.group_by(_SLOT).aggregate([(_ROW, "count")])
        found = dict(zip(counted[_SLOT].to_pylist(), counted[f"{_ROW}_count"].to_pylist(), strict=True))
        for number, total in zip(slots[_SLOT].to_pylist(), sums.to_pylist(), strict=True):
            if total not in (0, 1) or found.get(number, 0) != total:
                key = next(exact_rows(slots.slice(number, 1).select(list(keys))))
                what = f"diffs that add up to {total}, and {found.get(number, 0)} insertions that were not retracted"
                raise self._broken(key, what, time)
        raise self._broken(dict.fromkeys(keys), "updates", time)  # a null key joins nothing

    def _before_copies(self, counted: pa.Table) -> None:
        """Called before rows are copied, each as often as its diff says."""

    def _broken(self, key: dict[str, object], what: str, time: int) -> InvariantViolation:
        return InvariantViolation(
            f"shard {self.shard}: key {show_row(key)} has {what}, as of {show_time(time)}; a key has at most one"
            f" value, inserted and retracted in turn. Run `persist fsck {self.shard}`"
        )

    def _repeated(self, updates: pa.Table, columns: list[str], time: int) -> pa.Table:
        """The rows of a multiset, each as often as its diffs add up to."""
        # Diffs beyond the bound are refused before they are added: a sum of 64-bit numbers could wrap around.
        too_far = updates.filter(_is_out_of(updates[DIFF], -MAX_COPIES))
        counted = too_far if len(too_far) else sum_diffs(updates, columns)
        wrong = counted.filter(_is_out_of(counted[DIFF], 0))
        if len(wrong):
            row = next(exact_rows(wrong.slice(0, 1).select([*columns, DIFF])))
            raise InvariantViolation(
                f"shard {self.shard}: a row is there {row.pop(DIFF)} times as of {show_time(time)}, expected 0 to"
                f" {MAX_COPIES}: {show_row(row)}. Run `persist fsck {self.shard}`"
            )
        if pc.max(counted[DIFF]).as_py() in (None, 1):
            return counted
        self._before_copies(counted)
        copies = itertools.chain.from_iterable(
            itertools.repeat(row, diff) for row, diff in enumerate(counted[DIFF].to_pylist())
        )
        return counted.take(pa.array(copies, pa.int64()))


def check_as_of(state: ShardState, as_of: int | None) -> int:
    """The time to read at (default: the newest, `upper - 1`), or `OutsideFrontiers` printing both frontiers."""
    _check_not_dropped(state)
    if as_of is None and state.upper.is_closed:
        as_of = MAX_TIME
    elif as_of is None and state.upper.time:
        as_of = state.upper.time - 1
    is_kept = as_of is None or state.since <= Frontier(check_time(as_of, what="as_of"))
    if as_of is None or not (is_kept and state.upper.is_past(as_of)):
        raise OutsideFrontiers(
            f"shard {state.shard} can be read at times in [since {state.since}, upper {state.upper}); the read asked"
            f" for {'the newest time' if as_of is None else show_time(as_of)}"
            + ("" if is_kept else f". {_gone(state)}")
        )
    return as_of


def _check_not_dropped(state: ShardState) -> None:
    if state.is_dropped:
        raise OutsideFrontiers(f"shard {state.shard} was dropped: nothing of it can be read; `since` is closed")


def _gone(state: ShardState) -> str:
    return (
        "The history before since is gone: `history:` in the file of the collection or view says how much of it is kept"
        f" from now on, and `persist holds {state.shard}` what is held. To keep a time, pin its checkpoint (`persist"
        " pin`) or read with a lease"
    )


def in_schema(state: ShardState, version: int | None) -> ShardState:
    """The state that shows an earlier schema: until a column of it was dropped. `None`: as it is."""
    if version is None:
        return state
    schemas, end = state.schemas.shown_in(version), state.schemas.readable_before(version)
    return replace(state, schemas=schemas, upper=state.upper if end is None else min(state.upper, Frontier(end)))


def schema_of(state: ShardState) -> CollectionSchema:
    """The shard's schema, or `OutsideFrontiers` before the first commit."""
    if state.schema is None:
        _check_not_dropped(state)
        raise OutsideFrontiers(
            f"shard {state.shard} has no data yet (since {state.since}, upper {state.upper}); run its dag first"
        )
    return state.schema


def _is_out_of(diffs: pa.ChunkedArray, least: int) -> pa.ChunkedArray:
    return pc.or_(pc.less(diffs, least), pc.greater(diffs, MAX_COPIES))


def _numbers(count: int) -> pa.Array:
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=-1)
