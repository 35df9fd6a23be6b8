#!/usr/bin/env bash
# stack.sh: builds the images of docker/, starts the whole compose stack but for Grafana, runs the main job on it once,
# checks what Prometheus has of it, and stops all. `make test-docker` runs it. The base images are stand-ins (bases.sh).
# What it prints at its end is the time and memory.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=$PWD/.cache/docker
export DOCKER_HOST=unix://$home/docker.sock DOCKER_BUILDKIT=1
export PERSIST_AIRFLOW_IMAGE=airflow-persist:test PERSIST_SPARK_IMAGE=airflow-persist-spark:test
export PERSIST_S3_IMAGE=airflow-persist-s3:test
export PERSIST_SCHEDULE=False # else the schedule's own run takes all seven days at once, or some of them
export PERSIST_STATSD=True PROMETHEUS_IMAGE=prometheus:trixie STATSD_IMAGE=statsd-exporter:built
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
AIRFLOW_PORT=$(free_port) PROMETHEUS_PORT=$(free_port)
export AIRFLOW_PORT PROMETHEUS_PORT
docker=/usr/bin/docker
compose() { timeout "$1" docker-compose --project-name persist-test --file docker/compose.yaml "${@:2}"; }

finish() {
    local status=$?
    if [ $status -ne 0 ]; then
        compose 60 ps >&2 || true
        compose 60 logs --no-color --tail 60 >"$home/stack.log" 2>&1 || true
        echo "failed; the containers' logs are in .cache/docker/stack.log" >&2
    fi
    compose 120 down --volumes --remove-orphans >/dev/null 2>&1 || true
    tests/docker/engine.sh stop
    exit $status
}

tests/docker/engine.sh start
trap finish EXIT
trap 'exit 143' TERM INT
tests/docker/bases.sh
docker/secrets.sh
echo "== build (at ${SECONDS} s)"
timeout 1800 $docker build --quiet -f docker/airflow.Dockerfile -t "$PERSIST_AIRFLOW_IMAGE" . >/dev/null
timeout 1800 $docker build --quiet -f docker/spark.Dockerfile -t "$PERSIST_SPARK_IMAGE" . >/dev/null
timeout 600 $docker build --quiet -f docker/s3.Dockerfile --build-arg BINARY=versitygw:built -t "$PERSIST_S3_IMAGE" . >/dev/null
$docker images --format '   {{.Repository}}:{{.Tag}} {{.Size}}' | grep persist
$docker run --rm --network none "$PERSIST_AIRFLOW_IMAGE" python -c '
import importlib
from persist_core.config.alerts import SHORT_NAMES
for path in SHORT_NAMES.values():
    importlib.import_module(path.rpartition(".")[0])
'

echo "== start (at ${SECONDS} s)"
compose 600 up -d --no-build statsd prometheus postgres s3 spark-connect api-server scheduler dag-processor triggerer
tries=0
until page=$(curl --silent --fail --max-time 5 "http://127.0.0.1:$AIRFLOW_PORT/api/v2/monitor/health"); do
    tries=$((tries + 1))
    [ $tries -lt 60 ] || { echo "Airflow's page does not answer" >&2; exit 1; }
    sleep 5
done
echo "   $page"

echo "== main job (at ${SECONDS} s)"
compose 1800 run --rm -T demo | tee "$home/demo.txt"
# What the bundled seven days come to; tests/core/cli/test_feed.py compares the same rows with a replay of the feed.
for expected in 'Europe *│ *22 ' 'Asia *│ *11 ' 'clean'; do
    grep -qE "$expected" "$home/demo.txt" || { echo "the demo's output has no '$expected'" >&2; exit 1; }
done

echo "== metrics (at ${SECONDS} s)"
.venv/bin/python -m tests.docker.observe "$AIRFLOW_PORT" "$PROMETHEUS_PORT"

echo "== what it takes (at ${SECONDS} s)"
$docker stats --no-stream --format '   {{.Name}} {{.MemUsage}}'
for container in $($docker ps --format '{{.Names}}'); do
    user=$($docker inspect --format '{{.Config.User}}' "$container")
    case $container in *postgres*) ;; *) [ -n "$user" ] || { echo "$container runs as root" >&2; exit 1; } ;; esac
done
echo "== done after ${SECONDS} s"
