"""The effect of a changed file on a shard's schema, before a run: nothing, new, evolve, refused; of a view, refresh."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.evolution import changes_between
from persist_core.errors import SchemaMismatch
from persist_core.handles.client import PersistClient
from persist_core.shard.state import ShardState
from persist_core.sources.frozen import load_frozen
from persist_core.sources.shards import FrozenShards, Refreshed


@dataclass(frozen=True)
class Planned:
    """`status`: `nothing`, `new`, `evolve`, `refresh` or `refused`. `changes`: in words. `refused`: why."""

    shard: str
    status: str
    changes: tuple[str, ...] = ()
    refused: str = ""


def planned(client: PersistClient, config: ShardConfig) -> Planned:
    """The effect of the next run of `config`, by its shard's state. Only Spark knows the columns of a view's query."""
    state = client.machine.fetch(config.name)
    if isinstance(config, ViewConfig):
        last = None if state is None else Refreshed.of(state.sources)
        if last is None:
            return Planned(config.name, "new")
        before = load_frozen(client.blob, last.input_key, FrozenShards).definition
        return Planned(config.name, "nothing" if before == config.definition else "refresh", _unknown(state, config))
    try:
        words = changes_of(state or ShardState(config.name), config)
    except SchemaMismatch as error:
        return Planned(config.name, "refused", refused=str(error))
    is_new = state is None or state.schema is None
    return Planned(config.name, "new" if is_new else "evolve" if words else "nothing", words + _unknown(state, config))


def _unknown(state: ShardState | None, config: ShardConfig) -> tuple[str, ...]:
    """The names in `dropped` that no schema of the shard has had. Not refused: a new generation begins without them."""
    versions = state.schemas.versions if state else ()
    known = {column.name for each in versions for column in each.schema.columns}
    return tuple(
        f"dropped: {name}: the shard has never had this column: correct the name, or remove it"
        for name in config.dropped
        if versions and name not in known
    )


def changes_of(state: ShardState, config: ShardConfig) -> tuple[str, ...]:
    """The changes that a collection's file makes to the schema of its shard. Raises `SchemaMismatch`."""
    if not isinstance(config, CollectionConfig):
        return ()
    newest, found = state.schemas.newest, state.schemas.placed(config.collection_schema())
    if found is newest:
        return ()
    words, rest = changes_between(newest, found), config.source.rest
    known = None if newest is None else {column.id for column in newest.columns}
    if known is not None and rest is not None and any(column.id not in known for column in found.columns):
        words.append(f"after the run, `persist fill {config.name}` fills earlier rows from {rest}")
    return tuple(words)
