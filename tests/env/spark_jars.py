"""Jars from the locked lists in requirements/spark-jars/: for Spark on S3, Iceberg for the benchmarks, and Debezium.

    python -m tests.env.spark_jars           brings S3A for the installed Spark into .cache/spark-jars/<Hadoop version>
    python -m tests.env.spark_jars iceberg   brings Iceberg into .cache/spark-jars/iceberg
    python -m tests.env.spark_jars debezium  brings an embedded Debezium into .cache/spark-jars/debezium
    python -m tests.env.spark_jars lock      resolves `ROOTS` again and writes the lists

Ivy fetches them, which every Spark includes for `spark.jars.packages`; so neither Maven nor a downloader of
our own is needed, and the same settings apply: `DEFAULT_ARTIFACT_REPOSITORY` names another repository than Ivy's
default, `PERSIST_IVY_SETTINGS` an Ivy settings file (mirrors, proxies, passwords). A list is complete: nothing is
resolved when jars are installed, and each must have the SHA-256 that the list says.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from persist_core.spark_job.jars import hadoop_version

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "requirements" / "spark-jars"
JARS = ROOT / ".cache" / "spark-jars"
MAX_SECONDS = 900  # about 50 small files from a repository; including a slow mirror

# What a list is resolved from. Hadoop names the release of the AWS SDK that its S3A was built with; its `bundle` of all
# services (600 MB) is replaced by the few modules that S3A calls. spark-hadoop-cloud has the class with which Parquet
# asks Hadoop for a committer. It is not published for every Spark release. The class calls only Hadoop and Parquet, so
# a neighboring release's works, and the tests write with it.
_SDK_2 = ("software.amazon.awssdk:s3", "software.amazon.awssdk:s3-transfer-manager", "software.amazon.awssdk:sts")
_SDK_1 = ("com.amazonaws:aws-java-sdk-s3", "com.amazonaws:aws-java-sdk-sts", "com.amazonaws:aws-java-sdk-dynamodb")
ROOTS = {
    "hadoop-3.5.0": [
        "org.apache.hadoop:hadoop-aws:3.5.0",
        *(f"{module}:2.35.4" for module in _SDK_2),
        "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2",
    ],
    "hadoop-3.4.2": [
        "org.apache.hadoop:hadoop-aws:3.4.2",
        *(f"{module}:2.29.52" for module in _SDK_2),
        "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2",
    ],
    "hadoop-3.3.4": [
        "org.apache.hadoop:hadoop-aws:3.3.4",
        *(f"{module}:1.12.262" for module in _SDK_1),
        "org.apache.spark:spark-hadoop-cloud_2.12:3.5.8",
    ],
    # One jar for one Spark release, 4.1: requirements/bench.in. There is no runtime for Spark 4.2 or 4.3 yet.
    "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"],
    # A process of its own, which tests/servers/debezium starts.
    "debezium": [
        *(
            f"io.debezium:debezium-{module}:3.4.0.Final"
            for module in ("embedded", "connector-postgres", "connector-mariadb")
        ),
        "org.slf4j:slf4j-simple:1.7.36",
    ],
}
# Spark contains these (another copy would be a second version on the class path), or S3A does not need them.
_LEFT_OUT = (
    "software.amazon.awssdk:bundle",
    "com.amazonaws:aws-java-sdk-bundle",
    "io.netty:*",
    "org.slf4j:*",
    "commons-codec:*",
    "commons-logging:*",
    "joda-time:*",
    "org.apache.httpcomponents:*",
    "com.fasterxml.jackson.core:*",
    "org.wildfly.openssl:*",
)
# Debezium runs without Kafka Connect's REST server and without compression; expressions of Ivy.
_LEFT_OUT_OF_DEBEZIUM = (
    "org.eclipse.jetty.*:*",
    "org.glassfish.*:*",
    "com.fasterxml.jackson.jakarta.*:*",
    "jakarta..*:*",
    "javax..*:*",
    "com.sun.*:*",
    "io.swagger.*:*",
    "org.javassist:*",
    "org.bitbucket.*:*",
    "com.github.luben:*",
    "org.lz4:*",
    "org.xerial.*:*",
    "io.github.classgraph:*",
    "com.google.protobuf:*",
    "org.checkerframework:*",
)
# Their dependencies are Spark itself, and other cloud stores.
_INTRANSITIVE = ("org.apache.spark:", "org.apache.iceberg:")


@dataclass(frozen=True, order=True)
class Jar:
    """One line of a list."""

    coordinates: str  # group:artifact:version
    sha256: str

    @property
    def file_name(self) -> str:
        """As `spark.jars.packages` names it: the group too, since two groups may have an artifact of one name."""
        group, artifact, version = self.coordinates.split(":")
        return f"{group}_{artifact}-{version}.jar"


def install(name: str, spark_home: Path) -> Path:
    """Bring the jars of one list into their folder, whole or not at all, and return it."""
    jars = read_list(name)
    folder = JARS / name.removeprefix("hadoop-")
    if folder.is_dir() and _digests(folder) == {jar.file_name: jar.sha256 for jar in jars}:
        return folder
    JARS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=JARS, prefix="fetched-") as scratch:
        fetched = Path(scratch) / "jars"
        _ivy(spark_home, [jar.coordinates for jar in jars], (), Path(scratch), fetched)
        found = _digests(fetched)
        for jar in jars:
            if found.get(jar.file_name) != jar.sha256:
                raise SystemExit(
                    f"{jar.coordinates}: SHA-256 {found.get(jar.file_name)}; expected {jar.sha256}, as"
                    f" {list_path(name).relative_to(ROOT)} says. Nothing was installed: check the"
                    " repository that it came from"
                )
        shutil.rmtree(folder, ignore_errors=True)
        fetched.rename(folder)
    return folder


def lock(name: str, spark_home: Path) -> None:
    """Resolve the roots of one list and write it."""
    with tempfile.TemporaryDirectory(prefix="persist-jars-") as scratch:
        fetched = Path(scratch) / "jars"
        left_out = _LEFT_OUT_OF_DEBEZIUM if name == "debezium" else _LEFT_OUT
        _ivy(spark_home, ROOTS[name], left_out, Path(scratch), fetched)
        jars = [Jar(_coordinates(file), digest) for file, digest in _digests(fetched).items()]
    why = "what it can run without" if name == "debezium" else "what Spark has itself"
    header = f"# Written by `python -m tests.env.spark_jars lock`: {name}, without {why}."
    lines = [f"{jar.coordinates} sha256:{jar.sha256}" for jar in sorted(jars)]
    list_path(name).write_text("\n".join([header, *lines, ""]))


def read_list(name: str) -> list[Jar]:
    """The locked jars of one list."""
    path = list_path(name)
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in LISTS.glob("*.txt")))
        raise SystemExit(f"no jars are locked for {name}; there are lists for {known}")
    lines = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return [Jar(coordinates, digest.removeprefix("sha256:")) for coordinates, digest in lines]


def list_path(name: str) -> Path:
    """The file of one list."""
    return LISTS / f"{name}.txt"


def _ivy(spark_home: Path, roots: Sequence[str], excluded: Sequence[str], scratch: Path, into: Path) -> None:
    """Fetch `roots`; if something is excluded from them, also everything else that they need."""
    module, settings = scratch / "ivy.xml", scratch / "settings.xml"
    module.write_text("\n".join(_module(roots, excluded)))
    command = [str(spark_home / "bin" / "spark-class"), "org.apache.ivy.Main", "-ivy", str(module)]
    command += ["-cache", str(scratch / "cache"), "-types", "jar", "bundle", "-confs", "default"]
    command += ["-retrieve", f"{into}/[organisation]#[artifact]#[revision].[ext]"]
    given, repository = os.environ.get("PERSIST_IVY_SETTINGS"), os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    if given:
        command += ["-settings", given]
    elif repository:
        settings.write_text(
            '<ivysettings><settings defaultResolver="named"/><resolvers>'
            f'<ibiblio name="named" m2compatible="true" root={quoteattr(repository)}/></resolvers></ivysettings>'
        )
        command += ["-settings", str(settings)]
    environment = {**os.environ, "SPARK_HOME": str(spark_home)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=MAX_SECONDS, check=False, cwd=scratch
    )
    if done.returncode or not into.is_dir():
        raise SystemExit(f"Ivy could not fetch the jars:\n{(done.stdout + done.stderr)[-4000:]}")
    for jar in list(into.iterdir()):
        group, artifact, rest = jar.name.split("#")
        jar.rename(into / f"{group}_{artifact}-{rest}")


def _module(roots: Sequence[str], excluded: Sequence[str]) -> Iterator[str]:
    """The Ivy file that requests them."""
    yield '<ivy-module version="2.0"><info organisation="persist" module="spark-jars"/>'
    yield '<configurations><conf name="default"/></configurations><dependencies>'
    for root in roots:
        group, artifact, version = root.split(":")
        is_transitive = bool(excluded) and not root.startswith(_INTRANSITIVE)
        yield (
            f'<dependency org="{group}" name="{artifact}" rev="{version}" transitive="{str(is_transitive).lower()}"'
            ' conf="default->compile,runtime,master"/>'
        )
    for pattern in excluded:
        group, artifact = pattern.split(":")
        yield f'<exclude org="{group}" module="{artifact}" matcher="exactOrRegexp"/>'
    yield "</dependencies></ivy-module>"


def _coordinates(file_name: str) -> str:
    """The inverse of `Jar.file_name`: groups have no `_`, versions start with the last `-` before a digit."""
    group, _, rest = file_name.removesuffix(".jar").partition("_")
    artifact, _, version = rest.rpartition("-")
    return f"{group}:{artifact}:{version}"


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jar"))}


def main(arguments: Sequence[str]) -> None:
    """Install or lock for the Spark beside this Python."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("no pyspark beside this Python: `make install` brings one")
    spark_home = Path(spec.origin).parent
    if list(arguments) == ["lock"]:
        for each in ROOTS:
            lock(each, spark_home)
            sys.stdout.write(f"wrote {list_path(each).relative_to(ROOT)}\n")
        return
    if list(arguments) not in ([], ["iceberg"], ["debezium"]):
        raise SystemExit(__doc__)
    hadoop = hadoop_version(spark_home)
    if hadoop is None:
        raise SystemExit(f"{spark_home}/jars has no hadoop-client-api: this Spark was built without Hadoop")
    folder = install(arguments[0] if arguments else f"hadoop-{hadoop}", spark_home)
    size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    sys.stdout.write(f"{folder.relative_to(ROOT)}: {len(list(folder.iterdir()))} jars, {size_mb:.1f} MB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
