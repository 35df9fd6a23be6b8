"""The SHA-256 of staged files: of a small batch by this process (`footers.digests_of`), of a large one by executors.

    files of an attempt ─┬─ small batch, or a file too large for a task ──> read here, 8 MB at a time
                         └─ else: one listing of its folder, one task for some files, sha2(content, 256)

Both read each file once, after its commit, from where readers find it, and compare its size with the listing. So both
give the same guarantee (docs/storage.md, "Digests").
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from persist_core.location.blob import Blob, BlobMetadata
from persist_spark import s3a
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.footers import check_size, digests_of
from persist_spark.read.damage import LOUD_OPTIONS, key_in, stored_sizes
from persist_spark.read.parts import literal

BY_EXECUTORS_BYTES = 64 << 20  # from here on a job takes less time than to read the bytes in one process
_COPIES = 4  # of a file in a task's memory: Spark reads it whole, puts it into a row, and hashes a copy
_UNITS = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MEMORY = re.compile(r"(\d+)([bkmgt]?)b?")
_LOCAL = re.compile(r"local\[(\d+|\*)")
_MAX_BYTES = 1 << 29  # Spark doubles it, and an array of Java has 2 GB
_TASKS = 4  # side by side in an executor, if nothing says how many


def staged_digests(spark: SparkSession, blob: Blob, prefix: str, files: Sequence[BlobMetadata]) -> list[str]:
    """The SHA-256 (hex) of each file, all of which are below `prefix`, in their order.

    Raises `CorruptArtifact` for a file that is gone or has another size than was listed.
    """
    if sum(file.size_bytes for file in files) < BY_EXECUTORS_BYTES:
        return digests_of(blob, files)
    limit = max_file_bytes(spark)
    large = [file for file in files if file.size_bytes > limit]
    small = [file for file in files if file.size_bytes <= limit]
    found = {file.key: digest for file, digest in zip(large, digests_of(blob, large), strict=True)}
    found |= _by_executors(spark, blob, prefix, small, limit)
    return [found[file.key] for file in files]


def _by_executors(
    spark: SparkSession, blob: Blob, prefix: str, files: Sequence[BlobMetadata], limit: int
) -> dict[str, str]:
    options = {**LOUD_OPTIONS, "recursiveFileLookup": "true", **s3a.access_options(blob.uri, os.environ)}
    content = F.col("content")
    try:
        with s3a.jars_present():
            read = spark.read.format("binaryFile").options(**options).load(literal(blob.uri_of(prefix)))
            small = read.where(F.col("length") <= limit)
            rows = small.select("path", F.octet_length(content), F.sha2(content, 256)).collect()
    except ENGINE_ERRORS:
        sizes = stored_sizes(blob, [file.key for file in files])
        for file in files:
            check_size(file, sizes.get(file.key, 0))
        raise
    found = {key_in(blob, path): (size_bytes, sha256) for path, size_bytes, sha256 in rows}
    for file in files:
        check_size(file, found[file.key][0] if file.key in found else 0)
    return {file.key: found[file.key][1] for file in files}


def max_file_bytes(spark: SparkSession) -> int:
    """How large a file a task may hold, by the memory of its process and the tasks that may share it."""
    local = _LOCAL.match(spark.conf.get("spark.master", "") or "")
    tasks = (local[1] if local else spark.conf.get("spark.executor.cores", None)) or _TASKS
    memory = spark.conf.get("spark.driver.memory" if local else "spark.executor.memory", None) or "1g"
    match = _MEMORY.fullmatch(memory.strip().lower())
    number, unit = match.groups() if match else ("1", "g")
    shared = int(tasks) if str(tasks).isdigit() else os.cpu_count() or 1
    return min(int(number) * _UNITS[unit] // (shared * _COPIES), _MAX_BYTES)
