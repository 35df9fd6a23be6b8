"""Records of erased keys: a write makes control records of what came before the erasure.

    records ──digest of the key──> on the shard's list? ──order not above or time before──> op `s`, without any value
                                                       '──not to be compared (`eras`)──> the question which is older

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
from persist_core.errors import UnclearOrder
from persist_core.schema import OP, ORDER, TIME, CollectionSchema
from persist_spark.frame import SKIP, key_text, named, with_texts
from persist_spark.order_memory import values_of
from persist_spark.read.damage import raised
from persist_spark.upsert.eras import FIELDS, Eras, incomparable

_DIGEST, _BEFORE, _UP_TO, _OWN = "_persist_digest", "_persist_before", "_persist_up_to", "_persist_own"
_BLOCK = 64  # bytes of SHA-256's block, for HMAC (RFC 2104)


def without_erased(
    spark: SparkSession,
    records: DataFrame,
    listed: ErasedList,
    schema: CollectionSchema,
    description: BatchDescription,
    *,
    has_times: bool,
    eras: Eras | None = None,
) -> DataFrame:
    """The records frame; records of erased keys from before the erasure are control records without a key.

    In a replay, a record whose own time is an error may be from before; `has_times`: records have times of their own.
    The action on it raises `UnclearOrder` at a record that `eras` cannot compare with the erased ones of its key.
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
    digest = _hmac(key_text(schema), bytes.fromhex(listed.secret))
    joined = records.join(F.broadcast(erased), digest == F.col(_DIGEST), "left")
    if schema.order:
        names = [f"by{place}" for place in range(len(schema.order))]  # the same record in another file is not newer
        placed = {_OWN: ORDER, _UP_TO: _UP_TO}
        if eras:
            joined = joined.withColumns(
                {name: F.expr(eras.placed(was, schema.position)) for name, was in placed.items()}
            )
        else:
            joined = joined.withColumn(_OWN, F.col(ORDER))
        own, highest = (F.struct(*[F.col(each).getField(name) for name in names]) for each in placed)
        is_below = own <= highest
        if eras:
            is_below = F.when(F.expr(incomparable(_OWN, _UP_TO)), _asked(description.shard)).otherwise(is_below)
        is_over = is_over | F.when(F.col(_UP_TO).isNotNull(), is_below)  # null, without one of both
    gone = F.col(_DIGEST).isNotNull() & F.coalesce(is_over, F.lit(False))
    kept = {OP: F.when(gone, F.lit(SKIP)).otherwise(F.col(OP)), ORDER: F.col(ORDER)}
    return joined.select(
        *[
            kept.get(field.name, F.when(~gone, named(field.name))).alias(field.name, metadata=field.metadata)
            for field in records.schema.fields
        ]
    )


def _asked(shard: str) -> SparkColumn:
    """The question, in place of a boolean. It names no key."""
    servers = (F.coalesce(F.col(each).getField(FIELDS["server"]), F.lit("unknown")) for each in (_OWN, _UP_TO))
    text = (
        f"{shard}: it is not known whether a record of an erased key is older than the erasure: the numbers of the log"
        " have started again. The record is of server %s, what was erased is of server %s. Nothing has been committed."
        " In the collection file, write `order: {servers: [...]}` with the servers in the order in which they wrote the"
        " log, or `order: {restarts: [...]}` with the times of its restarts"
    )
    message = F.format_string(text, *servers)
    return raised(UnclearOrder, message).cast("boolean")


def _hmac(message: SparkColumn, secret: bytes) -> SparkColumn:
    """HMAC-SHA256 as hex digits, of built-in functions."""
    inner, outer = (bytes(byte ^ pad for byte in secret.ljust(_BLOCK, b"\0")) for pad in (0x36, 0x5C))
    return F.sha2(F.concat(F.lit(outer), F.unhex(F.sha2(F.concat(F.lit(inner), message), 256))), 256)
