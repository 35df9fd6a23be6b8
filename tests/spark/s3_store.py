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
from tests.sampling import sample
from tests.servers.s3 import FOLDER, S3Server


def shard_on_one_store(metafunc: pytest.Metafunc) -> None:
    """The fixture `shard` of each test of a module is in a folder or on S3, by the seed; at night it is both.

    Without S3 for Spark it is both too: all tests run in a folder, and the summary says what is missing.
    """
    if "shard" in metafunc.fixturenames:
        is_here = _missing() is None and (FOLDER / "versitygw").exists()
        family = f"{metafunc.module.__name__}/{metafunc.function.__name__}"
        metafunc.parametrize("shard", sample(["file", "s3"], 1 if is_here else 2, family), indirect=True)


def s3_blob(request: pytest.FixtureRequest, prefix: str = "") -> Blob:
    """A new store; the test closes it."""
    return open_blob(s3_server(request).new_uri(quote(prefix)))


def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The session's S3 server, if the jars are there too; else the test is skipped, and the summary says why."""
    lacking = _missing()
    if lacking is not None:
        real_parts.missing(*lacking)
        pytest.skip(": ".join(lacking))
    real_parts.used("Spark's jars for S3", "hadoop-aws and the AWS SDK, on the class path")
    server: S3Server = request.getfixturevalue("versitygw")
    return server


def _missing() -> tuple[str, str] | None:
    """The part that keeps this Spark from S3, if anything: the part, and why it is missing."""
    release = importlib.metadata.version("pyspark")
    if int(release.partition(".")[0]) < 4:
        return "Spark on S3", f"Spark {release} does not write there (docs/spark-on-s3.md)"
    if not s3a_jars(os.environ, spark_home(os.environ)):
        return "Spark's jars for S3", "`make spark-jars` brings them"
    return None
