"""Jobs that died over their input, and which file each of them was reading.

    a try ends without an answer ─> its starter: `record_death`
    the next try ─> `deaths_at_lower`: any? ─> it reads its files apart, each named by `reading` before ─> `blamed`

A record belongs to the shard's upper at that time, so a retry on another machine and the next run find it alike, until
a batch is committed. A starter that died with its job leaves the job's spec: that is a death too, if no other process
can still be at work on it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from persist_core.ids import time_of_uuid7
from persist_core.keys import jobs_prefix
from persist_core.location.blob import Blob
from persist_core.sources.input_file import InputFile
from persist_core.spark_job.spec import SPEC, JobSpec
from persist_core.time_text import DAY_MS

DEATHS = 2  # over one file alone: then it is set aside
_DIED, _READING = "died", "reading-"


@dataclass(frozen=True)
class Death:
    """A job that died. `files`: the identities of the files that it read apart from others then; none if not known.

    `key`: the record which names them.
    """

    attempt: str
    files: tuple[str, ...] = ()
    key: str | None = None


def identity(file: InputFile) -> str:
    """A file as it was frozen: a corrected one has another identity."""
    return json.dumps([file.relative, file.size_bytes, file.mtime_ms, file.ctime_ns, file.etag, file.version_id])


def record_death(blob: Blob, spec: JobSpec) -> None:
    """Record that a job ended without an answer, and was not asked to end."""
    blob.set(spec.key_of(_DIED), b"")


def deaths_at_lower(blob: Blob, spec: JobSpec, now_ms: int) -> list[Death]:
    """The jobs that died since the shard's upper is the lower of this one, oldest first.

    Costs one listing, if there were none.
    """
    prefix = jobs_prefix(spec.description.shard, spec.description.lower)
    left: dict[str, set[str]] = defaultdict(set)
    for entry in blob.list_keys_and_metadata(prefix):
        attempt, _, name = entry.key.removeprefix(prefix).partition("/")
        left[attempt].add(name)
    deaths = []
    for attempt in sorted(left.keys() - {spec.attempt}):
        names = left[attempt]
        if _DIED in names or (SPEC in names and _is_over(blob, spec, f"{prefix}{attempt}/{SPEC}", now_ms)):
            marks = [name for name in names if name.startswith(_READING)]  # one at most
            deaths.append(_read(blob, attempt, f"{prefix}{attempt}/{marks[0]}") if marks else Death(attempt))
    return deaths


def _read(blob: Blob, attempt: str, key: str) -> Death:
    """The death over the files that a record names; over none if it is gone or damaged."""
    try:
        return Death(attempt, tuple(json.loads(blob.get(key) or b"")), key)
    except ValueError:
        return Death(attempt)


def _is_over(blob: Blob, spec: JobSpec, key: str, now_ms: int) -> bool:
    """True if a job whose starter left its spec can't be alive: this try replaces it, or it is a day old."""
    attempt = key.split("/")[-2]
    if now_ms - (time_of_uuid7(attempt) or now_ms) > DAY_MS:
        return True
    data = blob.get(key)
    return data is not None and JobSpec.decode(data, what=key).description.token == spec.description.token


@contextmanager
def reading(
    blob: Blob, spec: JobSpec, number: int, files: Sequence[InputFile], is_death: Callable[[Exception], bool]
) -> Iterator[None]:
    """Name these files as being read in the body. Their names stay if the process dies in it, or if what it
    raises `is_death`."""
    key = spec.key_of(f"{_READING}{number}.json")
    blob.set(key, json.dumps([identity(file) for file in files]).encode())
    try:
        yield
    except Exception as error:
        if not is_death(error):
            blob.delete(key)
        raise
    blob.delete(key)


def blamed(deaths: Iterable[Death]) -> dict[str, int]:
    """The files, by identity, that jobs died over while they read that file alone, and how many jobs did."""
    alone = Counter(death.files[0] for death in deaths if len(death.files) == 1)
    return {file: count for file, count in alone.items() if count >= DEATHS}
