"""Replay: a hidden fork of a collection consumes again, as they are now, the inputs that the shard has consumed since.

    day ──start_for──> checkpoint before it ──fork──> NAME~reprocess ──rounds, up to the shard's upper──> its state

1. A reprocess is a restore whose checkpoint belongs to the fork: `correct` appends the difference between the two.
2. The fork is written by the ordinary stages. What a killed replay has committed stays, and the next one goes on there.
3. If records get the time of their commit, and a later record wins, the order of the commits decides. Then
   each file is taken in the same turn as the shard took it; a file that is new, by the date in its path.
4. A file that the shard has not consumed is left to its next run if its path has no date, or one of a day that is not
   over at the shard's upper: corrections and swaps move the upper into that day.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.config.collection import FILES, CollectionConfig
from persist_core.contents.batch import BatchDescription, SourceFrontier, last_time
from persist_core.contents.derived import Restored
from persist_core.errors import InvalidInput, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.handles.erased import last_erased
from persist_core.keys import hidden_shard
from persist_core.protocol import stages
from persist_core.protocol.delta import BEGINNING
from persist_core.protocol.restore_point import FIRST_UPPER
from persist_core.protocol.run import MAX_CONFLICTS, Round, Step, rounds, written
from persist_core.protocol.stages import Conflict
from persist_core.shard.state import ShardState
from persist_core.sources.collection import CollectionSource
from persist_core.sources.files import HoldBack
from persist_core.time_text import MAX_TIME, show_time

PURPOSE = "reprocess"
NO_LIMIT = 1 << 40  # of files in one round: records get the time of their round, so a day is not split

WriteOf = Callable[[CollectionConfig, BatchDescription], str]
"""Runs the write job for a description of this collection; as `run.Write`."""

Turn = tuple[int, HoldBack]
"""Up to which time the fork consumes, and which files it leaves for later turns."""


@dataclass(frozen=True)
class Start:
    """Where a replay begins: after time `after`, with this progress. `checkpoint_id` is `None` for the beginning.

    `inputs_end`: no input of that time or later was consumed. After a restore or a correction the upper may be later.
    `in_time_from`: what is read next is late if it is dated before that (`time.late`). `restored_from`: the checkpoint
    that this point has gone back or forward to.
    """

    checkpoint_id: str | None
    after: int
    progress: SourceFrontier | None
    epoch: int = 0
    inputs_end: int = 0
    in_time_from: int = 0
    restored_from: str | None = None

    @property
    def upper(self) -> int:
        """The fork's first upper."""
        return FIRST_UPPER if self.after == BEGINNING else self.after + 1


def starts(client: PersistClient, state: ShardState) -> Iterator[Start]:
    """All points that a replay can begin at, newest first.

    Not one that a later correction or restore has gone back behind: it holds what was undone.
    """
    ends = _inputs_ends(state, restores(client, state))
    for each in _points(client, state):
        if each.checkpoint_id is None or not state.past.has_undone(each.upper):
            yield replace(each, inputs_end=ends.get(each.epoch, each.inputs_end))


def _points(client: PersistClient, state: ShardState) -> Iterator[Start]:
    """The points after commits whose checkpoints are kept, newest first, and the beginning."""
    listing = Checkpointer(client.blob, state.shard, state.origin.life).listing(threads=client.fetch_threads)
    for manifest in reversed(listing.manifests):
        upper = manifest.shard.upper if manifest.shard else None
        if upper is None or (state.since.time or 0) >= upper:
            continue
        end = upper if manifest.restored_from is None or manifest.watermark is None else manifest.watermark
        in_time_from = upper if manifest.in_time_from is None else manifest.in_time_from
        progress, restored_from = manifest.sources.get(FILES), manifest.restored_from
        yield Start(
            manifest.checkpoint_id, last_time(upper), progress, manifest.epoch, end, in_time_from, restored_from
        )
    yield Start(None, BEGINNING, None)


def start_for(client: PersistClient, config: CollectionConfig, state: ShardState, from_ms: int) -> Start:
    """The newest point before any input of `from_ms` or later was consumed. `InvalidInput` if `from_ms` is too late.

    Its upper may be later than `from_ms`: a commit that is a change moves the upper and takes in no input of that day.
    With `time.late: error` not so far that input of `from_ms` is late, as it is after a restore. Nor is it the shard's
    upper, up to which a replay reads nothing, if files of these days wait, as they do after a restore.
    """
    upper = state.upper.time
    if upper is None or upper == MAX_TIME or upper <= FIRST_UPPER or state.schema is None:
        raise InvalidInput(f"shard {state.shard} is closed or empty (upper {state.upper}): there is nothing to correct")
    if from_ms >= upper:
        raise InvalidInput(
            f"--from is {show_time(from_ms)}; expected a time before the upper of shard {state.shard},"
            f" {show_time(state.upper.time)}: later input has not been consumed, and the next run takes it as it is"
        )
    files, due = CollectionSource(client, config).files, config.default_until(upper)

    def is_before(point: Start) -> bool:
        if point.checkpoint_id is None or point.upper <= from_ms:
            return True
        if point.inputs_end > from_ms or (config.time.late == "error" and point.in_time_from > from_ms):
            return False
        dates = (facts[2] for facts in files.consumed(point.progress, like=point.progress).values())
        if any(date_ms is not None and date_ms >= from_ms for date_ms in dates):
            return False
        if point.upper < upper:
            return True
        waiting = files.inputs_now(point.progress, point.progress).waiting.values()
        return not any(date_ms is not None and from_ms <= date_ms < due for date_ms in waiting)

    return next(filter(is_before, starts(client, state)))


