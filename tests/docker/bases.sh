#!/usr/bin/env bash
# bases.sh: stand-ins for the base images of docker/, made of Debian's packages, for machines without an image registry.
# They trust the certificates of this machine and use its package mirrors; the images built on them are thrown away.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=$PWD/.cache/docker
export DOCKER_HOST=unix://$home/docker.sock DOCKER_BUILDKIT=1
docker=/usr/bin/docker

has() { $docker image inspect "$1" >/dev/null 2>&1; }
build() { $docker build --quiet --network host -t "$1" "$home/base" >/dev/null; echo "made $1"; }

mkdir -p "$home/base"
if ! has debian:trixie-slim; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
    mmdebstrap --quiet --variant=minbase --include=ca-certificates trixie "$home/base.tar" "$mirror"
    $docker import "$home/base.tar" debian:trixie-slim >/dev/null
    rm "$home/base.tar"
    echo "made debian:trixie-slim"
fi

# This machine's certificates and pip settings: never in the images of docker/, only in these bases.
mkdir -p "$home/base/certificates"
cp /usr/local/share/ca-certificates/*.crt "$home/base/certificates/" 2>/dev/null || touch "$home/base/certificates/none.crt"
{
    echo "[global]"
    env -u PIP_FIND_LINKS python3 -m pip config list | sed -nE "s/^(global\.|:env:\.)(index-url|extra-index-url|timeout|default-timeout)='(.*)'$/\2 = \3/p"
    echo "cert = /etc/ssl/certs/ca-certificates.crt"
} >"$home/base/pip.conf"

if ! has python:3.13-slim-trixie; then
    cat >"$home/base/Dockerfile" <<'FILE'
FROM debian:trixie-slim
COPY certificates/ /usr/local/share/ca-certificates/
COPY pip.conf /etc/pip.conf
RUN update-ca-certificates && apt-get update && apt-get install -y --no-install-recommends python3 python3-venv python3-pip && rm -rf /var/lib/apt/lists/* \
    && ln -s python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
FILE
    build python:3.13-slim-trixie
fi

if ! has postgres:17-trixie; then
    cat >"$home/base/postgres.sh" <<'FILE'
#!/bin/bash
# Knows what docker/compose.yaml uses of the official image: POSTGRES_PASSWORD_FILE and /docker-entrypoint-initdb.d.
set -euo pipefail
bin=$(echo /usr/lib/postgresql/*/bin) data=/var/lib/postgresql/data
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$data" && chown postgres:postgres "$data" && chmod 700 "$data"
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi
if [ ! -s "$data/PG_VERSION" ]; then
    "$bin/initdb" -D "$data" -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile="$POSTGRES_PASSWORD_FILE" >/dev/null
    echo "host all all all scram-sha-256" >>"$data/pg_hba.conf"
    "$bin/pg_ctl" -D "$data" -o "-c listen_addresses=''" -w start >/dev/null
    for script in /docker-entrypoint-initdb.d/*.sh; do [ ! -e "$script" ] || . "$script"; done
    "$bin/pg_ctl" -D "$data" -m fast -w stop >/dev/null
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*' "${@:2}"
FILE
    chmod +x "$home/base/postgres.sh"
    cat >"$home/base/Dockerfile" <<'FILE'
FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \
    && ln -s /usr/lib/postgresql/*/bin/pg_isready /usr/local/bin/ && mkdir -p /run/postgresql && chown postgres /run/postgresql
COPY postgres.sh /usr/local/bin/postgres.sh
ENTRYPOINT ["/usr/local/bin/postgres.sh"]
CMD ["postgres"]
FILE
    build postgres:17-trixie
fi

# docker/s3.Dockerfile takes the binary of `make s3-servers` from here, so that a test run does not build it again.
if ! has versitygw:built; then
    cp .cache/servers/versitygw "$home/base/versitygw"
    cat >"$home/base/Dockerfile" <<'FILE'
FROM debian:trixie-slim
COPY versitygw /out/versitygw
FILE
    build versitygw:built
fi

# The images of the profile `metrics`: Debian's Prometheus, and the exporter of `make statsd-exporter`. Their commands are
# those of the published images. Grafana has no package, so there is no stand-in for it.
if ! has prometheus:trixie; then
    cat >"$home/base/Dockerfile" <<'FILE'
FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/* \
    && mkdir /prometheus && chown nobody:nogroup /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
FILE
    build prometheus:trixie
fi
if ! has statsd-exporter:built; then
    cp .cache/servers/statsd_exporter "$home/base/statsd_exporter"
    cat >"$home/base/Dockerfile" <<'FILE'
FROM debian:trixie-slim
COPY statsd_exporter /bin/statsd_exporter
USER nobody
ENTRYPOINT ["/bin/statsd_exporter"]
FILE
    build statsd-exporter:built
fi
