"""Files that are set aside: found after jobs died, and what their shard holds in their place.

    jobs died at this lower ─> each file is read apart from the others, named before ─> two deaths over it: set aside
    a file cannot be read for its bytes (`bad_files`) ────────────────────────────────────────────────────> set aside
    set aside ─> one err of kind `file` in the file's slot ─> a corrected file of its name ─> a tombstone for the slot

The slot of a file is unlike any other: a newline ends it, which no line of a feed has.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import S3
from persist_core.errors import PersistError, UnreadableFiles
from persist_core.schema import BAD_FILE, ERR_KEY, ERR_KIND, ERR_MESSAGE, ERR_PAYLOAD, ERR_POSITION, TIME
from persist_core.sources.input_file import InputFile
from persist_core.spark_job.causes import DRIVER_MEMORY, EXECUTOR_MEMORY, find_cause
from persist_core.spark_job.deaths import Death, blamed, identity, reading
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import format_time
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.decode.files import Copies
from persist_spark.decode.formats import decode
from persist_spark.decode.row_checks import united
from persist_spark.frame import BAD_KEY, DELETE, OP, ORDER, UPSERT, known_records

log = logging.getLogger(__name__)
MAX_READS = 256  # apart from each other, in one go; each costs some tenths of a second


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
                if not isinstance(error, (UnreadableFiles, *ENGINE_ERRORS)) or is_death(spark, error):
                    raise
                log.info("a file that was read apart cannot be read: staging the batch finds it again")
            number += 1
        if death is not None and death.key is not None and not counts.keys() & set(death.files):
            copies.blob.delete(death.key)  # it was not one of these
    return killers


def read_files(spark: SparkSession, config: CollectionConfig, files: Sequence[InputFile], copies: Copies) -> None:
    """Decode files whole, and keep nothing of them."""
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