def _inputs_ends(state: ShardState, restored: Mapping[int, Restored]) -> dict[int, int]:
    """`Start.inputs_end` by the epochs of the commits that are still known: of changes in a row it is the run's before.

    A correction takes in what the shard had consumed, and files of days that were over. Any other restore goes to a
    point that may be newer than the commit before it, so only its watermark counts.
    """
    ends: dict[int, int] = {}
    end: int | None = None
    for commit in state.commits:
        lower, upper = commit.lower, MAX_TIME if commit.upper is None else commit.upper
        before = lower if end is None else end
        if (origin := restored.get(commit.epoch)) is not None:
            end = upper if origin.watermark is None else origin.watermark
            if origin.correction is not None and end <= lower:
                end = min(before, end)
        else:
            end = before if commit.is_change else upper
        ends[commit.epoch] = end
    return ends


def replay_config(config: CollectionConfig, hidden: str | None = None) -> CollectionConfig:
    """The collection as a hidden shard reads it (default: its replay): nothing is given up, and no commit is split.

    Each listing is whole: files of any date may be left for later turns.
    """
    update: dict[str, object] = {"name": hidden or hidden_shard(config.name, PURPOSE), "history": "all"}
    if config.time.source != "path":
        update["limits"] = config.limits.model_copy(update={"max_files": NO_LIMIT, "max_bytes": None})
    if config.source.is_on_s3 and config.source_pattern().date_format is not None:
        update["source"] = config.source.model_copy(update={"look_back": "all"})
    return config.model_copy(update=update)


def replay(
    client: PersistClient,
    fork: CollectionConfig,
    turns: Sequence[Turn],
    *,
    write: WriteOf,
    writer: str,
    say: Callable[[str], None],
    on_round: Callable[[], object],
) -> None:
    """Bring a hidden shard, `fork` (`replay_config`), up to the end of the last turn. `on_round` comes after each
    commit.

    Raises what `rounds` and `on_round` raise, and `RunFailed` if another replay of the same fork keeps winning.
    """
    shard = fork.name.partition("~")[0]

    def seen(step: Step) -> None:
        if isinstance(step, Round):
            stages.checkpoint(client, fork)
            on_round()
            say(f"replayed {step.interval} of {shard}: {step.input_files} files, {step.input_bytes} bytes")
            for each in step.warnings:
                say(f"warning: {shard}: {each}")
        elif isinstance(step, Conflict):
            say(str(step.record))

    for until, holds_back in turns:
        known = client.machine.fetch(fork.name)
        if known is not None and until <= (known.upper.time or 0):
            continue
        run = rounds(
            client,
            fork,
            until=until,
            writer=writer,
            on_step=seen,
            max_conflicts=MAX_CONFLICTS,
            is_forced=True,
            source=CollectionSource(client, fork, holds_back),
        )
        written(run, functools.partial(write, fork))
        if (client.state(fork.name).upper.time or 0) < until:
            raise RunFailed(f"{fork.name} did not reach {show_time(until)}; {shard} was not changed. Try again")


