#!/bin/sh
# The main job on the whole stack: a backfill of the bundled seven days, a view over them, and what they made.
set -eu
for dag in persist_upsert__customers persist_upsert__cities; do
    airflow dags unpause --yes "$dag" >/dev/null
done
airflow persist backfill persist_upsert__customers --start-date 2026-01-01 --end-date 2026-01-07 --max-active-runs 1
airflow persist backfill persist_upsert__cities --start-date 2026-01-07 --end-date 2026-01-07
export PERSIST_SPARK_MASTER=sc://spark-connect:15002
persist run regions --until 2026-01-08
persist shards
persist snapshot customers --as-of 2026-01-03 --limit 5
persist changes customers --after 2026-01-06 --through 2026-01-07
persist errors customers --as-of 2026-01-07
persist snapshot regions
persist fsck customers
