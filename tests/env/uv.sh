#!/usr/bin/env bash
# Fetches the installer (uv, one locked version with its hash) into .cache/uv, with nothing but Python and its pip.
# PYTHON names the interpreter to use; without it the newest of 3.11 to 3.13 on PATH is taken, 3.11 first.
set -euo pipefail
cd "$(dirname "$0")/../.."

works() { "$1" -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        works "$PYTHON" && { echo "$PYTHON"; return; }
        echo "PYTHON=$PYTHON is no Python 3.11, 3.12 or 3.13: name one that is" >&2
        return 1
    fi
    local name
    for name in python3.11 python3.12 python3.13 python3 python; do
        works "$name" && { echo "$name"; return; }
    done
    echo "no Python 3.11, 3.12 or 3.13 on PATH: install one, or name one with PYTHON=/path/to/python make ..." >&2
    return 1
}

found=$(find_python)
# Of a virtual environment the interpreter that made it: later installations need it, and the environment may be gone.
python=$("$found" -c 'import sys; print(sys._base_executable)')
mkdir -p .cache
rm -rf .cache/uv
if ! "$python" -m venv .cache/uv >.cache/uv.log 2>&1; then
    cat .cache/uv.log >&2
    echo "$python can't make virtual environments: install its venv and pip modules (Debian: python3-venv)" >&2
    exit 1
fi
echo "installing uv with $python"
.cache/uv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: -r requirements/uv.txt
echo "$python" >.cache/python
