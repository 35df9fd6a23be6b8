"""What only the thorough plan of an upsert does: break ties of equal orders, and expand truncates."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.schema import (
    ERR_PAYLOAD,
    TIME,
)
from persist_spark.frame import (
    DELETE,
    OP,
    ORDER,
    SKIP,
    TRUNCATE,
    UPSERT,
    canonical_json,
)
from persist_spark.upsert.counts import (
    AT,
    COUNTED,
    ERR,
    EXPANDED,
    FINAL,
    FROM,
    HAD,
    LATE,
    PHASE,
    VALUE,
)
from persist_spark.upsert.rules import (
    CANONICAL,
    ENTRY,
    IS_OLD,
    TRUNCATED,
    UpsertRules,
)
from persist_spark.upsert.sequence import (
    IS_TRUNCATED,
    expanded,
)


def with_canonical(chain: DataFrame, rules: UpsertRules) -> DataFrame:
    """Add what decides between records of one order: the greater bytes, a tombstone being the least."""
    ok = canonical_json(rules.schema.values, [F.col(VALUE).getField(name) for name in rules.values])
    value = F.when(F.col(ERR).isNull(), ok).otherwise(F.col(ERR).getField(ERR_PAYLOAD))
    return chain.withColumn(CANONICAL, F.when(F.col(OP) == UPSERT, value))


def with_truncates(chain: DataFrame, rules: UpsertRules) -> DataFrame:
    """Add each truncate as a tombstone for every slot that holds a value just before it.

    Of several truncates at one time the last one does all that the others do, so only it is expanded.
    """
    is_truncate = f"{OP} = '{TRUNCATE}' AND {PHASE} = {FINAL}"
    compared = [ORDER, AT, LATE, TRUNCATED] if rules.sequence else [AT, ORDER, LATE]
    newest = F.expr(f"max(struct({', '.join(compared)})) AS newest")
    truncates = chain.where(is_truncate).groupBy(TIME).agg(newest)
    has_slot = f"{OP} NOT IN ('{TRUNCATE}', '{SKIP}')" + (f" AND {IS_TRUNCATED}" if rules.sequence else "")
    slots = chain.where(has_slot).select(*rules.slot).distinct()
    given = {
        AT: f"newest.{AT}",
        ORDER: f"newest.{ORDER}",
        LATE: f"newest.{LATE}",
        FROM: str(EXPANDED),
        PHASE: str(FINAL),
        OP: f"'{DELETE}'",
        VALUE: "NULL",
        ERR: "NULL",
        ENTRY: "NULL",
        TRUNCATED: f"newest.{TRUNCATED}",
        IS_OLD: "false",
    }
    cells = [f"{given.get(name, name)} AS {name}" for name in rules.chain]
    both = with_canonical(chain.union(slots.crossJoin(F.broadcast(truncates)).selectExpr(*cells)), rules)
    if rules.sequence:
        return expanded(both, rules)
    had = f"coalesce(lag({OP} = '{UPSERT}' AND {PHASE} != {COUNTED}) {rules.by_rank}, false) AS {HAD}"
    return both.selectExpr("*", had).where(f"{FROM} != {EXPANDED} OR {HAD}").drop(HAD)
