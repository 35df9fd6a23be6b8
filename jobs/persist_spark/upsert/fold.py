"""The full state of an operator, without the batch's own delta: large files stay, the rest becomes sorted files.

    chain ──to_fold──┬─ carried over by name ───────────────────────────────────────┐
                     └─ what of the others still counts, sorted ──> a few new files ─┴─> the state, then the delta

So a full state costs what has changed since the last one, and a share of the state that halves its number of files
(`to_fold`). Sorted, each file holds few of the times (the stash) or of the keys (the order index), so that a batch
leaves most files closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.batch import ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchCounts
from persist_core.contents.operator_state import StateArtifact, to_fold
from persist_core.keys import PART
from persist_core.schema import (
    ACTED,
    DELETED,
    FLOOR,
    FORGOTTEN,
    IN_ROW,
    INDEX_KIND,
    INHERITED,
    ORDER,
    TIME,
)
from persist_spark.counted import Counting
from persist_spark.frame import order_type, quoted, slot_names, with_texts
from persist_spark.order_memory import Memory
from persist_spark.session import stage_settings, use
from persist_spark.stage import Planned, StateRows, Written, artifacts_of, stage_files
from persist_spark.upsert.sequence import literal
from persist_spark.upsert.state_before import StateBefore, frontier_of, live, waiting

FILE_BYTES = 8 << 20  # of a file that is sorted: a batch that needs one row of it reads so much

_RANK = "_persist_rank"
_FIRST = f"{_RANK} = 1"


@dataclass(frozen=True)
class Fold:
    """The full states of a batch. Orders get their eras as the user declares them now."""

    before: StateBefore

    def kept(self) -> dict[str, tuple[StateArtifact, ...]]:
        """The files that stand for the state before the batch, of each operator that the batch saves in full."""
        if self.before.description.saves_deltas:
            return {}
        return {name: self._kept(name, chain) for name, chain in self.before.description.operators.items()}

    def _kept(self, operator: str, chain: Sequence[StateArtifact]) -> tuple[StateArtifact, ...]:
        if operator == STASH_OPERATOR:
            chain = live(chain, self.before.description.upper)
        carried, folded = to_fold(self.before.known(chain))
        if not folded:
            return carried
        bytes_, rows = sum(each.size_bytes for each in folded), self._scan(operator, folded)
        use(self.before.spark, stage_settings(bytes_))
        if operator == STASH_OPERATOR:
            rows, by = self._waiting(rows), [TIME, *slot_names(self.before.schema)]
        elif operator == ORDER_INDEX_OPERATOR:
            rows, by = self._entries(rows, folded, is_whole=not carried), slot_names(self.before.schema)
        else:
            rows, by = self._late(rows), [ACTED]
        order = [quoted(name) for name in by]
        ranged = rows.repartitionByRange(max(1, bytes_ // FILE_BYTES), *order).sortWithinPartitions(*order)
        return (*carried, *self._staged(operator, ranged))

    def _scan(self, operator: str, files: Sequence[StateArtifact]) -> DataFrame:
        rows, eras = self.before.scan(operator, files), self.before.eras
        return rows if eras is None else rows.withColumn(ORDER, F.expr(eras.placed(ORDER, self.before.schema.position)))

    def _staged(self, operator: str, rows: DataFrame) -> list[StateArtifact]:
        """Under an attempt of its own, which the batch's manifest names."""
        counting = Counting("folded")
        updates = counting.of(rows, {"rows": "count(1)"}).withColumn(PART, F.lit(operator))

        def outcome(written: DataFrame) -> Written:
            count = int(counting.found(written)["rows"])
            return Written(counts=BatchCounts(), state_rows={operator: StateRows(count, count)})

        planned = Planned(updates, updates.columns, outcome)
        blob, attempt = self.before.client.blob, self.before.client.ids.uuid7()
        files, _ = stage_files(
            blob, self.before.description.shard, attempt, self.before.schema, lambda _: planned, check=lambda _: None
        )
        return [replace(each, is_sorted=True) for each in artifacts_of(blob, files, operator)]

    def _waiting(self, rows: DataFrame) -> DataFrame:
        """The records of the stash that are not due in the batch; for each slot and time the winner."""
        of_time, upper = Window.partitionBy(*self._slot, TIME), self.before.description.upper
        assert upper is not None  # nothing is folded of a stash that is all due
        later = rows.where(F.col(TIME) >= upper)
        if self.before.schema.inherits:  # a record may inherit from records that it beats, as far as the last whole one
            whole = F.max(F.when(F.col(INHERITED).isNull(), F.col(ORDER))).over(of_time)
            return later.withColumn(_RANK, whole).where(f"coalesce({ORDER} >= {_RANK}, true)").drop(_RANK)
        return later.withColumn(_RANK, F.rank().over(of_time.orderBy(F.col(ORDER).desc()))).where(_FIRST).drop(_RANK)

    def _late(self, rows: DataFrame) -> DataFrame:
        return rows if self.before.forgets_before is None else rows.where(F.col(ACTED) >= self.before.forgets_before)

    def _entries(self, rows: DataFrame, folded: Sequence[StateArtifact], *, is_whole: bool) -> DataFrame:
        """The newest entry of each slot, the highest floor, and the highest order that is marked as forgotten.

        If these are all files of the index, entries that void others are not needed, and of tombstones that do not
        count only the highest order, as `forgotten`.
        """
        of_slots = rows.where(~F.col(INDEX_KIND).isin(FLOOR, FORGOTTEN))
        newest = F.row_number().over(Window.partitionBy(*self._slot).orderBy(F.col(TIME).desc()))
        kept = of_slots.withColumn(_RANK, newest).where(_FIRST).drop(_RANK)
        facts = [each.orders for each in folded if each.orders]
        memory = self.before.memory(facts, forgets_before=None)
        if is_whole:
            kept = self._counting(kept, memory)
        marks = {FLOOR: memory.floor, FORGOTTEN: memory.marked}
        given = [(*found, kind) for kind, found in marks.items() if found is not None]
        if not given:
            return kept
        order = order_type(self.before.schema)
        columns = [
            T.StructField(each.name, with_texts(order) if each.name == ORDER else each.dataType)
            for each in self.before.types[ORDER_INDEX_OPERATOR]
            if each.name in (ORDER, TIME, INDEX_KIND)
        ]
        entries = self.before.spark.createDataFrame(given, T.StructType(columns))
        entries = entries.withColumn(ORDER, F.col(ORDER).cast(order.simpleString()))
        return kept.unionByName(entries, allowMissingColumns=True)

    def _counting(self, newest: DataFrame, memory: Memory) -> DataFrame:
        """The entries that count, and the highest order of a tombstone that is forgotten."""
        is_deleted = F.col(INDEX_KIND) == DELETED
        counting = newest.where(F.col(INDEX_KIND) != IN_ROW)
        if memory.floor is not None:
            floor = literal(memory.floor[0], order_type(self.before.schema))
            counting = counting.where(~(is_deleted & (F.col(ORDER) <= floor)))
        if self.before.forgets_before is None:
            return counting
        is_old = is_deleted & (F.col(TIME) < self.before.forgets_before)
        old, awaited = counting.where(is_old), self._awaited()
        kept, forgotten = counting.where(~is_old), old
        if awaited is not None:
            same = F.expr(" AND ".join(f"{name} <=> _persist_slot{i}" for i, name in enumerate(self._slot)))
            kept, forgotten = kept.union(old.join(awaited, same, "left_semi")), old.join(awaited, same, "left_anti")
        highest = forgotten.agg(F.expr(f"max(struct({ORDER}, {TIME})) AS highest")).where("highest IS NOT NULL")
        marked = highest.selectExpr(f"highest.{ORDER}", f"highest.{TIME}", f"'{FORGOTTEN}' AS {INDEX_KIND}")
        return kept.unionByName(marked, allowMissingColumns=True)

    def _awaited(self) -> DataFrame | None:
        """The slots of the records in the stash before the batch."""
        chain = waiting(self.before.description)
        if not chain:
            return None
        rows = self._scan(STASH_OPERATOR, chain).where(f"{TIME} >= {frontier_of(self.before.description)}L")
        return rows.selectExpr(*[f"{name} AS _persist_slot{i}" for i, name in enumerate(self._slot)])

    @property
    def _slot(self) -> list[str]:
        return [quoted(name) for name in slot_names(self.before.schema)]