def turns_of(
    client: PersistClient,
    config: CollectionConfig,
    state: ShardState,
    start: Start,
    *,
    warn: Callable[[], object] | None = None,
) -> list[Turn]:
    """The turns of a replay up to the shard's upper, one after the other.

    Raises `InvalidInput` if the order of commits decides, and is no longer known. A rebuild has a `warn`, which is
    called instead: it takes the turns as far as they are known, in any order, and so keeps the times of commits.
    """
    files, end = CollectionSource(client, config).files, state.upper.time or 0
    consumed = functools.partial(files.consumed, like=start.progress)  # names as in the fork
    known = consumed(state.sources.get(FILES))
    turn_of: dict[str, int] = {}
    is_log = config.order.mode == "log"
    if config.time.source == "description" and (is_log or warn is not None):
        if is_log and start.after < (erased_at := last_erased(client, state)):
            raise InvalidInput(
                f"keys were erased from collection {state.shard} at {show_time(erased_at)}. It is in log order, and its"
                " records have no time of their own: a replay from before would bring the keys back. Begin later, or"
                " drop the correct records as a new file. Nothing was changed"
            )
        before, epoch, unknown = consumed(start.progress), start.epoch, None
        turn_of = dict.fromkeys(before, start.upper)
        turns_at: dict[str | None, dict[str, int]] = {}
        for each in _points_since(client, state, start):
            taken = before if each.progress is None else consumed(each.progress)
            read = {name for name in taken if name not in before or (before[name][3] and not taken[name][3])}
            then = turns_at.get(each.restored_from, {})  # a restore puts back what was read in these turns
            turn_of, read = turn_of | then, read - then.keys()
            if each.epoch > epoch + 1 and len(read) > 1:
                unknown = each
            # A correction takes files by their dates, and one that was set aside in the turn in which it was.
            turn = start.upper if each.upper in state.past.corrected else each.upper
            turn_of = {name: max(turn, turn_of.get(name, turn)) if name in read else turn_of[name] for name in taken}
            turns_at[each.checkpoint_id] = turn_of
            before, epoch = taken, each.epoch
        if unknown is not None and warn is None:
            raise InvalidInput(_order_unknown(client, state, unknown))
        if unknown is not None and warn is not None and is_log:
            warn()
    uppers = sorted({upper for upper in turn_of.values() if start.upper < upper < end})
    later = [frozenset(name for name in known if turn_of.get(name, end) > upper) for upper in uppers]
    due = config.default_until(end)
    return [
        (upper, _held(known, names, due)) for upper, names in zip((*uppers, end), (*later, frozenset()), strict=True)
    ]


def is_as_read(
    client: PersistClient,
    config: CollectionConfig,
    state: ShardState,
    earlier: SourceFrontier | None,
    turns: Sequence[Turn],
) -> bool:
    """True if the files that the shard has consumed since `earlier` are there as they were; and no other that the turns
    up to its upper would have taken. Raises `ConfigError` if the collection reads other files."""
    now = CollectionSource(client, config).files.inputs_now(state.sources.get(FILES), earlier)
    return not (now.replaced or now.gone or _has_missed(turns, state.upper.time or 0, now.waiting))


def _has_missed(turns: Sequence[Turn], upper: int, waiting: Mapping[str, int | None]) -> bool:
    """True if a replay up to this upper would have taken one of the files that wait, had it been there.

    `waiting`: names, each with its date (ms). To go on would make such a file late, or pass over it.
    """
    begun = [turn for turn, before in zip(turns, [(0, None), *turns], strict=False) if before[0] < upper]
    return any(
        not holds_back(name, date_ms) and (until <= upper if date_ms is None else date_ms < min(until, upper))
        for until, holds_back in begun
        for name, date_ms in waiting.items()
    )


def _held(known: Collection[str], later: Collection[str], due: int) -> HoldBack:
    return lambda name, date_ms: name in later or (name not in known and (date_ms is None or date_ms >= due))


def restores(client: PersistClient, state: ShardState) -> dict[int, Restored]:
    """The restores and corrections whose commits are still known, by epoch."""
    found = {each.epoch: client.manifest(each).restored for each in state.commits if each.restored_from}
    return {epoch: restored for epoch, restored in found.items() if restored is not None}


def _points_since(client: PersistClient, state: ShardState, start: Start) -> list[Start]:
    """The points after each commit since `start` that is still known, oldest first."""
    found = {each.epoch: each for each in _points(client, state) if each.epoch > start.epoch}
    for commit in state.commits:
        if commit.upper is not None and commit.epoch > start.epoch and commit.epoch not in found:
            progress = client.manifest(commit).sources.get(FILES)
            after, restored = last_time(commit.upper), commit.restored_from
            found[commit.epoch] = Start(commit.checkpoint_id, after, progress, commit.epoch, restored_from=restored)
    return [found[epoch] for epoch in sorted(found)]


def _order_unknown(client: PersistClient, state: ShardState, unknown: Start) -> str:
    """Says where a replay can begin. `unknown`: the first known commit after forgotten ones."""
    end = state.upper.time or 0
    fit = [each for each in starts(client, state) if each.epoch >= unknown.epoch and each.upper < end]
    remedy = (
        f"Begin later: from {show_time(fit[-1].upper)} on it is known"
        if fit
        else "No later point is kept: drop the correct records as a new file, or read everything again in the order of"
        f" the files' names (`persist rebuild {state.shard}`)"
    )
    return (
        f"collection {state.shard} is in log order, and some of its commits before {show_time(unknown.upper)} are no"
        " longer known, nor in which order they consumed their files: a replay could change correct rows."
        f" {remedy}. Nothing was changed"
    )
