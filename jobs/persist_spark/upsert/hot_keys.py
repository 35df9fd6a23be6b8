"""Records that others of their slot and time beat, left out before the exchange: a hot key is one task after it.

    records ──some, by hash──> hot? ──the highest order of each hot slot and time──broadcast──> records without those
                                                                                                below it

Only the winner of a slot and time changes the slot; of the others only the number is reported. It is known beforehand,
so a retried task does not change it. All versions of other times stay: each of them is history.

Not left out: records of equal orders, because canonical bytes decide between them, and records that lack a value or
give one to such a record. If orders may not be comparable (`persist_spark.upsert.eras`), a record is left out only if
it is beaten by one of its server that is later by both clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.order import SEEN_MS, SERVER, SOURCE_MS
from persist_core.contents.batch import BatchManifest
from persist_core.contents.key_range import Scalar
from persist_core.schema import INHERITED, TIME, CollectionSchema
from persist_spark.frame import DELETE, OP, ORDER, SCALARS, UPSERT, quoted, slot_names
from persist_spark.upsert.eras import FIELDS, Eras

LARGE_INPUT_BYTES = 64 << 20  # in a smaller batch, to find hot keys costs more than a long task
SHARE = 32  # a hot slot has at least this part of the batch's records
_BUCKETS = 1 << 14
LOOKED_AT = 16  # first, one of so many records: the others are read, but neither checked nor decoded
_REPEATS = 8  # the share of duplicates in a batch from which on the next one is looked at, though that costs a read
_BEST, _COUNT, _BUCKET, _KEY = (f"_persist_{name}" for name in ("best", "count", "bucket", "key"))


def repeats(manifests: Sequence[BatchManifest]) -> bool:
    """True if the newest batch had many records of equal slots and times: batches of a shard are mostly alike."""
    raw = [manifest.stats for manifest in manifests if manifest.run is None and manifest.stats]
    return bool(raw) and _REPEATS * raw[-1].get("duplicates", 0) >= max(1, raw[-1].get("records_read", 0))


@dataclass(frozen=True)
class Sample:
    """Records of a batch by hashes of their slots and times. `hashed`: all that only their orders decide between, with
    the hash of `names`. `counts`: how many each hash has, judged by some of them. `keys`: the first key column of one
    record of each hash, with their number."""

    hashed: DataFrame
    names: Sequence[str]
    counts: Mapping[int, int]
    keys: Mapping[Scalar | None, int]
    eras: Eras | None
    schema: CollectionSchema

    @property
    def order(self) -> str:
        """SQL: the order of a record of the feed, with its era."""
        return ORDER if self.eras is None else self.eras.placed(ORDER, self.schema.position, is_stored=False)


@dataclass(frozen=True)
class Beaten:
    """`groups`: slots (`_persist_slot0`..) and times, with the highest order of each. `count`: all below these."""

    groups: DataFrame
    count: int
    sample: Sample

    def left_out(self, records: DataFrame) -> DataFrame:
        same = [f"{name} <=> _persist_slot{place}" for place, name in enumerate(self.sample.names)]
        is_beaten = " AND ".join([*same, f"{self.sample.order} < {_BEST}", _compared(records)])
        return records.join(F.broadcast(self.groups), F.expr(is_beaten), "left_anti")


def take_sample(records: DataFrame, schema: CollectionSchema, eras: Eras | None, *, with_keys: bool = False) -> Sample:
    """Run a job that reads the columns of slots, operations, times and orders. Without keys, all are `None`; with
    them, the type of the first key column is in `SCALARS`."""
    names = [*map(quoted, slot_names(schema)), TIME]
    if eras is not None:
        names.append(f"{ORDER}.{FIELDS[SERVER]}")
    compared = records.where(_compared(records))
    hashed = compared.selectExpr("*", f"pmod(xxhash64({', '.join(names)}), {_BUCKETS}) AS {_BUCKET}")
    # A key per hash makes the aggregate sort.
    as_text, scalar = SCALARS[schema.key[0].type] if with_keys else ("CAST(NULL AS STRING)", str)
    key = as_text.format(f"first({quoted(schema.key[0].name)})")
    some = hashed.where(f"pmod(xxhash64({ORDER}), {LOOKED_AT}) = 0").groupBy(_BUCKET)
    found = some.agg(F.expr(f"count(1) AS {_COUNT}"), F.expr(f"{key} AS {_KEY}")).collect()
    counts, keys = {row[_BUCKET]: LOOKED_AT * row[_COUNT] for row in found}, Counter[Scalar | None]()
    for row in found:
        keys[None if row[_KEY] is None else scalar(row[_KEY])] += row[_COUNT]
    return Sample(hashed, names, counts, keys, eras, schema)


def find_beaten(sample: Sample) -> Beaten | None:
    """The records that hot keys have too many; `None`: none. Runs two jobs if keys seem to be hot.

    `groups` is cached: the caller ends that.
    """
    least = sum(sample.counts.values()) // SHARE
    hot = [f"{bucket}" for bucket, count in sample.counts.items() if count > least]
    if not hot:
        return None
    found = sample.hashed.where(f"{_BUCKET} IN ({', '.join(hot)})")
    measured = [f"max({sample.order}) AS {_BEST}", f"count(1) AS {_COUNT}"]
    is_hot = f"{_COUNT} > {least // 2}"
    clocks = [] if sample.eras is None else [FIELDS[name] for name in (SOURCE_MS, SEEN_MS)]
    measured += [f"max({ORDER}.{clock}) AS {clock}" for clock in clocks]
    is_hot += "".join(f" AND {clock} <=> {_BEST}.{clock}" for clock in clocks)
    slots = [F.expr(name).alias(f"_persist_slot{place}") for place, name in enumerate(sample.names)]
    groups = found.groupBy(*slots).agg(*map(F.expr, measured)).where(is_hot).drop(*clocks).persist()
    count = groups.selectExpr(f"coalesce(sum({_COUNT} - 1), 0) AS count").collect()[0]["count"]
    if not count:
        groups.unpersist()
        return None
    return Beaten(groups, count, sample)


def _compared(records: DataFrame) -> str:
    """SQL: nothing but the order decides whether the record counts."""
    is_whole = f" AND {INHERITED} IS NULL" if INHERITED in records.columns else ""
    return f"{OP} IN ('{UPSERT}', '{DELETE}') AND {ORDER} IS NOT NULL{is_whole}"
