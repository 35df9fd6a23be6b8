"""The operator state that a batch starts from, and what of it the batch reads (`persist_spark.upsert.stash`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchDescription
from persist_core.contents.key_range import EVERYTHING, KeyRange, meets_any
from persist_core.contents.operator_state import OrderFacts, StateArtifact
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvariantViolation
from persist_core.handles.client import PersistClient
from persist_core.schema import TIME, CollectionSchema
from persist_spark.frame import OP, SKIP, named, order_type, passed, records_type, slot_names
from persist_spark.order_memory import Memory
from persist_spark.read.parts import scan
from persist_spark.upsert.arguments import SeenBefore
from persist_spark.upsert.eras import Eras
from persist_spark.upsert.look import cuts_of, look_at
from persist_spark.upsert.lookup import of_slots
from persist_spark.upsert.seen import index_type, late_type
from persist_spark.upsert.stash import StashBefore, bytes_of, is_large, may_look, waiting
from persist_spark.upsert.state_files import StateFiles


@dataclass(frozen=True)
class StateBefore:
    """The operator state that a batch starts from. `order`: the type of the records' order."""

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

    def whole_stash(self) -> StashBefore:
        """All of the stash that earlier batches have not processed."""
        found = waiting(self.description)
        return StashBefore(self.scan(STASH_OPERATOR, found) if found else None, bytes_of(found))

    def needed_stash(self, records: DataFrame, *, may_stash: bool) -> StashBefore:
        """The due records of the stash, and the records that the batch's meet there."""
        description, meeting = self.description, self._meeting(records, may_stash=may_stash)
        if not (is_large(description) if meeting is None else may_look(description)):
            return self.whole_stash()
        assert description.upper is not None
        found, upper = waiting(description), description.upper
        due = [each for each in found if each.first_time is None or each.first_time < upper]
        met, slots = list[StateArtifact](), None
        if meeting is not None:
            look = look_at(meeting, self.schema, upper, cuts_of(each.keys for each in found))
            if not look.fits_a_broadcast:
                return self.whole_stash()
            # A truncate has no key, and a record may have one that cannot be decoded.
            ranges = [EVERYTHING] if look.keyless or look.ranges is None else look.ranges
            met = [each for each in found if look.rows and meets_any(each.keys, ranges)]
            slots = meeting.select(*[named(name) for name in slot_names(self.schema)])
        before_upper = F.col(TIME) < F.expr(passed(upper)[0])
        frames = [self.scan(STASH_OPERATOR, due).where(before_upper)] if due else []
        if met:
            later = self.scan(STASH_OPERATOR, met).where(~before_upper)
            frames.append(of_slots(later, self.schema, slots, has_bad_keys=True))
        opened = bytes_of({each.key: each for each in (*due, *met)}.values())
        rows = functools.reduce(DataFrame.union, frames) if frames else None
        return StashBefore(rows, opened, description.stash_rows)

    def seen(self, ranges: Sequence[KeyRange] | None, slots: DataFrame | None) -> SeenBefore | None:
        """In `sequence` order: what the shard has seen of these slots, whose keys are in the ranges (`None`: all)."""
        if self.schema.order is None:
            return None
        files = [each for each in self.index if ranges is None or _has_any(each, ranges)]
        return SeenBefore(
            index=self.scan(ORDER_INDEX_OPERATOR, files) if files else None,
            memory=self.memory(map(_orders, self.index), forgets_before=self.forgets_before),
            slots=slots,
            has_index=bool(self.index),
            has_late=LATE_OPERATOR in self.description.operators,
            forgets_before=self.forgets_before,
        )

    def memory(self, facts: Iterable[OrderFacts], *, forgets_before: int | None) -> Memory:
        """The part of these files of the order index that belongs to no slot."""
        return Memory.of(facts, self.schema, forgets_before, self.eras.ranked if self.eras else None)

    @property
    def forgets_before(self) -> int | None:
        """Tombstones that are forgotten before the batch: as of the upper of the one before it, which is its lower."""
        return None if self.keep_deleted_ms is None else self.description.lower - self.keep_deleted_ms

    def _meeting(self, records: DataFrame, *, may_stash: bool) -> DataFrame | None:
        """The records of the batch for which it matters what waits in their slots: see `persist_spark.upsert.stash`."""
        known, upper = f"{OP} != '{SKIP}'", self.description.upper
        if self.index and self.forgets_before is not None:
            return records.where(known)
        return records.where(f"{known} AND {TIME} >= {upper}L") if may_stash and upper is not None else None

    def scan(self, operator: str, files: Sequence[StateArtifact]) -> DataFrame:
        """The rows of these files of an operator, or of their copies. Raises `CorruptArtifact` for a file of a schema
        version that the shard never had."""
        whole, schemas = self.files.whole(files), self.schemas
        found = [(each.key, schemas.of(each.schema_version, what=f"artifact {each.key}")) for each in whole]
        return scan(self.spark, self.client.blob, found, self.types[operator])

    @property
    def types(self) -> dict[str, T.StructType]:
        """The columns of each operator's files, by operator."""
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
