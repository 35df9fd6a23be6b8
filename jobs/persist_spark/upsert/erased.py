"""Records of erased keys: a write makes control records of what came before the erasure.

    records ──digest of the key──> on the shard's list? ──order not above or time before──> op `s`, without any value

So nothing of such a record is stored, whether a feed delivers it again, a replay, or a restored progress. A record
without a key column (it could not be decoded, or the record has no order) is not recognized.
"""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from persist_core.contents.batch import BatchDescription, last_time
from persist_core.contents.erased import ErasedList
from persist_core.schema import OP, ORDER, TIME, CollectionSchema
from persist_spark.frame import SKIP, key_text, named, with_texts
from persist_spark.order_memory import values_of

_DIGEST, _BEFORE, _UP_TO = "_persist_digest", "_persist_before", "_persist_up_to"
_BLOCK = 64  # bytes of SHA-256's block, for HMAC (RFC 2104)


def without_erased(
    spark: SparkSession,
    records: DataFrame,
    listed: ErasedList,
    schema: CollectionSchema,
    description: BatchDescription,
    *,
    has_times: bool,
) -> DataFrame:
    """The records frame; records of erased keys from before the erasure are control records without a key.

    In a replay, a record whose own time is an error may be from before; `has_times`: records have times of their own.
    """
    known = tuple(listed.known().values())
    if not known:
        return records
    order = records.schema[ORDER].dataType
    assert isinstance(order, T.StructType)
    fields = [
        T.StructField(_DIGEST, T.StringType()),
        T.StructField(_BEFORE, T.LongType()),
        *([T.StructField(_UP_TO, with_texts(order))] if schema.order else []),
    ]
    rows = [
        (each.digest, each.time, *([each.order and values_of(each.order, schema)] if schema.order else []))
        for each in known
    ]
    erased = spark.createDataFrame(rows, T.StructType(fields))
    if schema.order:
        erased = erased.withColumn(_UP_TO, F.col(_UP_TO).cast(order.simpleString()))
    is_replay = has_times and "~" in description.shard
    time = F.coalesce(F.col(TIME), F.lit(-1 if is_replay else last_time(description.upper)))
    is_over = time < F.col(_BEFORE)
    if schema.order:
        names = [f"by{place}" for place in range(len(schema.order))]  # the same record in another file is not newer
        own, highest = (F.struct(*[F.col(each).getField(name) for name in names]) for each in (ORDER, _UP_TO))
        is_over = is_over | F.when(F.col(_UP_TO).isNotNull(), own <= highest)  # null, without one of both
    gone = F.col(_DIGEST).isNotNull() & F.coalesce(is_over, F.lit(False))
    digest = _hmac(key_text(schema), bytes.fromhex(listed.secret))
    joined = records.join(F.broadcast(erased), digest == F.col(_DIGEST), "left")
    kept = {OP: F.when(gone, F.lit(SKIP)).otherwise(F.col(OP)), ORDER: F.col(ORDER)}
    return joined.select(
        *[
            kept.get(field.name, F.when(~gone, named(field.name))).alias(field.name, metadata=field.metadata)
            for field in records.schema.fields
        ]
    )


def _hmac(message: SparkColumn, secret: bytes) -> SparkColumn:
    """HMAC-SHA256 as hex digits, of built-in functions."""
    inner, outer = (bytes(byte ^ pad for byte in secret.ljust(_BLOCK, b"\0")) for pad in (0x36, 0x5C))
    return F.sha2(F.concat(F.lit(outer), F.unhex(F.sha2(F.concat(F.lit(inner), message), 256))), 256)
