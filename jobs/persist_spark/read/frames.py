"""Read a shard from Spark: `snapshot`, `errors`, `changes`, `error_changes` as DataFrames.

    state -> batches that overlap the times requested -> parts -> DataFrame

A keyed shard is read by its invariants (docs/architecture.md, "Parts"): an insertion is live as of `t` iff no
retraction of its key has `insertion.time < retraction.time <= t`. Only keys and times of retractions are decoded, and
no whole row goes through an exchange. A shard without a key is a multiset: its rows are grouped and counted.

The state is read when the function is called; the parts when the DataFrame is used. Nothing is held back meanwhile:
for long reads take a lease (`PersistClient.open_leased_reader`).

A missing part, or one of another size than its manifest says, raises `CorruptArtifact` from the function. A page whose
checksum is wrong fails the action on the DataFrame with Spark's own error, which names the file. In the same way fails
a row of a multiset, or an err, whose diffs add up to less than 0 or to more than `MAX_COPIES`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.read import check_as_of, schema_of
from persist_core.location.blob import Blob
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, TIME, CollectionSchema
from persist_core.shard.batch import BatchManifest, HollowBatch, PartKind
from persist_core.shard.pieces import Piece, errs_between, oks_as_of, oks_between
from persist_spark.frame import ERR_COLUMNS, named, part_type
from persist_spark.read.damage import check_sizes, part_sizes, possible_counts
from persist_spark.read.parts import scan_pieces

# Retractions up to here are broadcast: about 100 MB of keys and times in each executor.
MAX_BROADCAST_RETRACTIONS = 2_000_000
Location = PersistLocation | OpenLocation


def snapshot(spark: SparkSession, location: Location, shard: str, as_of: int | None = None) -> DataFrame:
    """The oks as of `as_of` (ms; default: the newest time), one row per row, with the schema's columns.

    Raises `ShardNotFound`, and `OutsideFrontiers` unless `since <= as_of < upper`.
    """
    reading = _open(spark, location, shard, as_of)
    columns = [named(column.name) for column in reading.schema.columns]
    found = reading.pieces(lambda batch, manifest: oks_as_of(batch, manifest, reading.through))
    if not reading.schema.key:
        return _multiset(reading.frame(found), shard, reading.schema)
    insertions = reading.frame([piece for piece in found if piece.part.kind is not PartKind.RETRACTIONS])
    ends = [piece for piece in found if piece.part.kind is PartKind.RETRACTIONS]
    if not ends:
        return insertions.select(*columns)
    retracted = reading.frame(ends).select(
        *[named(name).alias(f"_persist_k{i}") for i, name in enumerate(reading.schema.key_names)],
        F.col(TIME).alias("_persist_retracted"),
    )
    ended = [named(name) == F.col(f"_persist_k{i}") for i, name in enumerate(reading.schema.key_names)]
    ended.append(F.col(TIME) < F.col("_persist_retracted"))
    hinted = F.broadcast(retracted) if reading.retractions <= MAX_BROADCAST_RETRACTIONS else retracted
    return insertions.join(hinted, functools.reduce(operator.and_, ended), "left_anti").select(*columns)


def errors(spark: SparkSession, location: Location, shard: str, as_of: int | None = None) -> DataFrame:
    """The errs as of `as_of`: key columns (null if undecodable), kind, message, key bytes, payload, insertion time.

    Raises as `snapshot` does.
    """
    reading = _open(spark, location, shard, as_of)
    identity = [*map(named, reading.schema.key_names), *map(F.col, (ERR_KIND, ERR_KEY, ERR_PAYLOAD))]
    inserted_at = F.when(F.col(DIFF) > 0, F.col(TIME))
    counted = (
        reading.frame(reading.errs())
        .groupBy(*identity)
        .agg(
            F.sum(DIFF).alias(DIFF),
            F.max_by(ERR_MESSAGE, inserted_at).alias(ERR_MESSAGE),
            F.max(inserted_at).alias(TIME),
        )
    )
    live = possible_counts(counted, shard, identity).where(F.col(DIFF) > 0)
    copies = live if reading.schema.key else _repeated(live)  # at most one err per slot of a key; a view may have more
    return copies.select(*map(named, reading.schema.key_names), *ERR_COLUMNS, TIME)


def error_updates(spark: SparkSession, location: Location, shard: str, as_of: int) -> DataFrame | None:
    """The errs' updates with `time <= as_of` as they were written, not summed; `None` if none exist.

    Columns: the err columns, time, diff. Raises as `snapshot` does.
    """
    reading = _open(spark, location, shard, as_of)
    pieces = reading.errs()
    return reading.frame(pieces).select(*ERR_COLUMNS, TIME, DIFF) if pieces else None


def changes(spark: SparkSession, location: Location, shard: str, after: int, through: int | None = None) -> DataFrame:
    """The oks' updates with `after < time <= through`, each once: the schema's columns, then time and diff.

    `snapshot(after)` plus these is `snapshot(through)`. Raises `ShardNotFound`, `InvalidInput` if `after` is later
    than `through`, and `OutsideFrontiers` unless `since <= after <= through < upper`.
    """
    reading = _open(spark, location, shard, through, after=after)
    found = reading.pieces(lambda batch, manifest: oks_between(batch, manifest, after, reading.through))
    return reading.frame(found).select(*[named(column.name) for column in reading.schema.columns], TIME, DIFF)


def error_changes(
    spark: SparkSession, location: Location, shard: str, after: int, through: int | None = None
) -> DataFrame:
    """The errs' updates with `after < time <= through`, as `changes` gives the oks'."""
    reading = _open(spark, location, shard, through, after=after)
    return reading.frame(reading.errs()).select(*map(named, reading.schema.key_names), *ERR_COLUMNS, TIME, DIFF)


@dataclass(frozen=True)
class _Reading:
    """One read: which batches, which times."""

    spark: SparkSession
    blob: Blob
    schema: CollectionSchema
    batches: Sequence[tuple[HollowBatch, BatchManifest]]
    after: int | None
    through: int

    @property
    def retractions(self) -> int:
        """Retractions in the batches read (some may be at other times than requested)."""
        return sum(manifest.counts.retractions for _, manifest in self.batches)

    def pieces(self, choose: Callable[[HollowBatch, BatchManifest], Iterable[Piece]]) -> list[Piece]:
        """What `choose` picks of every batch."""
        return [piece for batch, manifest in self.batches for piece in choose(batch, manifest)]

    def errs(self) -> list[Piece]:
        """The pieces that hold the errs' updates at the times requested."""
        after = -1 if self.after is None else self.after
        return self.pieces(lambda batch, manifest: errs_between(batch, manifest, after, self.through))

    def frame(self, pieces: Sequence[Piece]) -> DataFrame:
        """What these pieces take of their files, all part columns."""
        columns = part_type(self.schema)
        found = scan_pieces(self.spark, self.blob, pieces, columns)
        return _nothing(self.spark, columns) if found is None else found


