"""The operator state that a batch starts from, and what of it the batch reads.

    file ─ its digest is the recorded one ─> itself
         └ damaged or missing ─ checkpoints ─> an intact copy, which the next full state rewrites

    stash ─┬─ files whose records are all due later, of other keys: closed, known by their number only
           └─ others ──> records before the upper ─┬──> the plan of the batch
                    └──> records of the batch's slots ─┘

A record that waits is met by another of its slot: one of the same time beats it, or is beaten; and in `sequence` order
a tombstone of its slot is not forgotten. Nothing else of a batch depends on a record that is not due.

A damaged file of rows is found by the checksums of its pages. Operator state has its digests verified as well: a record
that is lost here is missed by no count of a later batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.checkpoint.recovery import recover_newest
from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR, STASH_OPERATOR, BatchDescription
from persist_core.contents.key_range import EVERYTHING, KeyRange, meets_any
from persist_core.contents.operator_state import OrderFacts, StateArtifact
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import CorruptArtifact, InvariantViolation
from persist_core.handles.client import PersistClient
from persist_core.location.blob import BlobMetadata
from persist_core.schema import TIME, CollectionSchema
from persist_spark.footers import digests_of
from persist_spark.frame import OP, SKIP, named, order_type, passed, records_type, slot_names
from persist_spark.order_memory import Memory
from persist_spark.read.parts import scan
from persist_spark.upsert.arguments import SeenBefore
from persist_spark.upsert.eras import Eras
from persist_spark.upsert.look import MAX_LOOK_BYTES, cuts_of, look_at
from persist_spark.upsert.lookup import of_slots
from persist_spark.upsert.sequence import index_type, late_type

log = logging.getLogger(__name__)

# Up to here the whole stash is read: to find out what the records meet takes a job, which costs more.
SMALL_STASH_BYTES = 4 << 20


@dataclass(frozen=True)
class StashBefore:
    """The stash before a batch, as far as it is read: not consolidated; `None`: none of it.

    `total`: how many records the whole stash holds, consolidated, if `rows` may be fewer. `size_bytes` are read.
    """

    rows: DataFrame | None
    size_bytes: int
    total: int | None = None


NO_STASH = StashBefore(None, 0)


def live(chain: Sequence[StateArtifact], time: int | None) -> list[StateArtifact]:
    """The files that may hold records at or after `time` (`None`: no time is)."""
    return [each for each in chain if time is not None and (each.last_time is None or each.last_time >= time)]


def is_large(description: BatchDescription) -> bool:
    """True if a batch reads only what it needs of the stash: if it is small or its number is not known, all of it."""
    is_known = description.upper is not None and description.stash_rows is not None
    return is_known and bytes_of(waiting(description)) > SMALL_STASH_BYTES


def may_look(description: BatchDescription) -> bool:
    """True if the records of a batch may be looked at, and kept for that, to read less of the stash: not if they are
    many more than what it holds."""
    return is_large(description) and description.input_bytes <= max(MAX_LOOK_BYTES, bytes_of(waiting(description)))


def waiting(description: BatchDescription) -> list[StateArtifact]:
    """The files that may hold records which earlier batches have not processed."""
    return live(description.operators.get(STASH_OPERATOR, ()), frontier_of(description))


def bytes_of(files: Iterable[StateArtifact]) -> int:
    return sum(each.size_bytes for each in files)


def frontier_of(description: BatchDescription) -> int:
    """From when on records of the stash have not been processed."""
    return description.lower if description.stash_frontier is None else description.stash_frontier


@dataclass(frozen=True)
class StateBefore:
    """The operator state that a batch starts from. `order`: the type of the records' order. Each file is verified once.

    `_verified`: by digest, what stands for a file.
    """

    spark: SparkSession
    client: PersistClient
    description: BatchDescription
    schema: CollectionSchema
    schemas: SchemaVersions
    keep_deleted_ms: int | None
    order: T.DataType
    eras: Eras | None
    _verified: dict[str, StateArtifact] = field(default_factory=dict)

    @property
    def index(self) -> tuple[StateArtifact, ...]:
        return self.description.operators.get(ORDER_INDEX_OPERATOR, ())

    @property
    def index_bytes(self) -> int:
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
        orders = {each.key: _orders(each) for each in self.index}
        files = [
            each
            for each in self.index
            if ranges is None or orders[each.key].has_bad_keys or meets_any(each.keys, ranges)
        ]
        return SeenBefore(
            index=self.scan(ORDER_INDEX_OPERATOR, files) if files else None,
            memory=self.memory(orders.values(), forgets_before=self.forgets_before),
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
        """The records of the batch for which it matters what waits in their slots."""
        known, upper = f"{OP} != '{SKIP}'", self.description.upper
        if self.index and self.forgets_before is not None:
            return records.where(known)
        return records.where(f"{known} AND {TIME} >= {upper}L") if may_stash and upper is not None else None

    def scan(self, operator: str, files: Sequence[StateArtifact]) -> DataFrame:
        """The rows of these files of an operator, or of their copies: all are read for their digests.

        Raises `CorruptArtifact` if a file and its copy are damaged or missing, and for a file of a schema version that
        the shard never had.
        """
        self._verify([each for each in files if each.sha256 not in self._verified])
        schemas = self.schemas
        found = [(each.key, schemas.of(each.schema_version, what=f"artifact {each.key}")) for each in self.known(files)]
        return scan(self.spark, self.client.blob, found, self.types[operator])

    def known(self, files: Sequence[StateArtifact]) -> list[StateArtifact]:
        """These files, with copies in place of damaged ones. Reads nothing."""
        return [self._verified.get(each.sha256, each) for each in files]

    def _verify(self, files: Sequence[StateArtifact]) -> None:
        with suppress(CorruptArtifact):
            found = digests_of(self.client.blob, [BlobMetadata(each.key, each.size_bytes) for each in files])
            if found == [each.sha256 for each in files]:
                self._verified.update({each.sha256: each for each in files})
                return
        shard = self.description.shard
        recovered = recover_newest(self.client, self.client.state(shard), verified_bytes=None)
        for notice in recovered.notices:
            log.warning("%s", notice)
        self._verified.update({each.sha256: each for chain in recovered.operators.values() for each in chain})
        if lost := [each.key for each in files if each.sha256 not in self._verified]:
            raise CorruptArtifact(f"{lost[0]} is damaged or gone, and the state of shard {shard} does not name it")

    @property
    def types(self) -> dict[str, T.StructType]:
        schema = self.schema
        types = {STASH_OPERATOR: records_type(schema, self.order)}
        if schema.order is not None:
            order = order_type(schema)
            types |= {ORDER_INDEX_OPERATOR: index_type(schema, order), LATE_OPERATOR: late_type(schema, order)}
        return types


def _orders(artifact: StateArtifact) -> OrderFacts:
    if artifact.orders is None:
        raise InvariantViolation(
            f"{artifact.key} is of the order index, and its manifest does not say which orders it holds; expected"
            " `orders`. Nothing was committed; this is a defect, please report it with the job's log"
        )
    return artifact.orders
