"""Find the jars with which Spark reads and writes S3, and give them to a job.

Spark alone cannot use S3: it needs hadoop-aws of exactly the Hadoop version that Spark was built with, and the AWS SDK.
They are looked for in this order:

    spark.jars.packages that names hadoop-aws            Spark fetches them itself
    <Spark>/jars/hadoop-aws-*.jar                        the cluster has them
    PERSIST_SPARK_JARS                                   a folder of jars
    <checkout>/.cache/spark-jars/<Hadoop version>        what `make spark-jars` brought

If no place has them, the job fails with a remedy when it first uses S3 (`persist_spark.s3a`), because a class path can
get jars in other ways. Without location and input on S3 no jars are needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from persist_core.errors import InvalidInput

JARS_ENV = "PERSIST_SPARK_JARS"
JARS_CONF = "spark.jars"
PACKAGES_CONF = "spark.jars.packages"
_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "spark-jars"
_HADOOP = re.compile(r"hadoop-client-api-(.+)\.jar")


def with_s3a_jars(
    conf: Mapping[str, str], uris: Iterable[str], environment: Mapping[str, str], spark_home: Path | None
) -> dict[str, str]:
    """`conf` with the jars that a job needs beyond what it has; unchanged unless one of what it uses (its blob store,
    the paths of its input) is on S3.

    Raises `InvalidInput` if `PERSIST_SPARK_JARS` names a folder without hadoop-aws.
    """
    if not any(uri.lower().startswith("s3:") for uri in uris) or "hadoop-aws" in conf.get(PACKAGES_CONF, ""):
        return dict(conf)
    jars = s3a_jars(environment, spark_home)
    if not jars or "hadoop-aws" in conf.get(JARS_CONF, ""):
        return dict(conf)
    given = [jar for jar in conf.get(JARS_CONF, "").split(",") if jar]
    return {**conf, JARS_CONF: ",".join([*given, *map(str, jars)])}


def s3a_jars(environment: Mapping[str, str], spark_home: Path | None) -> list[Path]:
    """The jars to add to a job's class path, sorted; empty if Spark has them itself, or no place has them."""
    named = environment.get(JARS_ENV)
    if named:
        jars = sorted(Path(named).glob("*.jar"))
        if not any("hadoop-aws" in jar.name for jar in jars):
            raise InvalidInput(
                f"{JARS_ENV} is {named!r}, which holds no hadoop-aws jar; `make spark-jars` makes such a folder"
            )
        return jars
    if spark_home is None or any((spark_home / "jars").glob("hadoop-aws-*.jar")):
        return []
    hadoop = hadoop_version(spark_home)
    return sorted((_CACHE / hadoop).glob("*.jar")) if hadoop else []


def hadoop_version(spark_home: Path) -> str | None:
    """The Hadoop version of this Spark, such as `3.5.0`; `None` if it has no Hadoop."""
    found = (_HADOOP.fullmatch(path.name) for path in (spark_home / "jars").glob("hadoop-client-api-*.jar"))
    return next((match[1] for match in found if match), None)
