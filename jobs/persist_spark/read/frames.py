"""Read a shard from Spark: `snapshot`, `errors`, `changes`, `error_changes` as DataFrames.

    state -> batches that overlap the times requested -> parts -> DataFrame

A keyed shard is read by its invariants (docs/architecture.md, "Parts"): an insertion is live as of `t` iff no
retraction of its key has `insertion.time < retraction.time <= t`. Only keys and times of retractions are decoded, and
no whole row goes through an exchange. If nothing lies above a run, there is no join. Else the newest retraction of each
key is broadcast. A shard without a key is a multiset: its rows are grouped and counted.

Fixed costs are most of a small read, so this process reads what is small by itself: retractions
(`MAX_LOCAL_RETRACTION_BYTES`), or all files of a small shard (`MAX_LOCAL_BYTES`), whose rows it hands to Spark.

The state is read when the function is called; most parts when the DataFrame is used. Nothing is held back meanwhile:
for long reads take a lease (`PersistClient.open_leased_reader`).

A missing part, or one of another size than its manifest says, raises `CorruptArtifact` from the function, or
`ReadTooSlow` if the shard was merged meanwhile. Later, the action on the DataFrame fails with Spark's own error at such
a part, at a page whose checksum is wrong, at a row of a multiset, or at an err, whose diffs add up to less than 0 or to
more than `MAX_COPIES`. Around an action, `named_failures` raises the error that says what happened and what to do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.batch import BatchManifest, HollowBatch, PartKind
from persist_core.contents.parts import updates_schema
from persist_core.contents.pieces import Piece, Take, errs_between, oks_as_of, oks_between
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.handles.load import read_part
from persist_core.handles.overtaken import check_generation, named_if_slow
from persist_core.handles.read import check_as_of, in_schema, schema_of
from persist_core.handles.side_by_side import side_by_side
from persist_core.handles.store import FETCH_THREADS
from persist_core.location.open import OpenLocation, open_location
from persist_core.location.settings import PersistLocation
from persist_core.schema import DIFF, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME, CollectionSchema
from persist_core.shard.state import ShardState
from persist_spark.compat import READS_ARROW
from persist_spark.frame import ERR_COLUMNS, fits, named, part_type, struct_of, text_bytes, user_fields
from persist_spark.read.damage import check_sizes, named_damage, part_sizes, possible_counts
from persist_spark.read.parts import scan_pieces

MAX_LOCAL_BYTES = 4 << 20  # of files that this process reads for a DataFrame: mostly some 40 MB of rows
MAX_LOCAL_ROWS = 200_000  # in them: texts that repeat take next to nothing in a file
MAX_LOCAL_RETRACTION_BYTES = 1 << 20  # of retractions; above it a scan by Spark takes less time
MANIFESTS_KEPT = 256  # in memory, by digest, from one read to the next: some tens of kB each
Location = PersistLocation | OpenLocation

_RETRACTED = "_persist_retracted"
_manifests: OrderedDict[str, BatchManifest] = OrderedDict()


def snapshot(
    spark: SparkSession,
    location: Location,
    shard: str,
    as_of: int | None = None,
    *,
    schema: int | None = None,
    more: Sequence[T.StructField] = (),
) -> DataFrame:
    """The oks as of `as_of` (ms; default: the newest time), one row per row, with the schema's columns.

    `schema`: the version to show, as in `ReadHandle.snapshot`. `more`: columns of the parts of a keyed shard, after
    these. Raises `ShardNotFound`, and `OutsideFrontiers` unless `since <= as_of < upper`.
    """
    with _open(spark, location, shard, as_of, schema=schema) as reading:
        found = reading.pieces(lambda batch, manifest: oks_as_of(batch, manifest, reading.through))
        if found and not more and _is_small(found, MAX_LOCAL_BYTES):
            rows = reading.client.open_reader(shard).snapshot_of(reading.state, reading.through)
            return spark.createDataFrame(rows, T.StructType(user_fields(reading.schema)))
        if not reading.schema.key:
            return _multiset(reading.frame(found), shard, reading.schema)
        insertions = [piece for piece in found if piece.part.kind is not PartKind.RETRACTIONS]
        ends = [piece for piece in found if piece.part.kind is PartKind.RETRACTIONS]
        columns = T.StructType([*user_fields(reading.schema), *more])
        if not ends and all(piece.take is Take.ROWS and piece.through is None for piece in insertions):
            return reading.frame(insertions, columns)
        timed = reading.frame(insertions, _with_time(columns))
        if ends:
            names = enumerate(reading.schema.key_names)
            keys = [named(name) == F.col(f"_persist_k{place}") for place, name in names]
            timed = timed.join(reading.retracted(ends), [*keys, F.col(TIME) < F.col(_RETRACTED)], "left_anti")
        return timed.drop(TIME)


@contextmanager
def named_failures(location: Location) -> Iterator[None]:
    """Around an action on DataFrames of this module: raise an error that says what happened and what to do.

    Raises `ReadTooSlow` if GC has deleted a file meanwhile, `CorruptArtifact` for a damaged or missing one, and
    `InvariantViolation` for a count that is not possible. Other errors of Spark stay what they are.
    """
    with _opened(location) as opened, named_damage(opened.blob, PersistClient(opened)):
        yield


def errors(
    spark: SparkSession, location: Location, shard: str, as_of: int | None = None, *, schema: int | None = None
) -> DataFrame:
    """The errs as of `as_of`: key columns (null if undecodable), kind, message, key bytes, payload, insertion time.

    `schema` and errors as for `snapshot`.
    """
    with _open(spark, location, shard, as_of, schema=schema) as reading:
        updates = reading.frame(reading.errs())
    identity = [*map(named, reading.schema.key_names), *map(F.col, (ERR_KIND, ERR_KEY, ERR_PAYLOAD))]
    inserted_at = F.when(F.col(DIFF) > 0, F.col(TIME))
    counted = updates.groupBy(*identity).agg(
        F.sum(DIFF).alias(DIFF),
        *[F.max_by(name, inserted_at).alias(name) for name in (ERR_MESSAGE, ERR_POSITION)],
        F.max(inserted_at).alias(TIME),
    )
    live = possible_counts(counted, shard, identity).where(F.col(DIFF) > 0)
    copies = live if reading.schema.key else _repeated(live)  # at most one err per slot of a key; a view may have more
    return copies.select(*map(named, reading.schema.key_names), *ERR_COLUMNS, TIME)


def error_updates(spark: SparkSession, location: Location, shard: str, as_of: int) -> DataFrame | None:
    """The errs' updates with `time <= as_of` as they were written, not summed; `None` if none exist.

    Columns: the err columns, time, diff. Raises as `snapshot` does.
    """
    with _open(spark, location, shard, as_of) as reading:
        pieces = reading.errs()
        return reading.frame(pieces).select(*ERR_COLUMNS, TIME, DIFF) if pieces else None


def changes(
    spark: SparkSession,
    location: Location,
    shard: str,
    after: int,
    through: int | None = None,
    *,
    schema: int | None = None,
    generation: int | None = None,
) -> DataFrame:
    """The oks' updates with `after < time <= through`, each once: the schema's columns, then time and diff.

    `snapshot(after)` plus these is `snapshot(through)`. `schema` as for `snapshot`, `generation` as for
    `PersistClient.open_reader`. Raises `ShardNotFound`, `InvalidInput` if `after` is later than `through`,
    `OutsideFrontiers` unless `since <= after <= through < upper`, and `GenerationChanged`.
    """
    with _open(spark, location, shard, through, after=after, schema=schema, generation=generation) as reading:
        found = reading.pieces(lambda batch, manifest: oks_between(batch, manifest, after, reading.through))
        updates = reading.frame(found)
    return updates.select(*[named(column.name) for column in reading.schema.columns], TIME, DIFF)


def error_changes(
    spark: SparkSession,
    location: Location,
    shard: str,
    after: int,
    through: int | None = None,
    *,
    schema: int | None = None,
    generation: int | None = None,
) -> DataFrame:
    """The errs' updates with `after < time <= through`, as `changes` gives the oks'."""
    with _open(spark, location, shard, through, after=after, schema=schema, generation=generation) as reading:
        updates = reading.frame(reading.errs())
    return updates.select(*map(named, reading.schema.key_names), *ERR_COLUMNS, TIME, DIFF)


@dataclass(frozen=True)
class _Reading:
    spark: SparkSession
    client: PersistClient
    state: ShardState
    schema: CollectionSchema
    batches: Sequence[tuple[HollowBatch, BatchManifest]]
    after: int | None
    through: int

    @property
    def retractions(self) -> int:
        """Retractions in the batches read (some may be at other times than requested)."""
        return sum(manifest.counts.retractions for _, manifest in self.batches)

    def pieces(self, choose: Callable[[HollowBatch, BatchManifest], Iterable[Piece]]) -> list[Piece]:
        return [piece for batch, manifest in self.batches for piece in choose(batch, manifest)]

    def errs(self) -> list[Piece]:
        """The pieces that hold the errs' updates at the times requested."""
        after = -1 if self.after is None else self.after
        return self.pieces(lambda batch, manifest: errs_between(batch, manifest, after, self.through))

    def frame(self, pieces: Sequence[Piece], columns: T.StructType | None = None) -> DataFrame:
        """The pieces' rows of their files: `columns`, or all part columns."""
        wanted = part_type(self.schema) if columns is None else columns
        found = scan_pieces(self.spark, self.client.blob, pieces, wanted)
        return self.spark.createDataFrame([], wanted) if found is None else found

    def retracted(self, ends: Sequence[Piece]) -> DataFrame:
        """The keys (`_persist_k0` ...) and times of these retractions, to be broadcast unless they are too many.

        Files of `MAX_LOCAL_RETRACTION_BYTES` in all are read here, with their digests verified, and only the newest
        retraction of each key is left.
        """
        fields = user_fields(self.schema)[: len(self.schema.key)]
        renamed = [f"_persist_k{place}" for place in range(len(fields))] + [_RETRACTED]
        if _is_small(ends, MAX_LOCAL_RETRACTION_BYTES):
            newest = self._newest(ends).rename_columns(renamed)
            types = [*(field.dataType for field in fields), T.LongType()]
            local = struct_of(dict(zip(renamed, types, strict=True)))
            return self.spark.createDataFrame(newest, local).hint("broadcast")
        found = self.frame(ends, _with_time(T.StructType(fields))).toDF(*renamed)
        return found.hint("broadcast") if self._fits_a_broadcast(found) else found

    def _fits_a_broadcast(self, ends: DataFrame) -> bool:
        """By their number, which manifests say; if that is small, by the bytes of their texts, which files say."""
        columns = ends.schema.fields
        texts = text_bytes(columns)
        if texts is None or not fits(self.retractions, columns, 0):
            return fits(self.retractions, columns, 0)
        with named_damage(self.client.blob, self.client):
            plain = texts.replace("`", "")  # which are patterns in some sessions, and our names need none
            found = ends.selectExpr(f"sum({plain}) AS texts").collect()
        return fits(self.retractions, columns, found[0]["texts"] or 0)

    def _newest(self, ends: Sequence[Piece]) -> pa.Table:
        keys = list(self.schema.key_names)
        wanted = pa.schema([field.with_nullable(True) for field in updates_schema(self.schema) if field.name in
                            (*keys, TIME)])  # fmt: skip
        blob = self.client.blob
        found = side_by_side(lambda piece: piece.of(read_part(blob, piece.part, wanted)), ends, threads=FETCH_THREADS)
        return pa.concat_tables(found).group_by(keys).aggregate([(TIME, "max")])


