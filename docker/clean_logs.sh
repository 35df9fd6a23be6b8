#!/bin/sh
# The log groomer of Airflow's Helm chart: deletes logs that were not written for AIRFLOW__LOG_RETENTION_DAYS.
set -eu
trap 'kill ${!:-} 2>/dev/null || true; exit 0' TERM INT
logs=${AIRFLOW_HOME:-/opt/airflow}/logs
while :; do
    find "$logs" -type f -mtime "+${AIRFLOW__LOG_RETENTION_DAYS:-15}" -delete || true
    find "$logs" -mindepth 1 -depth -type d -empty -mmin +60 -delete || true
    sleep "$((${AIRFLOW__LOG_CLEANUP_FREQUENCY_MINUTES:-15} * 60))" &
    wait $!
done
