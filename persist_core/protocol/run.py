"""The one driver of the write protocol: it repeats mint, write and append.

    rounds(...)            -> Minted, then Round or Conflict, again and again; at the end NothingToDo
    bring_up_to_date(...)  -> RunReport: all rounds, their checkpoints and maintenance, as `persist run` makes them

The append task of Airflow takes the same rounds after a conflict, and stops at the first commit. The write stage's job
and maintenance are handed in as callables, so that this module does not know how jobs are started, nor what maintenance
is. A process that is killed at any point leaves nothing to clean up: the next run starts from the newest commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.err_groups import ErrGroup
from persist_core.contents.stats import BatchWarning, correction_notice
from persist_core.errors import InvalidInput, OutdatedDescription, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.protocol import describe, stages
from persist_core.protocol.stages import Conflict, Minted, NothingToDo
from persist_core.shard.state import Commit, Committed
from persist_core.sources.shards import ShardSource
from persist_core.time_text import first_instant, local_of, show_interval

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
        """From lower to upper, for messages."""
        return show_interval(self.commit.lower, self.commit.upper)


Step = Minted | Round | Conflict | NothingToDo


@dataclass(frozen=True)
class RunReport:
    """The result of a run: its rounds in order, why it ended, and how many appends it lost."""

    shard: str
    rounds: tuple[Round, ...]
    reason: str
    conflicts: int


def rounds(
    client: PersistClient,
    config: ShardConfig,
    *,
    until: int | None,
    writer: str,
    write: Write,
    max_conflicts: int,
    is_forced: bool = False,
) -> Iterator[Step]:
    """Yield each step of bringing the shard up to `until` (ms; `None` and `is_forced`: see `stages.mint`).

    The last step is `NothingToDo`, or the conflict that is one too many (`max_conflicts`); the caller may stop after
    any step. Commits made before stay. Raises what the stages and `write` raise, and `RunFailed` after `MAX_ROUNDS`.
    """
    conflicts = 0
    for _ in range(MAX_ROUNDS):
        minted = stages.mint(client, config, until=until, writer=writer, is_forced=is_forced)
        yield minted
        if isinstance(minted, NothingToDo):
            return
        description = minted.description
        result = append_staged(client, config, description, write_staged(client, config, description, write))
        if isinstance(result, Committed):
            manifest = client.manifest(result.commit)
            facts = (description.input_files, description.input_bytes, manifest.stats)
            yield Round(result.commit, *facts, minted.notices, manifest.warnings, manifest.err_groups)
            continue
        yield result
        conflicts += 1
        if conflicts >= max_conflicts:
            return
    raise RunFailed(
        f"shard {config.name}: {MAX_ROUNDS} commits in one run, and there is more input. The commits are valid; raise"
        " limits.max_files, then run again"
    )


def write_staged(client: PersistClient, config: ShardConfig, description: BatchDescription, write: Write) -> str | None:
    """The write stage: the key of the staged manifest, `None` if the description is outdated and nothing was staged.

    `write` is called only for a description with input or operator state.
    """
    try:
        return stages.write_without_input(client, config, description) or write(description)
    except OutdatedDescription:
        return None


def append_staged(
    client: PersistClient, config: ShardConfig, description: BatchDescription, manifest_key: str | None
) -> Committed | Conflict:
    """The append stage for what `write_staged` returned. An outdated description is a conflict with its own record."""
    if manifest_key is None:
        manifest_key = stages.manifest_of_outdated(client, config, description)
    return stages.append(client, description, manifest_key)


def bring_up_to_date(
    client: PersistClient,
    config: ShardConfig,
    *,
    until: int | None,
    write: Write,
    say: Callable[[str], None],
    maintain: Maintain = lambda _client, _shard: None,
    is_forced: bool = False,
) -> RunReport:
    """Bring the shard of a collection or view up to `until` (ms), with a checkpoint and `maintain` after each commit.

    `until=None` closes a collection, and refreshes a view as far as its inputs go. `say` gets one line for each step.
    Raises what `rounds` raises, and `RunFailed` if other writers keep winning. All commits made before stay.
    """
    if until is None and isinstance(config, CollectionConfig) and config.end_of_input != "close":
        raise InvalidInput(
            f"collection {config.name} must not be closed: end_of_input is {config.end_of_input!r}; write"
            " end_of_input: close in its file, or give a time"
        )
    done: list[Round] = []
    conflicts = 0
    writer = f"cli/{client.ids.uuid7()}"
    for step in rounds(
        client, config, until=until, writer=writer, write=write, max_conflicts=MAX_CONFLICTS, is_forced=is_forced
    ):
        for line in _lines(config, step):
            say(line)
        if isinstance(step, Conflict):
            conflicts += 1
        elif isinstance(step, Round):
            _checkpoint(client, config, say)
            for line in filter(None, [maintain(client, config.name)]):
                say(line)
            done.append(step)
        elif isinstance(step, NothingToDo):
            _checkpoint(client, config, say)  # a run that died after its append left this undone
            return RunReport(config.name, tuple(done), step.reason, conflicts)
    raise RunFailed(
        f"shard {config.name}: lost {conflicts} appends to other writers; the last one committed nothing. Run"
        f" `persist conflicts {config.name}` to see the writers, and let one schedule write this shard"
    )


def _checkpoint(client: PersistClient, config: ShardConfig, say: Callable[[str], None]) -> None:
    report = stages.checkpoint(client, config)
    for warning in () if report is None else report.warnings:
        say(f"warning: {warning}")


def _lines(config: ShardConfig, step: Step) -> list[str]:
    """The line that a user sees for a step."""
    if isinstance(step, Minted):
        described = step.description
        return [
            *step.notices,
            f"minted {described.interval} of {config.name}: {described.input_files} {input_noun(config)},"
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


def input_noun(config: ShardConfig) -> str:
    """The counts of `input_files`."""
    return "files" if isinstance(config, CollectionConfig) else "inputs"


def default_until(config: ShardConfig, now_ms: int) -> int | None:
    """The time before which the input is final: now, or the start of the current period if times come
    from the path.

    So the files of a day (hour, month) are read when it is over, and no file is late. `None` for a view: it goes as far
    as its inputs.
    """
    if not isinstance(config, CollectionConfig):
        return None
    date_format = config.source_pattern().date_format
    if config.time.source != "path" or date_format is None:
        return now_ms
    start = local_of(now_ms, config.timezone).replace(minute=0, second=0, microsecond=0)
    if "%H" not in date_format:
        start = start.replace(hour=0)
    if "%d" not in date_format:
        start = start.replace(day=1)
    if "%m" not in date_format:
        start = start.replace(month=1)
    return first_instant(start, config.timezone)
