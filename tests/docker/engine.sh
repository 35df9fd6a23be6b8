#!/usr/bin/env bash
# engine.sh start|stop: a Docker engine of this test's own in .cache/docker, on a socket there. Needs root, and installs
# Debian's packages if they are missing. It leaves a bridge and its iptables rules behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=$PWD/.cache/docker
export DOCKER_HOST=unix://$home/docker.sock

start() {
    local missing=() tool
    for tool in dockerd docker-compose runc mmdebstrap; do
        command -v $tool >/dev/null || missing+=("${tool/#dockerd/docker.io}")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        apt-get update -q >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends "${missing[@]}" >/dev/null
    fi
    mkdir -p "$home"
    stop
    local mtu
    mtu=$(cat "/sys/class/net/$(ip route show default | sed -nE 's/.* dev ([^ ]+).*/\1/p' | head -n 1)/mtu")
    # Not a child that a Ctrl-C reaches: the script that started it stops it in its trap.
    setsid dockerd -H "$DOCKER_HOST" --data-root "$home/data" --exec-root "$home/exec" --pidfile "$home/docker.pid" \
        --oom-score-adjust 0 --mtu "$mtu" >"$home/dockerd.log" 2>&1 &
    local tries=0
    until /usr/bin/docker info >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 60 ] || { tail -n 20 "$home/dockerd.log" >&2; echo "dockerd did not start in 60 s" >&2; exit 1; }
        sleep 1
    done
}

stop() {
    [ -f "$home/docker.pid" ] || return 0
    local pid tries=0
    pid=$(cat "$home/docker.pid")
    if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]; then
        kill "$pid"
        while [ -d "/proc/$pid" ] && [ $tries -lt 60 ]; do sleep 1; tries=$((tries + 1)); done
    fi
    rm -f "$home/docker.pid"
}

"$1"
