"""A run of one collection or view without Airflow: the same mint, write, append and checkpoint, one after the other.

    mint -> write (spark-submit, or nothing to write) -> append -> checkpoint -> mint ... until there is nothing to do

A run is several rounds where the limits of a collection or the dates of its files say so, and where somebody else wins
an append: then the same input is minted again from the new upper. Killed at any point, the next run goes on from the
newest commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput, OutdatedDescription, RunFailed
from persist_core.frontier import Frontier, interval
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Conflict, NothingToDo
from persist_core.shard.batch import BatchDescription
from persist_core.shard.state import Commit
from persist_core.shard.stats import Trial, correction_notice
from persist_core.sources.shards import ShardSource
from persist_core.spark_job.submit import SparkSettings, try_view, write_batch

MAX_ROUNDS = 10_000  # each commits whole files; more rounds than that in one run is a limit set far too low
MAX_CONFLICTS = 10  # in one run: another writer that always wins is a schedule to mend, not to race

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Round:
    """One commit of this run."""

    commit: Commit
    input_files: int
    input_bytes: int
    stats: Mapping[str, int]
    notices: tuple[str, ...]

    @property
    def interval(self) -> str:
        """`[lower, upper)`."""
        return interval(Frontier(self.commit.lower), Frontier(self.commit.upper))


@dataclass(frozen=True)
class RunReport:
    """What a run did: its commits in order (none: all was there), why it ended, and lost appends on the way."""

    shard: str
    rounds: tuple[Round, ...]
    reason: str
    conflicts: int


def bring_up_to_date(
    client: PersistClient,
    location: PersistLocation,
    config: ShardConfig,
    *,
    until: int | None,
    settings: SparkSettings,
    say: Callable[[str], None],
) -> RunReport:
    """Bring the shard of a collection or view up to `until` (ms). `say` is told one line for each thing done.

    `until=None` closes a collection, and takes a view as far as its inputs are.

    Raises what the stages raise; `RunFailed` where other writers keep winning. All commits made before stay.
    """
    if until is None and isinstance(config, CollectionConfig) and config.end_of_input != "close":
        raise InvalidInput(f"collection {config.name} is not to be closed; write end_of_input: close, or give a time")
    writer = f"cli/{client.ids.uuid7()}"
    rounds: list[Round] = []
    conflicts = 0
    for _ in range(MAX_ROUNDS):
        minted = stages.mint(client, config, until=until, writer=writer)
        if isinstance(minted, NothingToDo):
            stages.checkpoint(client, config)  # a run that died after its append left this to us
            return RunReport(config.name, tuple(rounds), minted.reason, conflicts)
        description = minted.description
        for notice in minted.notices:
            say(notice)
        say(
            f"minted {description.interval} of {config.name}: {description.input_files} {input_noun(config)},"
            f" {description.input_bytes} bytes"
        )
        done = _write_and_append(client, location, config, description, settings, say)
        if done is None:
            conflicts += 1
            if conflicts > MAX_CONFLICTS:
                raise RunFailed(
                    f"lost {conflicts} appends to shard {config.name} to other writers; nothing of the last one was"
                    " committed. See `persist conflicts`, and let one schedule write this shard"
                )
            continue
        commit, manifest_key = done
        stages.checkpoint(client, config)
        stats = client.staged_manifest(manifest_key).stats
        corrected = correction_notice(config.name, stats)
        if corrected is not None:
            say(corrected)
        rounds.append(Round(commit, description.input_files, description.input_bytes, stats, minted.notices))
    raise RunFailed(f"shard {config.name} took {MAX_ROUNDS} commits and is not done; raise limits.max_files")


def _write_and_append(
    client: PersistClient,
    location: PersistLocation,
    config: ShardConfig,
    description: BatchDescription,
    settings: SparkSettings,
    say: Callable[[str], None],
) -> tuple[Commit, str] | None:
    """The commit and its manifest's key, or `None` where somebody else advanced the shard."""
    try:
        manifest_key = stages.write_without_input(client, config, description)
        if manifest_key is None:
            say(f"writing {description.interval} with Spark ({settings.master})")
            manifest_key = write_batch(client, location, config, description, settings)
    except OutdatedDescription as outdated:
        say(str(outdated))
        return None
    result = stages.append(client, description, manifest_key)
    if isinstance(result, Conflict):
        say(str(result.record))
        return None
    say(f"committed {description.interval} to {config.name}")
    return result.commit, manifest_key


def try_out(
    client: PersistClient,
    location: PersistLocation,
    config: ViewConfig,
    *,
    until: int | None,
    settings: SparkSettings,
    say: Callable[[str], None],
) -> Trial:
    """What a refresh of the view would write now, as far as its inputs and `until` go. Changes nothing at all.

    Raises `OutsideFrontiers` where the inputs have no time in common yet, and what the job raises.
    """
    as_of = ShardSource(config, client).trial_time(until)
    say(f"trying {config.name} as of {as_of} with Spark ({settings.master}); nothing is written")
    description = stages.trial_description(client, config, as_of)
    return try_view(client, location, config, description, as_of, settings)


def input_noun(config: ShardConfig) -> str:
    """What `input_files` counts."""
    return "files" if isinstance(config, CollectionConfig) else "inputs"


def default_until(config: ShardConfig, now_ms: int) -> int | None:
    """Up to when the input is final by now: now; where times come from the path, the start of the current period.

    So the files of a day (hour, month) are taken when it is over, and none of them is late. A view: `None`, as far as
    its inputs are.
    """
    if not isinstance(config, CollectionConfig):
        return None
    date_format = config.source_pattern().date_format
    if config.time.source != "path" or date_format is None:
        return now_ms
    now = _EPOCH + timedelta(milliseconds=now_ms)
    start = now.replace(minute=0, second=0, microsecond=0)
    if "%H" not in date_format:
        start = start.replace(hour=0)
    if "%d" not in date_format:
        start = start.replace(day=1)
    if "%m" not in date_format:
        start = start.replace(month=1)
    return (start - _EPOCH) // timedelta(milliseconds=1)
