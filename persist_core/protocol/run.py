"""The one driver of the write protocol: it repeats mint, write and append.

    rounds(...)           -> asks for a description to be written, appends it, again and again; its last step
    bring_up_to_date(...) -> RunReports: all rounds, their checkpoints and maintenance, as `persist run` makes them;
                             what several shards ask for at a time is written by one job

A run is a generator of descriptions: it is sent the key of each staged manifest, or thrown the error of its write. So
it knows neither how jobs are started nor what is written beside it; maintenance is handed in. The append task of
Airflow takes the same rounds after a conflict, and stops at the first commit. A process that is killed at any point
leaves nothing to clean up: the next run starts from the newest commit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.err_groups import ErrGroup
from persist_core.contents.stats import BatchWarning, correction_notice
from persist_core.errors import InvalidInput, OutdatedDescription, PersistError, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.protocol import describe, stages
from persist_core.protocol.stages import Conflict, Minted, NothingToDo
from persist_core.shard.state import Commit, Committed
from persist_core.sources.shards import ShardSource
from persist_core.sources.source import Source
from persist_core.time_text import show_interval

MAX_ROUNDS = 10_000  # each round commits whole files; a run that needs more has limits that are far too low
MAX_CONFLICTS = 10  # in one run; a writer that always wins needs one schedule for both, not more tries

Write = Callable[[BatchDescription], str]
"""Runs the write job for a description and returns the manifest's key. Raises `OutdatedDescription`."""

Maintain = Callable[[PersistClient, str], str | None]
"""Small maintenance of a shard after its checkpoint; what it did, for people. Never raises a `PersistError`."""


@dataclass(frozen=True)
class Round:
    """One commit, what went into it, and the stats and errors in groups of its manifest."""

    commit: Commit
    input_files: int
    input_bytes: int
    stats: Mapping[str, int]
    notices: tuple[str, ...]
    warnings: tuple[BatchWarning, ...] = ()
    err_groups: tuple[ErrGroup, ...] = ()

    @property
    def interval(self) -> str:
        return show_interval(self.commit.lower, self.commit.upper)


Step = Minted | Round | Conflict | NothingToDo

_Result = TypeVar("_Result")
Run = Generator[BatchDescription, str | None, _Result]
"""Yields each description that needs Spark; sent the key of its manifest, or thrown the error of its job."""


@dataclass(frozen=True)
class RunReport:
    """The result of a run: its rounds in order, why it ended, how many appends it lost, and how many inputs wait for a
    later run (`None`: they can't be listed, or were not looked for).

    `checkpoint_error`: why the last round has no checkpoint, which ended the run. The next run makes it.
    """

    shard: str
    rounds: tuple[Round, ...]
    reason: str
    conflicts: int
    pending: int | None
    checkpoint_error: PersistError | None = None


class _NoCheckpointError(Exception):
    """The checkpoint after a commit failed, which ends the run."""

    def __init__(self, cause: PersistError) -> None:
        self.cause = cause


def rounds(
    client: PersistClient,
    config: ShardConfig,
    *,
    until: int | None,
    writer: str,
    on_step: Callable[[Step], None],
    max_conflicts: int,
    max_rounds: int = MAX_ROUNDS,
    is_forced: bool,
    source: Source | None = None,
) -> Run[Step]:
    """Bring the shard up to `until` (ms; `None`, `is_forced`, `source`: see `stages.mint`). `on_step` sees each step.

    Returns the last step: `NothingToDo`, the conflict that is one too many (`max_conflicts`), or the round number
    `max_rounds`. Raises what the stages raise, and the errors that it is thrown but `OutdatedDescription`. Commits made
    before stay.
    """
    conflicts = done = 0
    while True:  # bounded by `max_rounds` and `max_conflicts`
        minted = stages.mint(client, config, until=until, writer=writer, is_forced=is_forced, source=source)
        on_step(minted)
        if isinstance(minted, NothingToDo):
            return minted
        description = minted.description
        key = yield from _staged(client, config, description)
        result = append_staged(client, config, description, key)
        if isinstance(result, Committed):
            manifest = client.manifest(result.commit)
            facts = (description.input_files, description.input_bytes, manifest.stats)
            step: Step = Round(result.commit, *facts, minted.notices, manifest.warnings, manifest.err_groups)
            done += 1
        else:
            step = result
            conflicts += 1
        on_step(step)
        if done >= max_rounds or conflicts >= max_conflicts:
            return step


def written(run: Run[_Result], write: Write) -> _Result:
    """The result of a run whose descriptions are written by `write`, one after another. Raises what the run raises."""
    (found,) = all_written([run], lambda asked: [write(description) for _, description in asked])
    if isinstance(found, PersistError):
        raise found
    return found


def all_written(
    runs: Sequence[Run[_Result]],
    write: Callable[[Sequence[tuple[int, BatchDescription]]], Sequence[str | PersistError]],
) -> list[_Result | PersistError]:
    """The result of each run, or the error that it raised. `write` gets what they ask for at a time, by number.

    It answers for each with the key of its manifest, or the error of its write.
    """
    ended: dict[int, _Result | PersistError] = {}
    answers: dict[int, str | PersistError | None] = dict.fromkeys(range(len(runs)))
    while answers:  # bounded, as each run is
        asked: list[tuple[int, BatchDescription]] = []
        for number, answer in answers.items():
            run = runs[number]
            try:
                description = run.throw(answer) if isinstance(answer, PersistError) else run.send(answer)
                asked.append((number, description))
            except StopIteration as end:
                ended[number] = end.value
            except PersistError as error:
                ended[number] = error
        try:
            found = write(asked) if asked else []
        except PersistError as error:
            found = [error] * len(asked)
        answers = {number: answer for (number, _), answer in zip(asked, found, strict=True)}
    return [ended[number] for number in range(len(runs))]


