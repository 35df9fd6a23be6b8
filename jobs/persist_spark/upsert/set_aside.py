"""Files that are set aside: how they are found, and what their shard holds in their place.

    jobs died at this lower ─> each file is read apart from the others, named before ─> two deaths over it: set aside
    stage ──fails at a file──> which one? ──alone, it fails again──> its bytes come whole? ──> set aside, stage again
       '── any other failure, and one that a file does not repeat alone: the run fails as it was
    set aside ─> one err of kind `file` in the file's slot ─> a corrected file of its name ─> a tombstone for the slot

The slot of a file is unlike any other: a newline ends it, which no line of a feed has. A batch in which a file was half
read is never staged: Spark's failure ends the attempt, whose files are deleted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import S3
from persist_core.contents.batch import BatchManifest
from persist_core.errors import PersistError, UnreadableFiles
from persist_core.keys import attempt_prefix
from persist_core.schema import BAD_FILE, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME
from persist_core.sources.input_file import InputFile
from persist_core.spark_job.causes import DRIVER_MEMORY, EXECUTOR_MEMORY, find_cause
from persist_core.spark_job.deaths import Death, blamed, identity, reading
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import format_time
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.decode.files import Copies, uris
from persist_spark.decode.formats import decode
from persist_spark.decode.row_checks import united
from persist_spark.decode.unread import as_reason, of_each, opened, unreadable_files
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, UPSERT, known_records

log = logging.getLogger(__name__)
MAX_READS = 256  # apart from each other, in one go; each costs some tenths of a second
_UNREADABLE: tuple[type[Exception], ...] = (UnreadableFiles, *ENGINE_ERRORS)
MAX_BAD_FILES = 100  # in one batch: more have a common cause, which a person should look for
MAX_ROUNDS = 8  # of staging; from the second on, all files that stop Spark alone are looked for
_READ_FAILED = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\]|Encountered error while reading file ")  # Spark 4; Spark 3.5
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.*)$", re.MULTILINE)
_NO_CODEC = re.compile(r"\bClass [\w.]*?(\w+)Codec was not found")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class SetAside:
    """A file of which no record is taken, and why. `sha256`: of its bytes, if they were read."""

    file: InputFile
    reason: str
    sha256: str | None = None

    def __str__(self) -> str:
        file = self.file
        again = "put the same object again" if file.path.startswith(S3) else "touch it"
        return (
            f"file {file.relative!r} ({file.size_bytes} bytes, changed at {format_time(file.mtime_ms)}) is set aside:"
            f" {self.reason}. None of its records is taken. Put a corrected file of this name in its place, and the"
            f" next run reads it; to have it read again as it is, {again}"
        )


def find_killers(
    spark: SparkSession, spec: JobSpec, files: Sequence[InputFile], deaths: Sequence[Death], copies: Copies
) -> tuple[SetAside, ...]:
    """The files that jobs died over. All others are read here, apart from each other, and this job has survived that.

    Files that a job was reading when it died come first: so what kills jobs after a while, whatever they do, is not
    laid to the same file twice.
    """
    counts = blamed(deaths)
    killers = tuple(
        SetAside(file, f"{counts[name]} jobs died, each while it read this file alone")
        for file in files
        if (name := identity(file)) in counts
    )
    rest = {identity(file): file for file in files if identity(file) not in counts}
    number = 0
    for death in [*sorted((death for death in deaths if death.files), key=lambda death: len(death.files)), None]:
        suspects = [rest.pop(name) for name in (death.files if death else list(rest)) if name in rest]
        size = -(-len(suspects) // MAX_READS)
        for first in range(0, len(suspects), size or 1):
            group = suspects[first : first + size]
            try:
                with reading(copies.blob, spec, number, group, lambda error: is_death(spark, error)):
                    read_files(spark, spec.collection, group, copies)
            except Exception as error:
                if not isinstance(error, _UNREADABLE) or is_death(spark, error):
                    raise
                log.info("a file that was read apart cannot be read: staging the batch finds it again")
            number += 1
        if death is not None and death.key is not None and not counts.keys() & set(death.files):
            copies.blob.delete(death.key)  # it was not one of these
    return killers


def read_files(spark: SparkSession, config: CollectionConfig, files: Sequence[InputFile], copies: Copies) -> None:
    decode(spark, config, files, copies=copies).write.format("noop").mode("overwrite").save()


def is_death(spark: SparkSession, error: Exception) -> bool:
    """True if an error says that Spark died, or had too little memory; not that it could not read a file."""
    if isinstance(error, PersistError):
        return False
    cause = find_cause(str(error).splitlines())
    if isinstance(error, MemoryError) or (cause is not None and cause.what in (DRIVER_MEMORY, EXECUTOR_MEMORY)):
        return True
    try:
        spark.range(1).collect()
    except Exception:  # noqa: BLE001 - whatever it is: Spark can't do anything any more
        return True
    return False


def with_files(
    spark: SparkSession,
    records: DataFrame,
    config: CollectionConfig,
    lower: int,
    set_aside: Sequence[SetAside],
    files: Sequence[InputFile],
) -> DataFrame:
    """The records frame with an err for each file that is set aside, and a tombstone for each that was corrected.

    Their order rises with the batch's `lower`, so the newest of a file's slot counts.
    """
    rows = [_row(config, lower, each.file, _err(each)) for each in set_aside]
    aside = {each.file for each in set_aside}
    rows += [_row(config, lower, file, {}) for file in files if file.is_corrected and file not in aside]
    if not rows:
        return records
    order = records.schema[ORDER].dataType
    return united(records, known_records(spark, config.collection_schema(), order, rows))


def _row(config: CollectionConfig, lower: int, file: InputFile, err: Mapping[str, Any]) -> Mapping[str, Any]:
    slot = f"{BAD_FILE} {file.relative}\n".encode()
    return {
        OP: UPSERT if err else DELETE,
        TIME: file.date_ms if config.time.source == "path" else None,
        ORDER: dict(zip([column.name for column in config.source.position], (file.order, lower, 0), strict=True)),
        BAD_KEY: slot,
        ERR_KIND: BAD_FILE,
        ERR_KEY: slot,
        **err,
    }


def _err(each: SetAside) -> dict[str, Any]:
    file = each.file
    facts = {
        "file": file.relative,
        "size_bytes": file.size_bytes,
        "mtime_ms": file.mtime_ms,
        **({"sha256": each.sha256} if each.sha256 else {}),
        "reason": each.reason,
    }
    payload = json.dumps(facts, separators=(",", ":")).encode()
    return {ERR_MESSAGE: str(each), ERR_PAYLOAD: payload, ERR_POSITION: file.relative}


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
        with copies.access.feed.opened(file) as source:
            for _ in pq.ParquetFile(source).iter_batches():
                pass
        return
    with opened(copies.access.feed, file) as source:
        while source.read(_CHUNK_BYTES):
            pass


def _aside(file: InputFile, copies: Copies, reason: str) -> SetAside:
    """The file with the digest of its bytes: that the store gives them all shows that it is not at fault."""
    with copies.access.feed.opened(file) as source:
        digest = hashlib.sha256()
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    copies.access.feed.check([file])
    return SetAside(file, reason, digest.hexdigest())
