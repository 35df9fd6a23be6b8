"""Runs Spark jobs: stores what a job is to do, has it started, and reads what it left.

    items: JobSpec.. --stored--> start(items, arguments) --Ended--> of each item <attempt>/manifest.json (of a dry run
        its report), or <attempt>/failure.json, raised as the error that it names

How a job is started is a strategy: a process of its own (`spark_job.process`), or whatever an Airflow connection says
(`persist_airflow.spark`). One job does a list of items, each in a session of its own and with an answer of its own; an
item that fails leaves the others alone. The job only stages: it changes nothing that a reader sees.

    Merge ──merge_spec──> JobSpec ──> the job ──> manifest ──replace_inputs──> Replaced
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from persist_core.compaction.merge import Merge, replace_inputs
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.stats import DryRun
from persist_core.errors import OutdatedDescription, PersistError, RunFailed, ServerLost
from persist_core.handles.client import PersistClient
from persist_core.keys import jobs_prefix
from persist_core.shard.replace import NotReplaced, Replaced
from persist_core.spark_job.answer import job_failure, named_failure
from persist_core.spark_job.causes import ENVIRONMENT, STOPPED, Cause
from persist_core.spark_job.spec import SMALL_INPUT_BYTES, SPEC, JobSpec, MergeInputs, stored

PROBES = 2  # items that run alone, to find out if Spark starts at all: one of them may be what kills it


@dataclass(frozen=True)
class Ended:
    """The end of a job. `seen` is what its starter saw, for people; `exit_status` is `None` if it is not known."""

    seen: str
    cause: Cause | None = None
    exit_status: int | None = None


Start = Callable[[Sequence[JobSpec], Sequence[str]], Ended]
"""Runs one job for these items, with these arguments, to its end. Raises what says that the job could not be run."""


def run_items(client: PersistClient, items: Sequence[JobSpec], start: Start) -> list[JobSpec | PersistError]:
    """Run one job for all items: of each the attempt that has answered, or the error that it ended with.

    If items of several have no answer and name no error of ours, as when the job died, they run again in two halves,
    under other attempts, down to one alone: so one that kills Spark takes no other with it. If nothing at all was
    answered, one runs alone first, and then another one; if both die too, Spark does not start, and no more is tried.
    Nor is it if the job names a cause that is not its items'. Items whose Connect server ended run again together
    first, since it may have been restarted. `OutdatedDescription`, `TooManyErrors` ... if the item left a failure
    record; `RunFailed` if it did not, or what `start` raised.
    """
    return _run(client, items, start, is_alive=False, is_first=True)


def _run(
    client: PersistClient, items: Sequence[JobSpec], start: Start, *, is_alive: bool, is_first: bool = False
) -> list[JobSpec | PersistError]:
    """See `run_items`. `is_alive`: a job has answered before. `is_first`: none of the items has run before."""
    try:
        with ExitStack() as stack:
            ended = start(items, [part for item in items for part in stack.enter_context(stored(client.blob, item))])
    except PersistError as error:
        return [_found(client, item) or error for item in items]
    answers = {number: answer for number, item in enumerate(items) if (answer := _found(client, item)) is not None}
    gone = {number: items[number] for number, answer in answers.items() if isinstance(answer, ServerLost)}
    if gone and is_first and ended.exit_status not in STOPPED:
        again = [replace(item, attempt=client.ids.uuid7()) for item in gone.values()]
        answers |= zip(gone, _run(client, again, start, is_alive=len(answers) > len(gone)), strict=True)
    else:
        answers = {number: answer for number, answer in answers.items() if number not in gone}
    is_environment = ended.cause is not None and ended.cause.what in ENVIRONMENT
    if len(items) > 1 and not is_environment and ended.exit_status not in STOPPED:
        lost = {number: item for number, item in enumerate(items) if number not in answers}
        answers |= _run_again(client, lost, start, is_alive=is_alive or bool(answers))
    alone = len(items) == 1
    return [
        answers.get(number) or job_failure(client, item, ended.seen, ended.cause, ended.exit_status, is_alone=alone)
        for number, item in enumerate(items)
    ]


def _run_again(
    client: PersistClient, lost: Mapping[int, JobSpec], start: Start, *, is_alive: bool
) -> dict[int, JobSpec | PersistError]:
    """The answers of items that a job for several has lost; of all, or of the probes alone if nothing answers."""
    rest = {number: replace(item, attempt=client.ids.uuid7()) for number, item in lost.items()}
    answers: dict[int, JobSpec | PersistError] = {}
    by_chance = sorted(rest, key=lambda number: rest[number].attempt[-12:])  # another try probes others
    for number in by_chance[: 0 if is_alive else PROBES]:
        (answers[number],) = _run(client, [rest.pop(number)], start, is_alive=False)
        is_alive = not isinstance(answers[number], RunFailed)
        if is_alive:
            break
    numbers = list(rest) if is_alive else []
    half = (len(numbers) + 1) // 2
    for part in filter(None, (numbers[:half], numbers[half:])):  # shorter than what was lost, so this ends
        answers |= zip(part, _run(client, [rest[number] for number in part], start, is_alive=True), strict=True)
    return answers


def _found(client: PersistClient, item: JobSpec) -> JobSpec | PersistError | None:
    answer = client.blob.get(item.answer_key)  # the job writes it last
    return named_failure(client, item) if answer is None else item


def run_job(client: PersistClient, item: JobSpec, start: Start) -> bytes:
    """Run one job for one item: its answer. Raises its error: see `run_items`."""
    (found,) = run_items(client, [item], start)
    if isinstance(found, PersistError):
        raise found
    return client.blob.get(found.answer_key) or b""


def write_batches(
    client: PersistClient, start: Start, asked: Sequence[tuple[ShardConfig, BatchDescription]]
) -> list[str | PersistError]:
    """Stage the batch of each description: its manifest's key, or its error.

    One job for all small ones that ask for the same settings of Spark; a large one has a job of its own, after them.
    """
    found: dict[int, JobSpec | PersistError] = {}
    items = [JobSpec(description, config, client.ids.uuid7()) for config, description in asked]
    for group in _by_settings(items):
        found |= zip(group, run_items(client, [items[number] for number in group], start), strict=True)
    answers = [found[number] for number in range(len(items))]
    return [each if isinstance(each, PersistError) else each.answer_key for each in answers]


def staged_before(client: PersistClient, config: ShardConfig, description: BatchDescription) -> str | None:
    """The key of the manifest that an earlier try, whose starter was killed, has staged for just this."""
    for entry in client.blob.list_keys_and_metadata(jobs_prefix(description.shard, description.lower)):
        data = client.blob.get(entry.key) if entry.key.endswith(f"/{SPEC}") else None
        if data is not None:
            spec = JobSpec.decode(data, what=entry.key)
            is_same = (spec.description, spec.config) == (description, config)
            if is_same and client.blob.get(spec.answer_key) is not None:
                return spec.answer_key
    return None


def _by_settings(items: Sequence[JobSpec]) -> list[list[int]]:
    """The numbers of the items of each job: see `write_batches`."""
    groups: dict[tuple[int, frozenset[tuple[str, str]]], list[int]] = defaultdict(list)
    for number, item in enumerate(items):
        own = number + 1 if item.description.input_bytes > SMALL_INPUT_BYTES else 0
        groups[own, frozenset(item.spark_conf.items())].append(number)
    return [groups[each] for each in sorted(groups, key=lambda each: each[0])]


def write_batch(client: PersistClient, start: Start, config: ShardConfig, description: BatchDescription) -> str:
    """Stage the batch of `description` with one Spark job and return its manifest's key. Raises as `run_job`."""
    (found,) = write_batches(client, start, [(config, description)])
    if isinstance(found, PersistError):
        raise found
    return found


