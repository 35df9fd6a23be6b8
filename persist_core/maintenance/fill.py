"""`persist fill`: columns that are new get the values that wait in the column `rest`, in one commit at the upper.

    state ─> description of a change ─> the job (`persist_spark.fill`) ─> report ─> append
                                            └ a lost race: again, from the state of now

No file of the source is read. A commit like any other: orders, progress and operator state stay as they are. A second
call finds nothing to do, but rows that came from the stash meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from persist_core.checkpoint.publish import publish_missing
from persist_core.checkpoint.recovery import recover_newest
from persist_core.config.collection import CollectionConfig
from persist_core.config.limits import ErrorLimits, exceeded_limit
from persist_core.contents.batch import STASH_OPERATOR, BatchDescription, BatchManifest
from persist_core.contents.stats import FILLED_COLUMN, BatchWarning
from persist_core.errors import InvalidInput, OutdatedDescription, RunFailed
from persist_core.handles.client import PersistClient
from persist_core.handles.overtaken import named_if_dropped
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.protocol.describe import describe_change
from persist_core.protocol.living import is_clipped, living
from persist_core.protocol.planned import changes_of
from persist_core.protocol.replay import WriteOf
from persist_core.protocol.resolve import check_nothing_is_due
from persist_core.protocol.restore_point import restore_token
from persist_core.protocol.run import MAX_CONFLICTS
from persist_core.protocol.stages import append
from persist_core.shard.state import Commit, Committed, ShardState
from persist_core.time_text import MAX_TIME

CONFIRM = "confirm with --yes (in the action: confirm, the shard's name)"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The wishes of a user for a change of a whole collection: a fill, a reprocess or a rebuild."""

    takes_back_gone: bool = False
    is_dry_run: bool = False
    is_confirmed: bool = False
    max_changed: ErrorLimits = None
    max_updates: int = MAX_UPDATES

    def check(self, what: str, changed: int, rows: int | None, *, look_at: str = "the report", kept: str = "") -> None:
        """Raise `InvalidInput` if so many changes of so many rows exceed the limit, unless that is confirmed."""
        limit = None if self.is_confirmed else exceeded_limit(self.max_changed, changed, rows or 0)
        if limit:
            raise InvalidInput(
                f"{what}, more than {limit} (limits.max_changed). Nothing was changed: look at {look_at}, then"
                f" {CONFIRM}{kept}"
            )


@dataclass(frozen=True)
class Filled:
    """The report: `changed` of the shard's `rows` (`None`: they are not counted), by column; and what to look at.

    `warnings`: rows that stay as they are, and bad values that become null. `commit` is `None` if there was nothing to
    fill, or it was only looked at.
    """

    shard: str
    changed: int
    rows: int | None
    columns: Mapping[str, int]
    warnings: tuple[BatchWarning, ...]
    commit: Commit | None = None


def fill(
    client: PersistClient,
    config: CollectionConfig,
    wishes: Wishes,
    *,
    write: WriteOf,
    writer: str,
    say: Callable[[str], None],
    report: Callable[[Filled], None] = lambda _: None,
) -> Filled:
    """Fill the collection's columns. `report` gets the report before anything is committed.

    A kill at any point loses nothing: what was staged is garbage. Raises `InvalidInput` for a collection without `rest`
    or whose file has changed since its last run, and for more changes than the wishes allow, unless confirmed;
    `RunFailed` if a record of the stash is due first, or other writers keep winning; and what the job raises.
    """
    for _ in range(MAX_CONFLICTS):
        state = client.state(config.name)
        with named_if_dropped(client.machine, state):
            description = _described(client, config, state, writer)
            try:
                key = write(config, description)
            except OutdatedDescription as error:
                say(str(error))
                continue
            found = _reported(client, state, client.staged_manifest(key))
            report(found)
            if wishes.is_dry_run or not found.changed:
                publish_missing(client, state)  # of a call that was killed after its commit
                return found
            wishes.check(f"{found.changed} rows of {found.shard} would change", found.changed, found.rows)
            result = append(client, description, key)
            if isinstance(result, Committed):
                publish_missing(client, client.state(config.name))
                return replace(found, commit=result.commit)
            say(str(result.record))
    raise RunFailed(
        f"shard {config.name}: lost {MAX_CONFLICTS} appends to other writers; nothing was filled. Try again"
    )


def _described(client: PersistClient, config: CollectionConfig, state: ShardState, writer: str) -> BatchDescription:
    shard, upper = state.shard, state.upper.time
    if config.source.rest is None:
        raise InvalidInput(f"collection {shard} has no `source.rest`: nothing waits there for a column")
    if upper is None or upper == MAX_TIME or state.schema is None:
        raise InvalidInput(f"shard {shard} is closed or empty (upper {state.upper}): there is nothing to fill")
    if changes_of(state, config):
        raise InvalidInput(f"the file of {shard} has changed since its last run: run the collection first")
    chains = recover_newest(client, state).operators
    check_nothing_is_due(client, state, chains.get(STASH_OPERATOR, ()))
    token = restore_token("fill", shard, upper, config.model_dump_json(), state.origin.life)
    described = describe_change(client, state, token, writer=writer, operators=chains)
    size_bytes = sum(batch.size_bytes for batch in state.batches)
    return replace(described, saves_deltas=bool(chains), input_bytes=size_bytes)


def _reported(client: PersistClient, state: ShardState, manifest: BatchManifest) -> Filled:
    rows = None if is_clipped(client, state) else living(state.batches)[0]
    columns = {
        name.removeprefix(FILLED_COLUMN): count
        for name, count in manifest.stats.items()
        if name.startswith(FILLED_COLUMN)
    }
    return Filled(state.shard, manifest.counts.insertions, rows, columns, manifest.warnings)