def _staged(client: PersistClient, config: ShardConfig, description: BatchDescription) -> Run[str | None]:
    try:
        return stages.write_without_input(client, config, description) or (yield description)
    except OutdatedDescription:
        return None


def write_staged(client: PersistClient, config: ShardConfig, description: BatchDescription, write: Write) -> str | None:
    """The write stage: the key of the staged manifest, `None` if the description is outdated and nothing was staged.

    `write` is called only for a description with input or operator state.
    """
    return written(_staged(client, config, description), write)


def append_staged(
    client: PersistClient, config: ShardConfig, description: BatchDescription, manifest_key: str | None
) -> Committed | Conflict:
    """The append stage for what `write_staged` returned. An outdated description is a conflict with its own record."""
    if manifest_key is None:
        manifest_key = stages.manifest_of_outdated(client, config, description)
    return stages.append(client, description, manifest_key)


@dataclass(frozen=True)
class RunRequest:
    """A collection or view, and how far to bring it: up to `until` (ms).

    `None` closes a collection, and refreshes a view as far as its inputs go. `is_forced`: see `stages.mint`.
    """

    config: ShardConfig
    until: int | None
    is_forced: bool = False


def bring_up_to_date(
    client: PersistClient,
    wanted: Sequence[RunRequest],
    *,
    write: Callable[[Sequence[tuple[ShardConfig, BatchDescription]]], Sequence[str | PersistError]],
    say: Callable[[str], None],
    maintain: Maintain = lambda _client, _shard: None,
) -> list[RunReport | PersistError]:
    """Bring shards up to date side by side: of each its report, or its error, which leaves the others alone.

    Each commit is followed by a checkpoint and `maintain`. `say` gets one line for each step. An error is what the
    stages and `write` raise, or `RunFailed` if other writers keep winning; all commits made before stay. The error
    of a checkpoint after a commit is in the report.

    `write` gets the descriptions that are to be written at a time, and answers for each as `Write` does, errors as
    values. A view whose input is among them may come too early: run it after that.
    """
    return all_written(
        [_run_of(client, each, say, maintain) for each in wanted],
        lambda asked: write([(wanted[number].config, description) for number, description in asked]),
    )


def _run_of(
    client: PersistClient, wanted: RunRequest, say: Callable[[str], None], maintain: Maintain
) -> Run[RunReport]:
    config = wanted.config
    if wanted.until is None and config.stays_open:
        raise InvalidInput(
            f"collection {config.name} must not be closed: end_of_input is 'keep_open'; write"
            " end_of_input: close in its file, or give a time"
        )
    done: list[Round] = []
    conflicts: list[Conflict] = []

    def on_step(step: Step) -> None:
        for line in _lines(config, step):
            say(line)
        if isinstance(step, Round):
            done.append(step)
        if isinstance(step, Round | NothingToDo):  # a run that died after its append left its checkpoint undone
            try:
                published = stages.checkpoint(client, config)
            except PersistError as error:
                if isinstance(step, Round):
                    raise _NoCheckpointError(error) from error
                raise
            for warning in published.warnings if published else ():
                say(f"warning: {warning}")
        if isinstance(step, Round):
            for line in filter(None, [maintain(client, config.name)]):
                say(line)
        elif isinstance(step, Conflict):
            conflicts.append(step)

    try:
        last = yield from rounds(
            client,
            config,
            until=wanted.until,
            writer=f"cli/{client.ids.uuid7()}",
            on_step=on_step,
            max_conflicts=MAX_CONFLICTS,
            is_forced=wanted.is_forced,
        )
    except _NoCheckpointError as end:
        reason = "committed; its checkpoint failed, and the next run makes it"
        say(f"warning: {config.name}: {reason}: {end.cause}")
        return RunReport(config.name, tuple(done), reason, len(conflicts), None, end.cause)
    if isinstance(last, NothingToDo):
        return RunReport(config.name, tuple(done), last.reason, len(conflicts), last.pending)
    if isinstance(last, Round):
        raise RunFailed(
            f"shard {config.name}: {MAX_ROUNDS} commits in one run, and there is more input. The commits are valid;"
            " raise limits.max_files, then run again"
        )
    raise RunFailed(
        f"shard {config.name}: lost {len(conflicts)} appends to other writers; the last one committed nothing. Run"
        f" `persist conflicts {config.name}` to see the writers, and let one schedule write this shard"
    )


def _lines(config: ShardConfig, step: Step) -> list[str]:
    if isinstance(step, Minted):
        described = step.description
        return [
            *step.notices,
            f"minted {described.interval} of {config.name}: {described.input_files} {config.input_noun},"
            f" {described.input_bytes} bytes",
        ]
    if isinstance(step, Round):
        corrected = correction_notice(config.name, step.stats)
        warned = [f"warning: {config.name}: {each}" for each in step.warnings]
        return [f"committed {step.interval} to {config.name}", *filter(None, [corrected]), *warned]
    if isinstance(step, Conflict):
        return [str(step.record)]
    return [] if step.pending == 0 else [f"warning: {step.reason}"]


def describe_dry_run(client: PersistClient, config: ViewConfig, until: int | None) -> tuple[int, BatchDescription]:
    """The time and the description of a read-only refresh of a view, as far as its inputs and `until` go.

    Changes nothing. Raises `OutsideFrontiers` if the inputs have no time in common yet.
    """
    as_of = ShardSource(client, config).dry_run_time(until)
    return as_of, describe.dry_run_description(client, config, as_of)