def _open(
    spark: SparkSession, location: Location, shard: str, through: int | None, *, after: int | None = None
) -> _Reading:
    opened = location if isinstance(location, OpenLocation) else open_location(location)
    try:
        client = PersistClient(opened)
        state = client.state(shard)
        high = check_as_of(state, through)
        low = None if after is None else check_as_of(state, after)
        if low is not None and low > high:
            raise InvalidInput(f"changes of shard {shard} after {low} through {high}: expected after <= through")
        batches = [
            b for b in state.batches if b.lower <= high and (low is None or b.upper is None or b.upper > low + 1)
        ]
        manifests = client.open_reader(shard).manifests(batches)
        check_sizes(opened.blob, part_sizes(manifests))
    finally:
        if opened is not location:
            opened.close()
    return _Reading(spark, opened.blob, schema_of(state), list(zip(batches, manifests, strict=True)), low, high)


def _nothing(spark: SparkSession, frame: T.StructType) -> DataFrame:
    return spark.createDataFrame([], frame)


def _multiset(updates: DataFrame, shard: str, schema: CollectionSchema) -> DataFrame:
    """Rows of a shard without a key, each as often as its diffs say."""
    flat = [f"c{i}" for i in range(len(schema.columns))]
    renamed = updates.select(
        *[named(column.name).alias(name) for name, column in zip(flat, schema.columns, strict=True)], DIFF
    )
    row = [F.col(name).alias(column.name) for name, column in zip(flat, schema.columns, strict=True)]
    counted = possible_counts(renamed.groupBy(*flat).agg(F.sum(DIFF).alias(DIFF)), shard, row)
    return _repeated(counted.where(F.col(DIFF) > 0)).select(*row)


def _repeated(counted: DataFrame) -> DataFrame:
    """Each row as often as its diff says."""
    return counted.withColumn("_persist_copy", F.explode(F.sequence(F.lit(1).cast("bigint"), F.col(DIFF))))
