#!/bin/sh
# The main job on the whole stack: a backfill of the bundled seven days, a view over them, and what they made.
set -eu

# backfill DAG FIRST LAST: Airflow only queues it. This waits until the DAG's dag runs have ended, for half an hour at most.
backfill() {
    airflow backfill create --dag-id "$1" --from-date "$2" --to-date "$3" --max-active-runs 1 \
        --reprocess-behavior completed
    tries=0
    while :; do
        runs=$(FORCE_COLOR= NO_COLOR=1 airflow dags list-runs "$1" --output json)
        case $runs in
            *'"state": "queued"'* | *'"state": "running"'*) ;;
            *'"state": "failed"'*) echo "a dag run of $1 failed" >&2; exit 1 ;;
            *'"state": "success"'*) break ;;
            *) echo "Airflow knows no dag run of $1" >&2; exit 1 ;;
        esac
        tries=$((tries + 1))
        [ $tries -lt 180 ] || { echo "dag runs of $1 have not ended" >&2; exit 1; }
        sleep 10
    done
}

for dag in persist_upsert__customers persist_upsert__cities; do
    airflow dags unpause --yes "$dag" >/dev/null
done
backfill persist_upsert__customers 2026-01-01 2026-01-07
backfill persist_upsert__cities 2026-01-07 2026-01-07
export PERSIST_SPARK_MASTER=sc://spark-connect:15002
persist run regions --until 2026-01-08
persist shards
persist snapshot customers --as-of 2026-01-03 --limit 5
persist changes customers --after 2026-01-06 --through 2026-01-07
persist errors customers --as-of 2026-01-07
persist snapshot regions
persist fsck customers
