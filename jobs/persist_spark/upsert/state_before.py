"""The operator state that a batch starts from: what of it the batch reads, and what its full states keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchDescription
from persist_core.contents.key_range import KeyRange, meets_any
from persist_core.contents.operator_state import OrderFacts, StateArtifact
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvariantViolation
from persist_core.handles.client import PersistClient
from persist_core.schema import TIME, CollectionSchema
from persist_spark.frame import OP, SKIP, order_type, records_type
from persist_spark.order_memory import Memory
from persist_spark.upsert.arguments import SeenBefore
from persist_spark.upsert.eras import Eras
from persist_spark.upsert.fold import Fold, scan_state
from persist_spark.upsert.seen import index_type, late_type
from persist_spark.upsert.stash import StashBefore, needed_stash, whole_stash
from persist_spark.upsert.state_files import StateFiles


@dataclass(frozen=True)
class StateBefore:
    """The operator state that a batch starts from: what of it the batch reads, and what its full states keep."""

    spark: SparkSession
    client: PersistClient
    files: StateFiles
    description: BatchDescription
    schema: CollectionSchema
    schemas: SchemaVersions
    keep_deleted_ms: int | None
    order: T.DataType
    eras: Eras | None

    @property
    def index(self) -> tuple[StateArtifact, ...]:
        """The files of the order index."""
        return self.description.operators.get(ORDER_INDEX_OPERATOR, ())

    @property
    def index_bytes(self) -> int:
        """Their bytes."""
        return sum(each.size_bytes for each in self.index)

    def needed_stash(self, records: DataFrame, *, may_stash: bool) -> StashBefore:
        """The part of the stash that the batch needs."""
        return needed_stash(
            self.description, self.schema, self._scan_stash, self._meeting(records, may_stash=may_stash)
        )

    def whole_stash(self) -> StashBefore:
        """All of it."""
        return whole_stash(self.description, self._scan_stash)

    def seen(self, ranges: Sequence[KeyRange] | None, slots: DataFrame | None) -> SeenBefore | None:
        """In `sequence` order: what the shard has seen of these slots, whose keys are in the ranges (`None`: all)."""
        if self.schema.order is None:
            return None
        files = [each for each in self.index if ranges is None or _has_any(each, ranges)]
        return SeenBefore(
            index=self._scan(ORDER_INDEX_OPERATOR, files) if files else None,
            memory=Memory.of(
                map(_orders, self.index), self.schema, self._forgets(), self.eras.ranked if self.eras else None
            ),
            slots=slots,
            has_index=bool(self.index),
            has_late=LATE_OPERATOR in self.description.operators,
            forgets_before=self._forgets(),
        )

    def kept(self) -> dict[str, tuple[StateArtifact, ...]]:
        """See `Fold.kept`."""
        state = (self.files, self.description, self.schema, self.schemas, self._types())
        return Fold(self.spark, self.client, *state, self._forgets(), self.eras).kept()

    def _forgets(self) -> int | None:
        """Tombstones that are forgotten before the batch: as of the upper of the one before it, which is its lower."""
        keep = self.keep_deleted_ms
        return None if keep is None else self.description.lower - keep

    def _meeting(self, records: DataFrame, *, may_stash: bool) -> DataFrame | None:
        """The records of the batch for which it matters what waits in their slots: see `persist_spark.upsert.stash`."""
        known, upper = f"{OP} != '{SKIP}'", self.description.upper
        if self.index and self._forgets() is not None:
            return records.where(known)
        return records.where(f"{known} AND {TIME} >= {upper}L") if may_stash and upper is not None else None

    def _scan_stash(self, files: Sequence[StateArtifact]) -> DataFrame:
        return self._scan(STASH_OPERATOR, files)

    def _scan(self, operator: str, files: Sequence[StateArtifact]) -> DataFrame:
        whole = self.files.whole(files)
        return scan_state(self.spark, self.client.blob, whole, self._types()[operator], self.schemas)

    def _types(self) -> dict[str, T.StructType]:
        schema = self.schema
        types = {STASH_OPERATOR: records_type(schema, self.order)}
        if schema.order is not None:
            order = order_type(schema)
            types |= {ORDER_INDEX_OPERATOR: index_type(schema, order), LATE_OPERATOR: late_type(schema, order)}
        return types


def _has_any(file: StateArtifact, ranges: Sequence[KeyRange]) -> bool:
    return file.orders is None or file.orders.has_bad_keys or meets_any(file.keys, ranges)


def _orders(artifact: StateArtifact) -> OrderFacts:
    if artifact.orders is None:
        raise InvariantViolation(
            f"{artifact.key} is of the order index, and its manifest does not say which orders it holds; expected"
            " `orders`. Nothing was committed; this is a defect, please report it with the job's log"
        )
    return artifact.orders
