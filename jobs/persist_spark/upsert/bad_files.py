"""Files of a batch that cannot be read for their bytes: found, set aside, and the rest of the batch is staged.

    stage ──fails at a file──> which one? ──alone, it fails again──> its bytes come whole? ──> set aside, stage again
       '── any other failure, and one that a file does not repeat alone: the run fails as it was

A batch in which a file was half read is never staged: Spark's failure ends the attempt, whose files are deleted.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from persist_core.contents.batch import BatchManifest
from persist_core.errors import UnreadableFiles
from persist_core.keys import attempt_prefix
from persist_core.sources.input_file import InputFile
from persist_core.spark_job.causes import find_cause
from persist_core.spark_job.spec import JobSpec
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.decode.files import Copies, uris
from persist_spark.decode.long_records import opened
from persist_spark.decode.unreadable import as_reason, of_each, unreadable_files
from persist_spark.upsert.set_aside import SetAside, is_death, read_files

log = logging.getLogger(__name__)
_UNREADABLE: tuple[type[Exception], ...] = (UnreadableFiles, *ENGINE_ERRORS)
MAX_BAD_FILES = 100  # in one batch: more have a common cause, which a person should look for
MAX_ROUNDS = 8  # of staging; from the second on, all files that stop Spark alone are looked for
_READ_FAILED = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\]|Encountered error while reading file ")  # Spark 4; Spark 3.5
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)
_NO_CODEC = re.compile(r"\bClass [\w.]*?(\w+)Codec was not found")
_CHUNK_BYTES = 1 << 20


def stage_without_bad_files(
    spark: SparkSession,
    spec: JobSpec,
    files: Sequence[InputFile],
    killers: Sequence[SetAside],
    copies: Copies,
    stage: Callable[[Sequence[SetAside]], BatchManifest],
) -> BatchManifest:
    """`stage` without the files that it gets: `killers`, and unreadable files.

    Raises `UnreadableFiles` if the collection does not set files aside, or for too many; what `stage` raises otherwise.
    """
    aside = list(killers)
    for number in range(MAX_ROUNDS):
        reasons = {each.file.path: each.reason for each in aside}
        if aside and spec.collection.source.on_bad_file == "fail":
            raise unreadable_files(reasons, "; with source.on_bad_file: quarantine the run goes on without it")
        if len(aside) > MAX_BAD_FILES:
            break
        if number:
            log.info("%d files cannot be read: the batch is staged again without them", len(aside) - len(killers))
        try:
            manifest = stage(aside)
        except _UNREADABLE as error:
            known = {each.file for each in aside}
            left = [file for file in files if file not in known]
            copies.access.check_after(files)
            found = _bad_files(spark, spec, left, copies, error, searches=number > 0)
            if not found:
                raise
            aside += found
        else:
            for each in aside:
                log.warning("%s", each)
            return manifest
        for left_over in list(copies.blob.list_keys_and_metadata(f"{attempt_prefix(spec.config.name, spec.attempt)}/")):
            copies.blob.delete(left_over.key)
    raise unreadable_files(
        {each.file.path: each.reason for each in aside},
        f". At most {MAX_BAD_FILES} files of a batch are set aside, in {MAX_ROUNDS} rounds",
    )


def _bad_files(
    spark: SparkSession, spec: JobSpec, files: Sequence[InputFile], copies: Copies, error: Exception, *, searches: bool
) -> list[SetAside]:
    """The files that an error is the fault of, and all others that our own libraries refuse and Spark too.

    `searches`: look for all that Spark alone cannot read, not only for the one that the error names.
    """
    known = error.reasons if isinstance(error, UnreadableFiles) else {}
    text, left = str(error), [file for file in files if file.path not in known]
    if not known and (is_death(spark, error) or find_cause(text.splitlines()) is not None):
        return []
    refused: Mapping[str, str] = {}
    try:
        of_each(lambda each: _read_whole(spec, each, copies), left)
    except UnreadableFiles as more:
        refused = more.reasons
    named = [file for file in left if any(uri in text for uri in uris(copies.access.spark_path(file) or file.path))]
    suspects = [file for file in left if file.path in refused or file in named]
    if not known and (searches or not named):
        suspects = left
    found = [_aside(file, copies, known[file.path]) for file in files if file.path in known]
    for file, failure in _failing(spark, spec, suspects, copies):
        reason = refused.get(file.path) or _reason(str(failure))
        if reason is not None:
            found.append(_aside(file, copies, reason))
    return found


def _failing(
    spark: SparkSession, spec: JobSpec, files: Sequence[InputFile], copies: Copies
) -> Iterator[tuple[InputFile, Exception]]:
    """The files that Spark cannot read alone, and its errors: by halves, a few more than may be set aside."""
    groups, count = [list(files)], 0
    while groups and count <= MAX_BAD_FILES:  # bounded: each group is half of another one
        group = groups.pop()
        try:
            read_files(spark, spec.collection, group, copies)
        except _UNREADABLE as error:
            if is_death(spark, error):
                raise
            if len(group) == 1:
                count += 1
                yield group[0], error
            else:
                half = len(group) // 2
                groups += [each for each in (group[half:], group[:half]) if each]


def _reason(said: str) -> str | None:
    """The fault that Spark alone finds in the bytes of a file; `None` if it is not certain that they are at fault."""
    if _READ_FAILED.search(said) is None:
        return None
    if codec := _NO_CODEC.search(said):
        return f"this Spark has no {codec[1]}, with which it is compressed; write it with zstd, snappy or gzip"
    causes = _CAUSE.findall(said)
    return as_reason(f"Spark cannot read it: {causes[-1] if causes else said.splitlines()[0]}")


def _read_whole(spec: JobSpec, file: InputFile, copies: Copies) -> None:
    """Read a file as its format, by our own libraries, and keep nothing."""
    if "parquet" in spec.collection.source.format:
        with copies.feed.opened(file) as source:
            for _ in pq.ParquetFile(source).iter_batches():
                pass
        return
    with opened(copies.feed, file) as source:
        while source.read(_CHUNK_BYTES):
            pass


def _aside(file: InputFile, copies: Copies, reason: str) -> SetAside:
    """The file with the digest of its bytes: that the store gives them all shows that it is not at fault."""
    with copies.feed.opened(file) as source:
        digest = hashlib.sha256()
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    copies.feed.check([file])
    return SetAside(file, reason, digest.hexdigest())
