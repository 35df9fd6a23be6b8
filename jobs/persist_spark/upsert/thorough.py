"""Steps of the thorough plan alone: break ties of equal orders, and expand truncates."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_spark.frame import canonical_json
from persist_spark.upsert import inherited, sequence
from persist_spark.upsert.arguments import Arguments
from persist_spark.upsert.eras import incomparable


def with_canonical(chain: DataFrame, arguments: Arguments) -> DataFrame:
    """Add what decides between records of one order: the greater bytes, a tombstone being the least."""
    cells = [F.col("value").getField(name) for name in arguments.values]
    ok = canonical_json(arguments.schema.values, cells)
    value = F.when(F.col("err").isNull(), ok).otherwise(F.col("err").getField("payload"))
    if arguments.inherits:
        sent = inherited.sent_json(arguments.schema, cells, "inherited")
        value = F.when(F.col("inherited").isNotNull(), sent).otherwise(value)
    return chain.withColumn("canonical", F.when(F.expr("op = ascii('u')"), value))


def with_truncates(chain: DataFrame, arguments: Arguments) -> DataFrame:
    """Add each truncate as a tombstone for every slot that holds a value just before it.

    Of several truncates at one time the last one does all that the others do, so only it is expanded.
    """
    is_sequence = arguments.seen is not None
    compared = ["ord", "own_time", "truncated_by"] if is_sequence else ["own_time", "ord"]
    newest = F.expr(f"max(struct({', '.join(compared)})) AS newest")
    truncates = chain.where("is_due AND op = ascii('t')").groupBy("time").agg(newest)
    is_value = f"op NOT IN (ascii('t'), ascii('s')) AND NOT {sequence.IS_UNORDERED}"
    has_values = f"{is_value} AND coalesce(own_time, diff) IS NOT NULL"
    slots = chain.where(has_values).select(*arguments.slot).distinct()
    given = {
        **{name: f"newest.{name}" for name in compared},
        **dict.fromkeys(("diff", "value", "err", "inherited", "marks", "entry"), "NULL"),
        **dict.fromkeys(("waits", "is_late", "stashed", "is_beyond", "is_partial"), "false"),
        **{"is_due": "true", "expanded": "true", "op": "ascii('d')"},
    }
    cells = [f"{given.get(name, name)} AS {name}" for name in arguments.columns]
    both = with_canonical(chain.union(slots.crossJoin(F.broadcast(truncates)).selectExpr(*cells)), arguments)
    if is_sequence:
        return sequence.expanded(both, arguments)
    kept = f"lag(op = ascii('u') AND time >= 0) {arguments.by_rank}"
    if arguments.eras:
        after = f"lead({{}}) {arguments.by_rank}".format
        kept = f"coalesce({kept}, false) OR (own_time = {after('own_time')} AND {incomparable('ord', after('ord'))})"
    return both.selectExpr("*", f"coalesce({kept}, false) AS kept").where("NOT expanded OR kept").drop("kept")