def dry_run_view(
    client: PersistClient, start: Start, config: ViewConfig, description: BatchDescription, as_of: int
) -> DryRun:
    """The updates of a refresh of the view at `as_of`. Mints and stages nothing; raises as `run_job`."""
    item = JobSpec(description, config, client.ids.uuid7(), dry_run_as_of=as_of)
    data = run_job(client, item, start)
    client.blob.delete(item.answer_key)
    return DryRun.decode(data)


def merge_spec(merge: Merge, attempt: str) -> JobSpec:
    """The job that stages the run of this merge. `attempt` is a fresh UUIDv7."""
    digests = tuple(batch.manifest_sha256 for batch in merge.inputs)
    newest = merge.manifests[-1]
    description = BatchDescription(
        shard=merge.shard,
        lower=merge.inputs[0].lower,
        upper=merge.inputs[-1].upper,
        token=newest.token,
        checkpoint_id=newest.checkpoint_id,
        epoch=newest.epoch,
        parent_id=None,
        writer="compaction",
        input_files=sum(len(manifest.parts) for manifest in merge.manifests),
        input_bytes=merge.size_bytes,
    )
    inputs = MergeInputs(name=merge.shard, inputs=digests, budget_bytes=merge.budget_bytes)
    return JobSpec(description, inputs, attempt)


def merge_by_job(client: PersistClient, start: Start, merge: Merge) -> Replaced | NotReplaced:
    """Stage the run of the merge with a job, and put it in place. Raises as `run_job`."""
    spec = merge_spec(merge, client.ids.uuid7())
    try:
        run_job(client, spec, start)
    except OutdatedDescription as error:
        return NotReplaced(str(error))
    return replace_inputs(client, client.staged_manifest(spec.answer_key), spec.answer_key)