@contextmanager
def _open(
    spark: SparkSession,
    location: Location,
    shard: str,
    through: int | None,
    *,
    after: int | None = None,
    schema: int | None = None,
    generation: int | None = None,
) -> Iterator[_Reading]:
    with _opened(location) as opened:
        client = PersistClient(opened)
        state = in_schema(client.state(shard), schema)
        high = check_as_of(state, through)
        low = None if after is None else check_as_of(state, after)
        if low is not None:
            check_generation(state, low, generation)
        if low is not None and low > high:
            raise InvalidInput(f"changes of shard {shard} after {low} through {high}: expected after <= through")
        batches = [
            b for b in state.batches if b.lower <= high and (low is None or b.upper is None or b.upper > low + 1)
        ]
        with named_if_slow(client.machine, shard, batches):
            manifests = _manifests_of(client, batches)
            check_sizes(opened.blob, part_sizes(manifests))
            pairs = list(zip(batches, manifests, strict=True))
            with named_damage(opened.blob, client):
                yield _Reading(spark, client, state, schema_of(state), pairs, low, high)


def _opened(location: Location) -> AbstractContextManager[OpenLocation]:
    """The location, which is closed at the end unless the caller had opened it."""
    return nullcontext(location) if isinstance(location, OpenLocation) else open_location(location)


