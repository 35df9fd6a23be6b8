"""Spark on S3, through Hadoop's S3A: how to reach the bucket, and how a batch's files become visible there.

S3 has no rename, so the file committer's way (write aside, then rename) is neither atomic nor safe: an abandoned task
that still runs could move its files among its successor's. Parts are committed by the S3A magic
committer instead (Hadoop's documentation, "Committing work to S3 with the S3A committers"):

    each task attempt     uploads its files as multipart uploads that it does not complete: S3 shows nothing of them
    a task's commit       saves the list of its uploads; Spark's driver allows it to one attempt of each task
    the job's commit      the driver alone completes the uploads in these lists, and aborts all others
                          below the attempt's folder; then it writes `_SUCCESS`, with what it completed

So the files of a failed, speculative or abandoned task attempt never become objects. `check_commit` compares the
listing with `_SUCCESS`: it fails the run if another committer was used, or if the folder holds anything but what the
driver completed.

All settings are options of one read or one write, for the location's bucket alone: no session needs preparation, and
nothing else in it changes. (`SESSION` only saves requests.) Those for the location hold no secret: S3A finds
credentials by itself (the environment of the driver, which Spark passes to its executors; the machine's role).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyspark

from persist_core.errors import InvalidInput, InvariantViolation
from persist_core.location.blob import Blob
from persist_core.location.open import s3_settings
from persist_core.location.s3.client import own_credentials
from persist_core.location.s3.objects import S3Objects
from persist_core.location.s3.uri import S3Settings
from persist_spark.compat import WRITES_TO_S3

SUCCESS = "_SUCCESS"
MAGIC = "magic"
_COMMITTER_CLASS = "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter"
_COMMIT_OPTIONS = {
    "fs.s3a.committer.name": MAGIC,
    "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    "spark.sql.parquet.output.committer.class": _COMMITTER_CLASS,
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",  # `check_commit` reads `_SUCCESS`
}
# A task's list of uploads stays in its process until it commits: three requests fewer for each file. It is set for a
# whole session or not at all: the committer and S3A's file system, one in a JVM for each bucket, must agree on it.
SESSION = {"spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled": "true"}
_DEFAULT_REGION = "us-east-1"  # what self-hosted servers accept, if no region is given
# AWS's own chain: environment, web identity, profile, container, machine. S3A's default lacks profile and web
# identity, which boto3, and so the control plane, uses.
_AWS_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
_PLAIN_KEYS = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_TEMPORARY_KEYS = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
_NEED_AWS_CHAIN = ("AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
_NEEDED_CLASSES = ("org.apache.hadoop.fs.s3a.S3AFileSystem", _COMMITTER_CLASS)


def access_options(uri: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The options with which Spark reaches the bucket of a blob store's URI; empty if it is not on S3.

    What the URI does not give comes from AWS's environment variables, as for boto3.
    """
    settings = s3_settings(uri, environment)
    return {} if settings is None else _bucket_options(settings, environment, {})


def feed_options(objects: S3Objects) -> dict[str, str]:
    """The options with which Spark reads objects of others: beside those for the location, for their bucket alone.

    They hold the credentials, if there are some for these objects alone; Spark shows the options of a read nowhere.
    """
    own: dict[str, str] = {"change.detection.source": "etag", "change.detection.mode": "server"}
    if objects.requester_pays:
        own["requester.pays.enabled"] = "true"
    keys = own_credentials(objects.settings)
    if keys is not None:
        own |= {"access.key": keys.access_key, "secret.key": keys.secret_key}
        own |= {"session.token": keys.token} if keys.token else {}
        own["aws.credentials.provider"] = _TEMPORARY_KEYS if keys.token else _PLAIN_KEYS
    return _bucket_options(objects.settings, os.environ, own)


def disagree(options: Mapping[str, str], uri: str) -> bool:
    """True if `feed_options` are for the bucket of a blob store's URI, and differ from what reaches that."""
    own = access_options(uri, os.environ)
    changes = {name for name in options if ".change.detection." in name}
    return any(own.keys() & options.keys()) and own != {name: options[name] for name in options.keys() - changes}


def _bucket_options(settings: S3Settings, environment: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    endpoint = settings.endpoint or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    # The other stream, Hadoop's default since 3.4.3, fetches whole columns of Parquet ahead, and keeps an entry of each
    # object until the process ends (HADOOP-20058).
    options = {"path.style.access": str(settings.uses_path_style).lower(), "input.stream.type": "classic", **own}
    if endpoint:
        options |= {"endpoint": endpoint, "connection.ssl.enabled": str(not endpoint.startswith("http:")).lower()}
    if settings.region or endpoint:
        options["endpoint.region"] = settings.region or _DEFAULT_REGION
    if settings.kms_key is not None:
        options |= {"encryption.algorithm": "SSE-KMS", "encryption.key": settings.kms_key}
    is_chain = settings.access_key_id is None and "access.key" not in own
    if is_chain and any(environment.get(name) for name in _NEED_AWS_CHAIN):
        options["aws.credentials.provider"] = _AWS_CHAIN
    return {f"fs.s3a.bucket.{settings.bucket}.{name}": value for name, value in options.items()}


def commit_options(uri: str) -> dict[str, str]:
    """The options that make a write's files visible only when its one action commits; empty if it is not on S3.

    Raises `InvalidInput` if this Spark does not report what it commits there.
    """
    if not uri.startswith("s3:"):
        return {}
    if not WRITES_TO_S3:
        raise InvalidInput(
            f"Spark {pyspark.__version__} cannot write to {uri}: its S3A does not report what it has committed"
            " (docs/spark-on-s3.md). Use Spark 4, or a location in a file system"
        )
    return dict(_COMMIT_OPTIONS)


@contextmanager
def jars_present() -> Iterator[None]:
    """Around what makes Spark use S3: raises `InvalidInput` with the remedy if the jars are missing."""
    try:
        yield
    except Exception as error:
        message = str(error)
        for name in _NEEDED_CLASSES:
            if name in message and "ClassNotFoundException" in message:
                raise InvalidInput(
                    f"Spark cannot use S3: {name} is not on its class path. Install the jars with `make spark-jars`,"
                    " or name their folder in PERSIST_SPARK_JARS, or set spark.jars.packages as docs/spark-on-s3.md"
                    " describes"
                ) from error
        raise


def check_commit(blob: Blob, prefix: str, sizes: Mapping[str, int]) -> None:
    """Compare the files found below `prefix` (bytes by key) with what the driver completed, and remove `_SUCCESS`.

    Raises `InvariantViolation` if they differ or another committer was used. Does nothing if not on S3.
    """
    if not blob.uri.startswith("s3:"):
        return
    key = f"{prefix}/{SUCCESS}"
    committed = _committed(blob.get(key), key)
    found = (len(sizes), sum(sizes.values()))
    if found != committed:
        raise InvariantViolation(
            f"{prefix}: the folder holds {found[0]} files of {found[1]} bytes; the driver committed"
            f" {committed[0]} of {committed[1]} bytes. Nothing was committed to the shard: try again under a"
            " new attempt, and find out what else writes there"
        )
    blob.delete(key)


def _committed(data: bytes | None, key: str) -> tuple[int, int]:
    """The files that the driver made visible, and their bytes, as a `_SUCCESS` of the magic committer says;
    `InvariantViolation` for any other."""
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
            f"{key}: found a report of the committer {committer!r}, expected one of Hadoop's {MAGIC!r}. Nothing was"
            " committed to the shard: no other committer is safe on S3; remove settings that name one"
            " (fs.s3a.committer, spark.sql.sources.commitProtocolClass)"
        )
    return files, size_bytes
