"""Which jobs count as dead, and which file of theirs is blamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from persist_core.errors import CorruptArtifact, RunFailed, SourceChanged
from persist_core.handles.client import PersistClient
from persist_core.ids import uuid7_of
from persist_core.keys import input_copy
from persist_core.location.blob import BlobMetadata
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.sources.input_file import InputFile
from persist_core.sources.natural_order import natural_key
from persist_core.spark_job.answer import job_failure, named_failure, record_failure
from persist_core.spark_job.causes import STOPPED
from persist_core.spark_job.deaths import Death, blamed, deaths_at_lower, identity, reading, record_death
from persist_core.spark_job.spec import JobSpec, MergeInputs, stored
from persist_core.time_text import DAY_MS
from tests.core.spark_job.test_job_spec import CONFIG, DESCRIPTION

NOW_MS = 100 * DAY_MS


class Listed(MemBlob):
    """Counts calls by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.calls.append("get")
        return super().get(key)

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        self.calls.append("list")
        return super().list_keys_and_metadata(prefix)


@pytest.fixture
def blob() -> Listed:
    return Listed()


def spec(number: int, *, token: str = "x", begin: int = 0, age_ms: int = 0) -> JobSpec:
    description = replace(DESCRIPTION, token=token, lower=begin)
    return JobSpec(description, CONFIG, uuid7_of(NOW_MS - age_ms, str(number)))


def file(name: str, size_bytes: int = 1) -> InputFile:
    return InputFile(f"/in/{name}", name, size_bytes, 2, 3, None, natural_key(name))


def died_reading(blob: MemBlob, job: JobSpec, *files: InputFile) -> None:
    blob.set(job.key_of(input_copy(0, ".gz")), b"")
    with pytest.raises(SystemExit), reading(blob, job, 0, files, bool):
        raise SystemExit


def found(blob: MemBlob, begin: int = 0) -> list[Death]:
    return deaths_at_lower(blob, spec(0, begin=begin), NOW_MS)


def test_without_a_death_it_costs_one_listing(blob: Listed) -> None:
    assert found(blob) == []
    with stored(blob, spec(0)):
        assert found(blob) == []
    assert blob.calls == ["list", "list"]


def test_a_job_without_an_answer_has_died(blob: Listed) -> None:
    client = PersistClient(OpenLocation(blob, MemConsensus()))
    first, second = spec(1, age_ms=2), spec(2, age_ms=1)
    died_reading(blob, second, file("a"))
    for job in (first, second):
        with stored(blob, job):
            failure = job_failure(client, job, "exit code 137", exit_status=137)
        assert isinstance(failure, RunFailed)
        assert "The next try reads the files apart" in str(failure)
    assert [death.files for death in found(blob)] == [(), (identity(file("a")),)]
    assert found(blob, begin=3) == [], "a batch was committed meanwhile"


SPARKS_FAULTS = {
    "full": "Py4JJavaError: java.io.IOException: No space left on device",
    "many open files": "java.io.FileNotFoundException: /tmp/blockmgr-1/0c (Too many open files)",
    "another's folder": "java.io.IOException: Mkdirs failed to create file:/blobs/t/batches/x",
}


@pytest.mark.parametrize("why", ["stopped", "own error", "a merge", *SPARKS_FAULTS])
def test_other_ends_are_no_deaths(blob: Listed, why: str) -> None:
    client, job = PersistClient(OpenLocation(blob, MemConsensus())), spec(1)
    if why == "a merge":
        job = replace(job, config=MergeInputs(name="t", inputs=(), budget_bytes=1))
    died_reading(blob, job, file("a"))
    with stored(blob, job):
        if why == "own error":
            record_failure(blob, job, SourceChanged.kind, "the file changed")
        if why in SPARKS_FAULTS:
            record_failure(blob, job, "unexpected", SPARKS_FAULTS[why])
        status = {"stopped": STOPPED[0]}.get(why, 1 if why in SPARKS_FAULTS else 137)
        failure = named_failure(client, job) or job_failure(client, job, "seen", exit_status=status)
    assert "reads the files apart" not in str(failure)
    assert found(blob) == [], "nor does the file count that it was reading"


@pytest.mark.parametrize(("status", "later"), [(137, ""), (1, "\njava.lang.OutOfMemoryError: Java heap space")])
@pytest.mark.parametrize("why", SPARKS_FAULTS)
def test_a_fault_that_spark_survived_hides_no_death(blob: Listed, why: str, status: int, later: str) -> None:
    client, job = PersistClient(OpenLocation(blob, MemConsensus())), spec(1)
    with stored(blob, job):
        record_failure(blob, job, "unexpected", SPARKS_FAULTS[why] + later)
        failure = job_failure(client, job, "seen", exit_status=status)
    assert "reads the files apart" in str(failure)
    assert len(found(blob)) == 1


@pytest.mark.parametrize(
    ("token", "age_ms", "is_dead"), [("x", 0, True), ("other", DAY_MS - 1, False), ("other", DAY_MS + 1, True)]
)
def test_a_starter_that_died_with_its_job(blob: Listed, token: str, age_ms: int, is_dead: bool) -> None:
    """Dead for certain, if this try replaces it or after a day; else it may still be at work."""
    job = spec(1, token=token, age_ms=age_ms)
    blob.set(job.key, job.encode())
    died_reading(blob, job, file("a"))
    assert bool(found(blob)) is is_dead


def test_a_file_is_blamed_for_two_deaths_over_it_alone(blob: Listed) -> None:
    read = [[file("a")], [file("b")], [file("a"), file("b")], [file("b", size_bytes=9)], [file("b")]]
    for number, files in enumerate(read):
        died_reading(blob, spec(number + 1), *files)
        record_death(blob, spec(number + 1))
    assert blamed(found(blob)) == {identity(file("b")): 2}


def test_what_was_read_to_its_end_is_not_named(blob: Listed) -> None:
    with reading(blob, spec(1), 0, [file("a")], lambda _: True):
        pass
    with pytest.raises(SourceChanged), reading(blob, spec(1), 1, [file("b")], lambda _: False):
        raise SourceChanged("it changed")
    with pytest.raises(ConnectionError), reading(blob, spec(1), 2, [file("c")], lambda _: True):
        raise ConnectionError("the driver is gone")
    record_death(blob, spec(1))
    assert [death.files for death in found(blob)] == [(identity(file("c")),)]


def test_a_damaged_record_names_no_file(blob: Listed) -> None:
    blob.set(spec(1).key_of("reading-0.json"), b'["')
    record_death(blob, spec(1))
    assert found(blob) == [Death(spec(1).attempt)]
    blob.set(spec(2, age_ms=1).key, b"damaged")
    with pytest.raises(CorruptArtifact):
        found(blob)
