"""Records of erased keys: a write makes control records of what came before the erasure.

    records ──digest of the key──> on the shard's list? ──order not above or time before──> op `s`, without any value

So nothing of such a record is stored, whether a feed delivers it again, a replay, or a restored progress. A record
without a key column (it could not be decoded, or the record has no order) is not recognized.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.batch import BatchDescription, last_time
from persist_core.contents.erased import ErasedKey, ErasedList
from persist_core.schema import TIME, CollectionSchema
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, SKIP, key_text, named, with_texts
from persist_spark.order_memory import values_of
from persist_spark.upsert.eras import Eras, incomparable

_DIGEST, _BEFORE, _UP_TO = "_persist_digest", "_persist_before", "_persist_up_to"
_OWN, _RIVAL = "_persist_own", "_persist_rival"
_BLOCK = 64  # bytes of SHA-256's block, for HMAC (RFC 2104)


def without_erased(
    spark: SparkSession,
    records: DataFrame,
    listed: ErasedList,
    schema: CollectionSchema,
    description: BatchDescription,
    *,
    has_times: bool,
    eras: Eras | None,
) -> DataFrame:
    """The records frame; records of erased keys from before the erasure are control records without a key.

    In a replay, a record whose own time is an error may be from before; `has_times`: records have times of their own.
    With `eras`, a record that cannot be compared with what was erased becomes two tombstones in a slot without the key,
    of its order and of that one: so the batch ends with the question, and nothing of the record is said or stored.
    """
    known = tuple(listed.known().values())
    if not known:
        return records
    erased = _frame(spark, records, known, schema)
    is_replay = has_times and "~" in description.shard
    time = F.coalesce(F.col(TIME), F.lit(-1 if is_replay else last_time(description.upper)))
    gone = F.coalesce(time < F.col(_BEFORE), F.lit(False))
    rival = F.lit(None)
    own, one = (each if eras is None else eras.placed(each, schema.position) for each in (ORDER, "one"))
    if schema.order:
        erased = erased.withColumn(_UP_TO, F.expr(f"transform({_UP_TO}, one -> {one})"))
        names = [f"by{place}" for place in range(len(schema.order))]  # the same record in another file is not newer
        mine, theirs = (", ".join(f"{each}.{name}" for name in names) for each in (_OWN, "one"))
        if eras is not None:
            rival = F.when(~gone, F.expr(f"get(filter({_UP_TO}, one -> {incomparable(_OWN, 'one')}), 0)"))
        is_over = F.expr(f"exists({_UP_TO}, one -> struct({mine}) <= struct({theirs}))")
        gone = gone | F.coalesce(is_over, F.lit(False))
    digest = _hmac(key_text(schema), bytes.fromhex(listed.secret))
    joined = records.withColumn(_OWN, F.expr(own)).join(F.broadcast(erased), digest == F.col(_DIGEST), "left")
    kept = {OP: F.when(gone, F.lit(SKIP)).otherwise(F.col(OP)), ORDER: F.col(ORDER)}
    if eras is not None and schema.order:
        asks = F.col(_RIVAL).isNotNull()
        joined, gone = joined.withColumn(_RIVAL, rival), gone | asks
        slot = F.concat(F.lit("erased "), F.col(_DIGEST)).cast("binary")
        orders = F.when(asks, F.array(ORDER, _RIVAL)).otherwise(F.array(ORDER))
        kept = {
            OP: F.when(asks, F.lit(DELETE)).otherwise(kept[OP]),
            ORDER: F.explode(orders),
            TIME: F.when(~gone | asks, F.col(TIME)),
            BAD_KEY: F.when(asks, slot).when(~gone, F.col(BAD_KEY)),
        }
    return joined.select(
        *[
            kept.get(field.name, F.when(~gone, named(field.name))).alias(field.name, metadata=field.metadata)
            for field in records.schema.fields
        ]
    )


def _frame(spark: SparkSession, records: DataFrame, known: Sequence[ErasedKey], schema: CollectionSchema) -> DataFrame:
    """The erased keys, with what is known of them, in the types of the records frame."""
    order = records.schema[ORDER].dataType
    assert isinstance(order, T.StructType)
    fields = [
        T.StructField(_DIGEST, T.StringType()),
        T.StructField(_BEFORE, T.LongType()),
        *([T.StructField(_UP_TO, T.ArrayType(with_texts(order)))] if schema.order else []),
    ]
    rows = [
        (each.digest, each.time, *([[values_of(one, schema) for one in each.orders]] if schema.order else []))
        for each in known
    ]
    erased = spark.createDataFrame(rows, T.StructType(fields))
    if schema.order:
        erased = erased.withColumn(_UP_TO, F.col(_UP_TO).cast(T.ArrayType(order).simpleString()))
    return erased


def _hmac(message: SparkColumn, secret: bytes) -> SparkColumn:
    inner, outer = (bytes(byte ^ pad for byte in secret.ljust(_BLOCK, b"\0")) for pad in (0x36, 0x5C))
    return F.sha2(F.concat(F.lit(outer), F.unhex(F.sha2(F.concat(F.lit(inner), message), 256))), 256)
