"""The three-stage write protocol and the checkpoint after it, as plain functions (docs/semantics.md, section 5).

    mint   ->  BatchDescription | NothingToDo         reads the shard and lists the input; freezes it
    write  ->  BatchManifest, staged                  Spark (persist_spark.upsert.job), or `write_without_input` here
    append ->  Committed | Conflict                   the one compare-and-set
    checkpoint -> CheckpointReport                    derived from the newest commit; any process may repeat it

Invariants, which let a caller retry any of them at any time:

1. Nothing before `append` changes what a reader sees; `append` changes it in one compare-and-set.
2. The token comes from the shard, the description and the writer (DAG run), never from a try: a second append of the
   same description returns the result of the first.
3. A description is valid while the shard's upper is its lower. At most one of the valid ones is ever appended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from persist_core.checkpoint.publish import CheckpointReport, publish_and_retain
from persist_core.checkpoint.recovery import check_not_undone, recover_newest
from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.contents.batch import STASH_OPERATOR, BatchCounts, BatchDescription, BatchManifest
from persist_core.contents.operator_state import OperatorState
from persist_core.errors import (
    AlreadyCommitted,
    CorruptArtifact,
    InvalidInput,
    OutdatedDescription,
    PersistError,
    RunFailed,
    StorageError,
    TokenReuse,
)
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.write import WriteHandle, manifest_for, stage_manifest
from persist_core.protocol.conflicts import ConflictRecord, record_conflict
from persist_core.protocol.describe import describe
from persist_core.protocol.planned import changes_of
from persist_core.shard.history import show_history
from persist_core.shard.state import Committed, ShardState, UpperMismatch, upper_mismatch
from persist_core.sources.registry import source_of
from persist_core.sources.source import NotYet, Source
from persist_core.time_text import format_time, show_time

MAX_MINT_TRIES = 5  # each but the first because another writer committed during the try before

MAX_AHEAD_MS = 3_600_000  # of `until`, after the client's clock: more than clocks of machines differ by
EMPTY_ROWS = "empty"  # the rows' digest of a batch without updates


@dataclass(frozen=True)
class NothingToDo:
    """There is no run to make: the reason, for the skip message. `upper` is the shard's.

    `pending` counts inputs that this run should have taken and can't, because the shard already covers its interval
    (`None`: they can't be listed). If it is not 0, callers warn: `reason` says what to do.
    """

    reason: str
    upper: int | None
    pending: int | None = 0


@dataclass(frozen=True)
class Minted:
    """A description, and what mint noticed about the input, for the log."""

    description: BatchDescription
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conflict:
    """The append lost: its record, and whether this is the first time that it was seen."""

    record: ConflictRecord
    is_new: bool


def mint(
    client: PersistClient,
    config: ShardConfig,
    *,
    until: int | None,
    writer: str,
    is_forced: bool = False,
    source: Source | None = None,
) -> Minted | NothingToDo:
    """Describe the shard's next batch: `[shard's upper, until)`, with all input that no commit has taken in.

    `until` is the input's frontier (ms; the end of the data interval), `None` if it has none: a collection is then
    closed, a view goes as far as its inputs. `writer` names the dag run. `source`: the input, if it is not all that
    `config` names. Raises `SchemaMismatch` before anything is staged, `CorruptArtifact` if operator state is damaged,
    `ConfigError` if the blobs are of another location, and `InvalidInput` for an `until` more than `MAX_AHEAD_MS` after
    now, unless `is_forced`. What is refused changes nothing, and makes no shard.
    """
    source = source or source_of(client, config)
    if until is not None and not is_forced:
        _check_not_ahead(config.name, until, client.clock.now_ms())
    for left in reversed(range(MAX_MINT_TRIES)):
        state = client.machine.fetch(config.name) or ShardState(config.name)
        try:
            minted = _mint(client, config, source, state, until=until, writer=writer)
            break
        except CorruptArtifact:
            # If another writer has committed meanwhile, retention may have deleted what this one was reading.
            now = client.machine.fetch(config.name)
            if not left or now is None or now.newest_commit == state.newest_commit:
                client.pair.check()  # other blobs, perhaps of a disk that is not mounted, are not damage
                raise
    notices = _as_defined(client, config, state)
    if isinstance(minted, Minted):
        return replace(minted, notices=(*notices, *minted.notices))
    return replace(minted, reason=". ".join((minted.reason, *notices)))


def _as_defined(client: PersistClient, config: ShardConfig, state: ShardState) -> tuple[str, ...]:
    """Make the shard if it is new, and set the history that its file asks for; a notice if it had another one.

    Called after everything that can refuse a run.
    """
    if state.seqno < 0:
        client.ensure_shard(config.name)
    if state.history_ms == config.history_ms:
        return ()
    _, before = client.set_history(config.name, config.history_ms)
    if not state.commits:
        return ()
    kept = f"history of shard {config.name} is now {config.history}; it was {show_history(before)}"
    return (f"{kept}. The next checkpoint and the next maintenance give up what is older, permanently",)


def _mint(
    client: PersistClient, config: ShardConfig, source: Source, state: ShardState, *, until: int | None, writer: str
) -> Minted | NothingToDo:
    lower = state.upper.time or 0
    state.origin.check_not_moved(config.name)
    if state.is_dropped:
        raise InvalidInput(
            f"shard {config.name} was dropped. Remove its file and its DAG; or, to begin it again with all its input,"
            f" run `persist run --recreate {config.name}`"
        )
    if state.upper.is_closed:
        reason = f"shard {config.name} is closed: it accepts no more updates"
        return _with_pending(reason, source, state, until, client.clock.now_ms())
    if until is not None and until <= lower:
        own = next((commit for commit in state.commits if (commit.writer, commit.upper) == (writer, until)), None)
        covered = (
            "was covered by an earlier commit"
            if own is None
            else f"is already committed, at {format_time(own.committed_ms)}"
        )
        reason = (
            f"everything before {show_time(until)} is already in shard {config.name} (upper {state.upper}): this"
            f" run's interval {covered}"
        )
        if isinstance(config, CollectionConfig):
            reason += f". If its files were wrong and have changed since, `persist reprocess {config.name}` corrects it"
        return _with_pending(reason, source, state, until, client.clock.now_ms())
    check_not_undone(client, state)
    source.check(state)
    intake = source.freeze(state, lower=lower, until=until)
    if isinstance(intake, NotYet):
        return NothingToDo(intake.reason, lower)
    recovered = recover_newest(client, state)
    description = describe(client, config, state, lower, intake, writer, recovered)
    changes = "; ".join(changes_of(state, config)) if state.commits else ""
    evolves = (f"the schema of {config.name} evolves: {changes}",) if changes else ()
    return Minted(description, (*evolves, *intake.notices, *recovered.notices))


def _check_not_ahead(shard: str, until: int, now_ms: int) -> None:
    if until > now_ms + MAX_AHEAD_MS:
        raise InvalidInput(
            f"until is {show_time(until)}; expected at most {show_time(now_ms + MAX_AHEAD_MS)}, an hour from now."
            f" Shard {shard} would take no other input before that time. Give the end of an interval that is over. If"
            ' this is intended, run it with --force (`persist run`) or with {"force": true} (conf of the dag run)'
        )


def _with_pending(reason: str, source: Source, state: ShardState, until: int | None, now_ms: int) -> NothingToDo:
    try:
        pending = source.pending(state, until=until)
    except PersistError as error:
        return NothingToDo(f"{reason}. Pending input can't be counted: {error}", state.upper.time, None)
    if pending:
        last = state.upper.time
        if last is None:
            when = "and will never be read. To read them, fork the shard at an earlier checkpoint"
        elif last > now_ms + MAX_AHEAD_MS:
            when = (
                f"and no scheduled run reads them before {show_time(last)}: the shard's upper is in the future. See"
                " `A shard whose upper is in the future` in docs/operations.md"
            )
        else:
            when = f"for the next run that ends after {show_time(last)}"
        reason = f"{reason}. {pending} inputs are pending, {when}"
    return NothingToDo(reason, state.upper.time, pending)


def write_without_input(client: PersistClient, config: ShardConfig, description: BatchDescription) -> str | None:
    """Stage a batch that has neither input nor stash, without Spark: it only advances the upper (a seal).

    Other operator state stays as it is, unless it is to be saved in full.
    Returns the manifest's key, or `None` if the description needs Spark. Raises `OutdatedDescription`.
    """
    state = client.state(description.shard)
    check_not_outdated(state, description)
    is_whole = bool(description.operators) and not description.saves_deltas
    if description.input_key is not None or is_whole or STASH_OPERATOR in description.operators:
        return None
    unchanged = {name: OperatorState(is_delta=True, artifacts=()) for name in description.operators}
    return _stage_empty(client, config, state, description, rows=EMPTY_ROWS, operators=unchanged)


def manifest_of_outdated(client: PersistClient, config: ShardConfig, description: BatchDescription) -> str:
    """The key of a batch to append if the write stage found the description outdated and staged none.

    Either the description is a commit already (a cleared run), and the key is the commit's own manifest; or its
    append can only be refused, and an empty batch is enough to find the winner.
    """
    state = client.state(description.shard)
    commit = state.commit_with(description.token)
    if commit is not None:
        return commit.manifest_key
    if _outdated(state, description) is None:
        raise RunFailed(
            f"the write stage called {description.interval} outdated, but the upper of shard {description.shard} is"
            f" still {state.upper}; nothing was committed. Run it again"
        )
    return _stage_empty(client, config, state, description, rows="outdated")


def _stage_empty(
    client: PersistClient,
    config: ShardConfig,
    state: ShardState,
    description: BatchDescription,
    *,
    rows: str,
    operators: Mapping[str, OperatorState] | None = None,
) -> str:
    schema = state.schemas.placed(source_of(client, config).schema(state))
    manifest = manifest_for(description, schema, (), BatchCounts(), rows=rows)
    return stage_manifest(client.blob, replace(manifest, operators=operators or {}), client.ids.uuid7())


def check_not_outdated(state: ShardState, description: BatchDescription) -> None:
    """Raise `OutdatedDescription` unless the description is still valid.

    `AlreadyCommitted`, which is one, if it is itself a commit: nothing is left to write, even if its input is gone.
    """
    if (outdated := _outdated(state, description)) is not None:
        raise outdated


def _outdated(state: ShardState, description: BatchDescription) -> OutdatedDescription | None:
    """Why another append of it would be refused: it is a commit, another writer was faster, or GC may have deleted what
    it names; `None` if it is valid."""
    what = f"description {description.interval} of shard {description.shard}"
    commit = state.commit_with(description.token)
    if commit is not None:
        return AlreadyCommitted(
            f"{what} is already committed, at {format_time(commit.committed_ms)} as epoch {commit.epoch}. Nothing was"
            " staged; append finds the commit"
        )
    if state.upper != Frontier(description.lower):
        return OutdatedDescription(f"{what} is outdated: the upper is {state.upper}. Nothing was staged; mint again")
    if (description.era or 0) < state.oldest_era:
        return OutdatedDescription(
            f"{what} is outdated: it was minted in era {description.era}, and GC may have deleted what was staged"
            f" before era {state.oldest_era}. Nothing was staged; mint again"
        )
    return None


@contextmanager
def outdated_first(client: PersistClient, description: BatchDescription) -> Iterator[None]:
    """Turn any failure inside into `OutdatedDescription` if the shard has advanced beyond the description's lower.

    Retention may have deleted the operator state that the description starts from, which is then not corruption. The
    shard has also advanced if another try has committed this description.
    """
    try:
        yield
    except Exception as error:
        with suppress(StorageError):  # then the original error is more specific
            if (outdated := _outdated(client.state(description.shard), description)) is not None:
                raise outdated from error
        raise


def append(client: PersistClient, description: BatchDescription, manifest_key: str) -> Committed | Conflict:
    """Append the staged batch. A lost race is a `Conflict`, recorded once; nothing is lost or doubled by it.

    A description that is committed is `Committed`, and one that can only be refused a `Conflict`, also if its staged
    batch is gone by now, or is another one. Raises `TokenReuse` if its token is bound to another interval.
    """
    try:
        manifest = client.staged_manifest(manifest_key)
        check_manifest(manifest, description)
    except (CorruptArtifact, InvalidInput):
        state = client.state(description.shard)
        commit = state.commit_with(description.token)
        if commit is not None:
            return Committed(commit, is_new=False)
        if _outdated(state, description) is None:
            raise
        return _conflict(client, description, upper_mismatch(state, description))
    # Not by `open_writer`: minting has made the shard, and another look at it is another request on a remote store.
    writer = WriteHandle(client, description.shard)
    try:
        result = writer.compare_and_append(manifest, manifest_key)
    except TokenReuse:  # another try has committed this description with other contents: without a file, for example
        commit = client.state(description.shard).commit_with(description.token)
        if commit is None or (commit.lower, commit.upper) != (description.lower, description.upper):
            raise
        return Committed(commit, is_new=False)
    return _conflict(client, description, result) if isinstance(result, UpperMismatch) else result


def _conflict(client: PersistClient, description: BatchDescription, mismatch: UpperMismatch) -> Conflict:
    record, is_new = record_conflict(client.blob, client.clock, description, mismatch)
    return Conflict(record, is_new)


def check_manifest(manifest: BatchManifest, description: BatchDescription) -> None:
    """Raise `InvalidInput` unless the manifest was written for exactly this description."""
    found = (manifest.shard, manifest.lower, manifest.upper, manifest.token, manifest.checkpoint_id)
    wanted = (description.shard, description.lower, description.upper, description.token, description.checkpoint_id)
    if found != wanted:
        raise InvalidInput(f"manifest is for {found}; expected {wanted}: the write and append stages were mixed up")


def checkpoint(client: PersistClient, config: ShardConfig) -> CheckpointReport | None:
    """Publish the checkpoint of the newest commit (and any that was missed), move `_latest`, apply retention.

    Derived from the commit: safe to do again, by any process, at any time. `None` before the first commit.
    """
    report = publish_and_retain(client, config.name, config.retention)
    if report is not None:
        source_of(client, config).settle(client.state(config.name))
    return report
