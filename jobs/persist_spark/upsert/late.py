"""Records whose times lie before their batch, as errs: for collections with `time: {late: error}`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.schema import (
    ERR_KEY,
    ERR_KIND,
    ERR_MESSAGE,
    INHERITED,
    LATE_TIME,
    TIME,
    CollectionSchema,
)
from persist_spark.frame import BAD_KEY, OP, SKIP, TRUNCATE, UPSERT, canonical_key, named, shown_time


def with_late_errs(records: DataFrame, schema: CollectionSchema, in_time_from: str) -> DataFrame:
    """Make each record before the time in column `in_time_from` an err of its slot.

    Decoders give these collections the position and the payload of good records too.
    """
    is_good = F.col(ERR_KIND).isNull() & ~F.col(OP).isin(TRUNCATE, SKIP)
    own_time, bound = shown_time(TIME), shown_time(in_time_from)
    refused = F.coalesce((F.col(TIME) < F.col(in_time_from)) & is_good, F.lit(False))
    err = {
        ERR_KIND: F.lit(LATE_TIME),
        ERR_MESSAGE: F.expr(f"concat('time ', {own_time}, ' lies before ', {bound}, ', which is final')"),
        ERR_KEY: F.coalesce(F.col(BAD_KEY), canonical_key(schema.key)),
    }
    names = [column.name for column in schema.values]
    if schema.inherits:
        names.append(INHERITED)
    changed = {name: F.when(refused, value).otherwise(F.col(name)) for name, value in err.items()}
    gone = {name: F.when(~refused, named(name)) for name in names}
    return records.withColumns({**changed, **gone, OP: F.when(refused, F.lit(UPSERT)).otherwise(F.col(OP))})