def _manifests_of(client: PersistClient, batches: Sequence[HollowBatch]) -> list[BatchManifest]:
    """Their manifests. No manifest is read twice: a digest always names the same bytes."""
    known = {batch.manifest_sha256: _manifests.get(batch.manifest_sha256) for batch in batches}
    missing = [batch for batch in batches if known[batch.manifest_sha256] is None]
    found = dict(zip([b.manifest_sha256 for b in missing], client.manifests(missing), strict=True))
    manifests = [known[batch.manifest_sha256] or found[batch.manifest_sha256] for batch in batches]
    for batch, manifest in zip(batches, manifests, strict=True):
        _manifests.pop(batch.manifest_sha256, None)
        _manifests[batch.manifest_sha256] = manifest
    while len(_manifests) > MANIFESTS_KEPT:
        _manifests.popitem(last=False)
    return manifests


def _is_small(pieces: Sequence[Piece], max_bytes: int) -> bool:
    rows, size_bytes = sum(piece.part.rows or 0 for piece in pieces), sum(piece.part.size_bytes for piece in pieces)
    return READS_ARROW and rows <= MAX_LOCAL_ROWS and size_bytes <= max_bytes


def _with_time(columns: T.StructType) -> T.StructType:
    return T.StructType([*columns.fields, T.StructField(TIME, T.LongType())])


def _multiset(updates: DataFrame, shard: str, schema: CollectionSchema) -> DataFrame:
    flat = [f"c{i}" for i in range(len(schema.columns))]
    renamed = updates.select(
        *[named(column.name).alias(name) for name, column in zip(flat, schema.columns, strict=True)], DIFF
    )
    row = [F.col(name).alias(column.name) for name, column in zip(flat, schema.columns, strict=True)]
    counted = possible_counts(renamed.groupBy(*flat).agg(F.sum(DIFF).alias(DIFF)), shard, row)
    return _repeated(counted.where(F.col(DIFF) > 0)).select(*row)


def _repeated(counted: DataFrame) -> DataFrame:
    return counted.withColumn("_persist_copy", F.explode(F.sequence(F.lit(1).cast("bigint"), F.col(DIFF))))
