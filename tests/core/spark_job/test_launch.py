"""One job does a list of items: each is answered by itself, and one that fails leaves the others alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from persist_core.errors import InvalidInput, OutdatedDescription, RunFailed, ServerLost
from persist_core.handles.client import PersistClient
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.causes import Cause, find_cause
from persist_core.spark_job.deaths import deaths_at_lower
from persist_core.spark_job.launch import Ended, run_items, write_batches
from persist_core.spark_job.process import SparkProcess, tuned_conf
from persist_core.spark_job.spec import SMALL_INPUT_BYTES, JobSpec, load_spec
from tests.core.spark_job.test_job_spec import CONFIG, DESCRIPTION

NAMES = ("a", "b", "c")


@pytest.fixture
def client() -> PersistClient:
    return PersistClient(OpenLocation(MemBlob(), MemConsensus()))


def items(client: PersistClient) -> list[JobSpec]:
    return [JobSpec(replace(DESCRIPTION, shard=name), CONFIG, client.ids.uuid7()) for name in NAMES]


def test_each_item_of_a_job_has_its_own_answer(client: PersistClient) -> None:
    """One is staged, one says why it failed, and one kills the job, beside the others and alone."""
    attempts: list[str] = []

    def start(given: Sequence[JobSpec], arguments: Sequence[str]) -> Ended:
        assert [load_spec(client.blob, arguments[4 * n : 4 * n + 4]) for n in range(len(given))] == list(given)
        attempts.extend(spec.attempt for spec in given)
        if len(given) > 1:
            client.blob.set(given[0].answer_key, b"manifest")
            record_failure(client.blob, given[1], OutdatedDescription.kind, "the upper is 7")
        return Ended("exit code 137", exit_status=137)

    specs = items(client)
    staged, outdated, died = run_items(client, specs, start)
    assert staged == specs[0]
    assert (type(outdated), str(outdated)) == (OutdatedDescription, "the upper is 7")
    assert isinstance(died, RunFailed)
    assert "shard c" in str(died)
    assert len(set(attempts)) == 4, "the one without an answer runs again alone, as another attempt"
    assert not any(client.blob.get(spec.key) for spec in specs)
    later = [replace(spec, attempt=client.ids.uuid7()) for spec in specs]
    found = [len(deaths_at_lower(client.blob, spec, client.clock.now_ms())) for spec in later]
    assert found == [0, 0, 1]


def test_one_that_kills_spark_takes_no_other_with_it(client: PersistClient) -> None:
    """The driver outlives its JVM, and records for all what Spark's client says then: not one of our errors."""

    def start(given: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        if len(given) > 1:
            for spec in given:
                record_failure(client.blob, spec, "unexpected", "Py4JNetworkError: Answer from Java side is empty")
            return Ended("exit code 1", exit_status=1)
        if given[0].description.shard == "b":
            return Ended("exit code 137", exit_status=137)
        client.blob.set(given[0].answer_key, b"manifest")
        return Ended("", exit_status=0)

    a, b, c = run_items(client, items(client), start)
    assert [type(each) for each in (a, b, c)] == [JobSpec, RunFailed, JobSpec]
    found = [len(deaths_at_lower(client.blob, spec, client.clock.now_ms())) for spec in items(client)]
    assert found == [0, 1, 0]


@pytest.mark.parametrize("kills", [None, "b"])
def test_what_a_lost_server_ran_runs_again_together(client: PersistClient, kills: str | None) -> None:
    """Once, since the server may have been restarted; then an item alone that kills it again has died."""
    jobs: list[str] = []

    def start(given: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        names = [spec.description.shard for spec in given]
        jobs.append("".join(names))
        is_lost = len(jobs) == 1 or kills in names
        for spec in given:
            if is_lost and spec.description.shard != "a":
                record_failure(client.blob, spec, ServerLost.kind, "the server ended: StatusCode.UNAVAILABLE")
            else:
                client.blob.set(spec.answer_key, b"manifest")
        return Ended("", exit_status=1 if is_lost else 0)

    specs = items(client)
    found = dict(zip(NAMES, run_items(client, specs, start), strict=True))
    died = {name: str(each) for name, each in found.items() if not isinstance(each, JobSpec)}
    assert list(died) == [name for name in NAMES if name == kills]
    assert all("the server ended" in text and "check that it runs" not in text for text in died.values())
    assert all(isinstance(each, JobSpec | ServerLost) for each in found.values())
    assert jobs == (["abc", "bc"] if kills is None else ["abc", "bc", "b", "c"])
    blamed = [spec for spec in items(client) if deaths_at_lower(client.blob, spec, client.clock.now_ms())]
    assert [spec.description.shard for spec in blamed] == list(died)


def sixteen(client: PersistClient) -> list[JobSpec]:
    return [JobSpec(replace(DESCRIPTION, shard=f"s{n}"), CONFIG, client.ids.uuid7()) for n in range(16)]


@pytest.mark.parametrize("is_probed", [True, False])
def test_of_many_the_one_that_kills_spark_is_found_in_few_jobs(client: PersistClient, *, is_probed: bool) -> None:
    """Also if it is the one that runs alone to find out if Spark starts at all."""
    jobs: list[list[str]] = []
    killers: list[str] = []

    def start(given: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        jobs.append([spec.description.shard for spec in given])
        if len(jobs) == 2:
            killers.append(jobs[1][0] if is_probed else next(name for name in jobs[0] if name not in jobs[1]))
        if len(jobs) == 1 or set(killers) & set(jobs[-1]):
            return Ended("exit code 137", exit_status=137)
        for spec in given:
            client.blob.set(spec.answer_key, b"manifest")
        return Ended("", exit_status=0)

    specs = sixteen(client)
    found = run_items(client, specs, start)
    assert [spec.description.shard for spec, each in zip(specs, found, strict=True) if isinstance(each, RunFailed)] == (
        killers
    )
    sizes = [len(job) for job in jobs]
    assert sizes == [16, 1, 1, 7, 7] if is_probed else len(sizes) <= 12
    later = [replace(spec, attempt=client.ids.uuid7()) for spec in specs]
    blamed = [spec.description.shard for spec in later if deaths_at_lower(client.blob, spec, client.clock.now_ms())]
    assert blamed == killers


@pytest.mark.parametrize(
    ("cause", "starts"),
    [(None, [16, 1, 1]), (find_cause(["bin/java: No such file or directory", "JAVA_HOME is not set"]), [16])],
)
def test_spark_that_does_not_start_is_not_started_for_each(
    client: PersistClient, cause: Cause | None, starts: list[int]
) -> None:
    jobs: list[int] = []

    def start(given: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        jobs.append(len(given))
        return Ended("exit code 1", cause, 1)

    specs = sixteen(client)
    assert {type(each) for each in run_items(client, specs, start)} == {RunFailed}
    assert jobs == starts
    later = [replace(spec, attempt=client.ids.uuid7()) for spec in specs]
    blamed = [spec for spec in later if deaths_at_lower(client.blob, spec, client.clock.now_ms())]
    assert len(blamed) == len(starts) - 1, "of the others no file is looked at"


def test_a_large_input_has_a_job_of_its_own_after_the_small_ones(client: PersistClient) -> None:
    jobs: list[list[str]] = []

    def start(given: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        jobs.append([spec.description.shard for spec in given])
        for spec in given:
            client.blob.set(spec.answer_key, b"manifest")
        return Ended("", exit_status=0)

    sizes = {"a": 1, "b": SMALL_INPUT_BYTES + 1, "c": SMALL_INPUT_BYTES, "d": SMALL_INPUT_BYTES + 1}
    asked = [(CONFIG, replace(DESCRIPTION, shard=name, input_bytes=size)) for name, size in sizes.items()]
    answers = write_batches(client, start, asked)
    assert jobs == [["a", "c"], ["b"], ["d"]]
    assert [str(answer).partition("/")[0] for answer in answers] == list(sizes)


def test_what_was_staged_counts_though_the_job_was_stopped(client: PersistClient) -> None:
    def start(given: Sequence[JobSpec], _: Sequence[str]) -> Ended:
        client.blob.set(given[1].answer_key, b"manifest")
        record_failure(client.blob, given[2], OutdatedDescription.kind, "the upper is 7")
        raise RunFailed("took too long")

    specs = items(client)
    failed, staged, outdated = run_items(client, specs, start)
    assert isinstance(failed, RunFailed)
    assert (str(failed), staged) == ("took too long", specs[1])
    assert isinstance(outdated, OutdatedDescription)


def test_a_job_gets_the_settings_that_all_of_its_items_ask_for() -> None:
    both, one = {"spark.executor.memory": "2g"}, {"spark.executor.memory": "2g", "spark.sql.shuffle.partitions": "8"}
    specs = [JobSpec(DESCRIPTION, CONFIG.model_copy(update={"spark_conf": conf}), "x") for conf in (both, one)]
    asked = {**both, **one}
    assert {name: tuned_conf("yarn", specs[1:]).get(name) for name in asked} == one
    assert {name: tuned_conf("yarn", specs).get(name) for name in asked} == {**dict.fromkeys(one), **both}


def test_a_refused_start_leaves_no_folder(
    client: PersistClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    start = SparkProcess(PersistLocation("mem:", "mem:"), "sc://localhost:1", {"spark.executor.memory": "2g"})
    with pytest.raises(InvalidInput, match="takes its settings when it starts") as refused:
        start(items(client), [])
    assert refused.value
    assert list(tmp_path.iterdir()) == []
