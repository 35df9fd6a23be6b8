"""Spark on S3, through Hadoop's S3A: how to get at the bucket, and how a batch's files become visible there.

S3 has no rename, so the file committer's way (write aside, then rename) is neither atomic nor safe: a task that was
given up, but still runs, could move its files among those of its successor. Parts are committed by the S3A magic
committer instead (Hadoop's documentation, "Committing work to S3 with the S3A committers"):

    each task attempt     uploads its files as multipart uploads that it does not complete: S3 shows nothing of them
    a task's commit       saves the list of its uploads; Spark's driver allows it to one attempt of each task
    the job's commit      the driver, and nobody else, completes the uploads in these lists, and aborts all others
                          below the attempt's folder; then it writes `_SUCCESS`, with what it completed

So what a failed, speculative or forgotten task attempt wrote was never an object: there is nothing to be read, whatever
happens later. `check_commit` holds the listing against `_SUCCESS`: it fails the run if another committer was at work,
or if the folder holds anything else than what the driver completed.

All that is needed is said as options of one read or one write, for the location's bucket alone: no session has to be
prepared, and nothing else in it changes. (`SESSION` only saves requests.) None of them is a secret: credentials come
from where S3A looks for them (the environment of the driver, which Spark hands to its executors; the machine's role).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyspark

from persist_core.errors import InvalidInput, InvariantViolation
from persist_core.location.blob import Blob
from persist_core.location.open import s3_settings
from persist_spark.compat import WRITES_TO_S3

SUCCESS = "_SUCCESS"
MAGIC = "magic"
_COMMITTER_CLASS = "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter"
_COMMIT_OPTIONS = {
    "fs.s3a.committer.name": MAGIC,
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    "spark.sql.parquet.output.committer.class": _COMMITTER_CLASS,
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",  # `_SUCCESS` is the proof that is checked
}
# A task's list of uploads stays in its process until it commits: three requests less for each file. For a whole session
# or not at all: the committer and S3A's file system, which a JVM makes once for a bucket, must agree on it.
SESSION = {"spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled": "true"}
_DEFAULT_REGION = "us-east-1"  # what a server of one's own answers to, where nobody said otherwise
# AWS's own chain: environment, web identity, profile, container, machine. S3A's default has neither profile nor web
# identity, which boto3, and so the control plane, would use.
_AWS_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_NEED_AWS_CHAIN = ("AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
_NEEDED_CLASSES = ("org.apache.hadoop.fs.s3a.S3AFileSystem", _COMMITTER_CLASS)


@dataclass(frozen=True)
class Completed:
    """What the driver made visible, as `_SUCCESS` says."""

    files: int
    size_bytes: int


def is_s3(uri: str) -> bool:
    """True for a blob store on S3, by its URI."""
    return uri.startswith("s3:")


def access_options(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The options with which Spark reaches the bucket of a blob store's URI; none for one that is not on S3.

    What the URI leaves open comes from AWS's environment variables, as for boto3.
    """
    settings = s3_settings(uri, environment)
    if settings is None:
        return {}
    endpoint = settings.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    options = {"path.style.access": str(settings.uses_path_style).lower()}
    if endpoint:
        options |= {"endpoint": endpoint, "connection.ssl.enabled": str(not endpoint.startswith("http:")).lower()}
    if settings.region or endpoint:
        options["endpoint.region"] = settings.region or _DEFAULT_REGION
    if settings.access_key_id is None and any(environment.get(name) for name in _NEED_AWS_CHAIN):
        options["aws.credentials.provider"] = _AWS_CHAIN
    return {f"fs.s3a.bucket.{settings.bucket}.{name}": value for name, value in options.items()}


def commit_options(uri: str) -> dict[str, str]:
    """The options that make a write's files visible only as its one action commits; none where it is not on S3.

    Raises `InvalidInput` where this Spark can't write there so that we know what it has committed.
    """
    if not is_s3(uri):
        return {}
    if not WRITES_TO_S3:
        raise InvalidInput(
            f"Spark {pyspark.__version__} can't write to {uri}: its S3A leaves no report of what it has committed"
            " (docs/spark-on-s3.md). Take Spark 4, or a location in a file system"
        )
    return dict(_COMMIT_OPTIONS)


@contextmanager
def jars_present() -> Iterator[None]:
    """Around what makes Spark touch S3: says what is missing, where it is the jars. Raises `InvalidInput` then."""
    try:
        yield
    except Exception as error:
        message = str(error)
        for name in _NEEDED_CLASSES:
            if name in message and "ClassNotFoundException" in message:
                raise InvalidInput(
                    f"Spark can't use S3: there is no {name} on its class path. Bring the jars with `make spark-jars`,"
                    " or name a folder of them in PERSIST_SPARK_JARS, or set spark.jars.packages as docs/spark-on-s3.md"
                    " says"
                ) from error
        raise


def check_commit(blob: Blob, prefix: str, sizes: Mapping[str, int]) -> None:
    """Hold the files found below `prefix` (bytes by key) against what the driver completed, and remove `_SUCCESS`.

    Raises `InvariantViolation` where they differ or another committer was at work. Nothing to do where not on S3.
    """
    if not is_s3(blob.uri):
        return
    key = f"{prefix}/{SUCCESS}"
    committed = _committed(blob.get(key), key)
    found = Completed(len(sizes), sum(sizes.values()))
    if found != committed:
        raise InvariantViolation(
            f"{prefix}: the folder holds {found.files} files of {found.size_bytes} bytes; the driver committed"
            f" {committed.files} of {committed.size_bytes} bytes. Nothing was committed to the shard: try again under a"
            " new attempt, and find out what else writes there"
        )
    blob.delete(key)


def _committed(data: bytes | None, key: str) -> Completed:
    """What a `_SUCCESS` of the magic committer says; `InvariantViolation` for any other."""
    try:
        body: dict[str, Any] = json.loads(data or b"{}")
        committer = body.get("committer")
        counters = body["iostatistics"]["counters"] if committer == MAGIC and body["success"] is True else {}
        counts = counters.get("committer_commits_completed"), counters.get("committer_bytes_committed")
    except (ValueError, KeyError, TypeError, AttributeError):
        committer, counts = None, (None, None)
    files, size_bytes = counts
    if not isinstance(files, int) or not isinstance(size_bytes, int):
        raise InvariantViolation(
            f"{key}: wanted the report of Hadoop's committer {MAGIC!r}, found one of {committer!r}. Nothing was"
            " committed to the shard: on S3 no other committer is safe; remove settings that name one"
            " (fs.s3a.committer, spark.sql.sources.commitProtocolClass)"
        )
    return Completed(files, size_bytes)
