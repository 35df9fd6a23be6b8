"""A blob store in a bucket of its own on the tests' S3 server, for Spark; skipped if Spark lacks the jars."""

from __future__ import annotations

import importlib.metadata
import os
from urllib.parse import quote

import pytest

from persist_core.location.blob import Blob
from persist_core.location.open import open_blob
from persist_core.spark_job.installation import spark_home
from persist_core.spark_job.jars import s3a_jars
from tests import real_parts
from tests.servers.s3 import S3Server


def s3_blob(request: pytest.FixtureRequest, prefix: str = "") -> Blob:
    """A new store; the test closes it."""
    return open_blob(s3_server(request).new_uri(quote(prefix)))


def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The session's S3 server, if the jars are there too; else the test is skipped, and the summary says why."""
    release = importlib.metadata.version("pyspark")
    if int(release.partition(".")[0]) < 4:
        real_parts.missing("Spark on S3", f"Spark {release} does not write there (docs/spark-on-s3.md)")
        pytest.skip(f"Spark {release} does not write to S3 (docs/spark-on-s3.md)")
    home = spark_home(os.environ)
    if not s3a_jars(os.environ, home):
        real_parts.missing("Spark's jars for S3", "`make spark-jars` brings them")
        pytest.skip("no jars for S3; `make spark-jars` brings them")
    real_parts.used("Spark's jars for S3", "hadoop-aws and the AWS SDK, on the class path")
    server: S3Server = request.getfixturevalue("versitygw")
    return server
