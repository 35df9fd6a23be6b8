"""The input of a view: other shards, all read as of one time.

    holds on the inputs -> uppers -> upper = min(until, uppers) -> as_of = upper - 1 -> frozen input

1. All inputs are read as of the same time, so a view is consistent across them; `upper` is at most the smallest upper.
2. An input whose `since` has passed that time is an error, never an approximation. The hold `view/<name>` on each input
   keeps its `since` back as long as the newest refresh may have to be evaluated again.
3. A view does not shorten the history of its inputs: a hold only keeps `since` back. So it stays where it is, which
   costs no version of the input's state, until the input's history would pass it.
4. If neither the definition nor any input has changed since the newest refresh, the description is a seal: it reads
   nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from persist_core.config.view import SHARDS, ViewConfig
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import (
    CorruptArtifact,
    Corruption,
    InvalidInput,
    InvariantViolation,
    OutsideFrontiers,
    ShardNotFound,
    UnknownVersion,
)
from persist_core.frontier import CLOSED, Frontier
from persist_core.handles.client import PersistClient
from persist_core.handles.since import SinceHandle
from persist_core.location.blob import Blob
from persist_core.schema import CollectionSchema
from persist_core.sealed import Sealed, from_plain
from persist_core.shard.history import VIEW, history_start
from persist_core.shard.state import ShardState
from persist_core.sources.frozen import load_frozen, stage_frozen
from persist_core.sources.source import ConsumedInput, Intake, NotYet, ReadInput
from persist_core.time_text import MAX_TIME, show_time

NO_COLUMNS = CollectionSchema(key=())  # of a view without a refresh


@dataclass(frozen=True)
class FrozenShards(Sealed):
    """The input of one refresh: the view's definition, the time, and each input's upper, schema version and life when
    it was minted."""

    KIND = "frozen_shards"

    definition: str
    as_of: int
    uppers: Mapping[str, int | None]
    schemas: Mapping[str, int]
    lives: Mapping[str, str | None]


@dataclass(frozen=True)
class Refreshed:
    """Progress of a view as stored in its shard's state: the newest refresh's time and frozen input.

    `lives`: each input's (`Origin.life`); another shard of the same name is another input. `given_up`: inputs of
    earlier refreshes that were still held when this one was minted; the checkpoint task releases them.
    """

    as_of: int
    input_key: str
    uppers: Mapping[str, int | None]
    lives: Mapping[str, str | None]
    given_up: tuple[str, ...] = ()

    @classmethod
    def of(cls, sources: Mapping[str, SourceFrontier]) -> Refreshed | None:
        """From the sources of a state or a manifest; `None` before the first refresh."""
        source = sources.get(SHARDS)
        if source is None:
            return None
        return from_plain(cls, {**source.offsets, "input_key": source.offsets.get("input")}, what="a view's progress")

    def to_source(self) -> SourceFrontier:
        """The inverse of `of`."""
        by_input = {"uppers": dict(sorted(self.uppers.items())), "lives": dict(sorted(self.lives.items()))}
        known = {"as_of": self.as_of, "input": self.input_key, "given_up": list(self.given_up)}
        return SourceFrontier(SHARDS, {**known, **by_input})


class ShardProgress:
    """`persist_core.sources.source.Progress` of a view: what its newest refresh has read."""

    def __init__(self, blob: Blob, shard: str, stored: SourceFrontier) -> None:
        self._blob, self._shard, self._stored = blob, shard, stored

    def needed_keys(self) -> set[str]:
        """The frozen input: the next mint compares the view's definition with it."""
        return {self._refreshed().input_key}

    def verify(self) -> Iterator[str]:
        """Check the frozen input, and that it has the same inputs."""
        try:
            refreshed = self._refreshed()
            frozen = load_frozen(self._blob, refreshed.input_key, FrozenShards)
            if set(frozen.uppers) != set(refreshed.uppers):
                yield (
                    f"frozen input {refreshed.input_key} reads {', '.join(sorted(frozen.uppers))}; the progress of"
                    f" shard {self._shard} says {', '.join(sorted(refreshed.uppers))}"
                )
        except Corruption as error:
            yield str(error)

    def check_restorable(self) -> None:
        """Never restorable: the next refresh would write the present contents again."""
        raise InvalidInput(
            f"{self._shard} is a view. Its next refresh corrects its contents: restore its inputs, or correct its"
            f" query. To read its older contents, run `persist snapshot {self._shard} --as-of`"
        )

    def copied_to(self, shard: str, *, era: int) -> SourceFrontier:  # noqa: ARG002 - a view corrects itself
        """Raise `InvalidInput`: a view has no input of its own to replay."""
        raise InvalidInput(f"{shard} is a view: it follows its inputs, and its next refresh corrects it")

    def consumed_since(self, earlier: SourceFrontier | None) -> tuple[ConsumedInput, ...]:  # noqa: ARG002 - by contract
        """All inputs: each refresh reads all of them."""
        return tuple(map(ConsumedInput, sorted(self._refreshed().uppers)))

    def _refreshed(self) -> Refreshed:
        refreshed = Refreshed.of({SHARDS: self._stored})
        if refreshed is None:
            raise InvariantViolation(f"the progress of shard {self._shard} does not name a refresh; run `persist fsck`")
        return refreshed


class ShardSource:
    """The inputs of one view."""

    def __init__(self, client: PersistClient, config: ViewConfig) -> None:
        self._config = config
        self._client = client

    def check(self, state: ShardState) -> None:
        """No-op: only Spark knows the schema of the query's result. The job compares it."""

    def freeze(self, state: ShardState, *, lower: int, until: int | None) -> Intake | NotYet:
        """The inputs as of the last time that all of them and `until` have reached. Takes the view's holds.

        Raises `OutsideFrontiers` if the `since` of an input is after that time.
        """
        last = Refreshed.of(state.sources)
        if not set(self._config.inputs) <= (last.uppers.keys() if last else set()):  # held if all are there
            waits = self._reached(self._client.state, lower, until)
            if isinstance(waits, NotYet):
                return waits
        reached = self._reached(self._held, lower, until)
        if isinstance(reached, NotYet):
            return reached
        inputs, upper, behind = reached
        notices = []
        if until is not None and upper < Frontier(until):
            notices.append(
                f"view {self._config.name} goes up to {upper}, not to {show_time(until)}: that is the upper of its"
                f" input {behind.shard}"
            )
        as_of = MAX_TIME if upper.time is None else upper.time - 1
        frozen = self._frozen(inputs, as_of)
        given_up = tuple(self._still_held({*last.uppers, *last.given_up} if last else ()))
        sources = dict(state.sources)
        if last is not None and self._is_unchanged(state, last, inputs, as_of):
            sources[SHARDS] = Refreshed(as_of, last.input_key, frozen.uppers, frozen.lives, given_up).to_source()
            return Intake(upper.time, sources, notices=(*notices, "no input has changed: nothing to read"))
        key = stage_frozen(self._client.blob, self._config.name, frozen, era=state.era)
        sources[SHARDS] = Refreshed(as_of, key, frozen.uppers, frozen.lives, given_up).to_source()
        size_bytes = sum(batch.size_bytes for each in inputs.values() for batch in each.batches)
        return Intake(upper.time, sources, key, len(inputs), size_bytes, tuple(notices))

    def _reached(
        self, look: Callable[[str], ShardState], lower: int, until: int | None
    ) -> tuple[dict[str, ShardState], Frontier, ShardState] | NotYet:
        """The states of the inputs, the upper that all of them and `until` have reached, and the input behind most."""
        inputs: dict[str, ShardState] = {}
        for name in self._config.inputs:
            try:
                inputs[name] = look(name)
            except ShardNotFound:
                return NotYet(f"view {self._config.name}: {_missing(name)}")
        upper = min([CLOSED if until is None else Frontier(until), *(each.upper for each in inputs.values())])
        behind = min(inputs.values(), key=lambda each: each.upper)
        if upper <= Frontier(lower):
            return NotYet(
                f"view {self._config.name} is up to date with its inputs: it contains everything before"
                f" {show_time(lower)}, and the upper of its input {behind.shard} is {behind.upper}"
            )
        return inputs, upper, behind

    def pending(self, state: ShardState, *, until: int | None, again: bool = False) -> int:  # noqa: ARG002 - by contract
        """Always 0: the view contains everything that its inputs hold before its upper."""
        return 0

    def inputs(self, input_key: str) -> list[ReadInput]:
        """The shards that a refresh reads, as of its time."""
        frozen = load_frozen(self._client.blob, input_key, FrozenShards)
        return [ReadInput(name, as_of=frozen.as_of) for name in frozen.uppers]

    def schema(self, state: ShardState) -> CollectionSchema:
        """The shard's own schema: only a refresh can change it."""
        return state.schema or NO_COLUMNS

    def settle(self, state: ShardState) -> None:
        """Move the holds that block an input's history up to the newest refresh (see the module, 2 and 3).

        Releases the holds on inputs that only earlier refreshes have read.
        """
        last = Refreshed.of(state.sources)
        if last is None:
            return
        for name in self._still_held(last.given_up):
            self._hold(name).release()
        for name in self._config.inputs:
            try:
                held = self._client.state(name)
            except ShardNotFound:
                continue
            own = held.holds.get(f"{VIEW}{self._config.name}")
            if own is not None and own.since < min(Frontier(last.as_of), history_start(held)):
                # a mismatch means that another checkpoint of this view has moved it
                self._hold(name).downgrade(Frontier(last.as_of))

    def dry_run_time(self, until: int | None) -> int:
        """The last time before `until` that all inputs have reached. Raises `OutsideFrontiers` if none exists."""
        bounds = [CLOSED if until is None else Frontier(until)]
        for name in self._config.inputs:
            try:
                bounds.append(self._client.state(name).upper)
            except ShardNotFound as error:
                raise ShardNotFound(f"view {self._config.name}: {_missing(name)}") from error
        first = min(bounds)
        if first.time == 0:
            inputs = ", ".join(self._config.inputs)
            raise OutsideFrontiers(f"view {self._config.name}: not all of its inputs ({inputs}) contain data yet")
        return MAX_TIME if first.time is None else first.time - 1

    def frozen_at(self, as_of: int) -> FrozenShards:
        """The input that a refresh at `as_of` would freeze. Stages nothing. Raises as `freeze` does."""
        return self._frozen({name: self._client.state(name) for name in self._config.inputs}, as_of)

    def _frozen(self, inputs: Mapping[str, ShardState], as_of: int) -> FrozenShards:
        for name, state in inputs.items():
            if state.is_dropped:
                raise OutsideFrontiers(
                    f"view {self._config.name} needs its input {name}, which was dropped: build it again (`persist run"
                    f" {name} --recreate`), or take it out of the query"
                )
            if state.since > Frontier(as_of):
                raise OutsideFrontiers(
                    f"view {self._config.name} needs its input {name} as of {show_time(as_of)}, but {name} can be"
                    f" read from since {state.since} on. Refresh the view at a later time (a later DAG run, or"
                    f" --until). `history:` in the file of {name} says how much is kept; `persist holds {name}` shows"
                    " what holds more"
                )
        uppers = {name: state.upper.time for name, state in sorted(inputs.items())}
        lives = {name: state.origin.life for name, state in sorted(inputs.items())}
        return FrozenShards(self._config.definition, as_of, uppers, _schemas_of(inputs), lives)

    def _is_unchanged(self, state: ShardState, last: Refreshed, inputs: Mapping[str, ShardState], as_of: int) -> bool:
        """True if the newest commit is a refresh with the same definition and inputs, none appended to since, each with
        the same columns."""
        newest = state.newest_commit
        if newest is None or last.lives != {name: each.origin.life for name, each in inputs.items()}:
            return False
        if Refreshed.of(self._client.manifest(newest).sources) != last:
            return False
        try:
            frozen = load_frozen(self._client.blob, last.input_key, FrozenShards)
            if (frozen.definition, frozen.schemas) != (self._config.definition, _schemas_of(inputs)):
                return False
        except (CorruptArtifact, UnknownVersion):
            return False  # fsck reports it; a full refresh does not need the last one
        return not any(
            batch.lower <= as_of and batch.changed_at is not None and batch.changed_at > last.as_of
            for each in inputs.values()
            for batch in each.batches
        )

    def _still_held(self, names: Iterable[str]) -> list[str]:
        """The shards that the view holds and no longer reads: a run may die before its checkpoint task."""
        states = map(self._client.machine.fetch, sorted(set(names) - set(self._config.inputs)))
        return [each.shard for each in states if each is not None and f"{VIEW}{self._config.name}" in each.holds]

    def _held(self, name: str) -> ShardState:
        self._hold(name)
        return self._client.state(name)

    def _hold(self, name: str) -> SinceHandle:
        return self._client.open_since(name, f"{VIEW}{self._config.name}")


def _schemas_of(inputs: Mapping[str, ShardState]) -> dict[str, int]:
    return {name: state.schema.version if state.schema else 0 for name, state in sorted(inputs.items())}


def _missing(name: str) -> str:
    return f"its input {name} does not exist yet; run {name} first, or correct the name"


def check_closable(client: PersistClient, config: ViewConfig) -> None:
    """Raise `InvalidInput` unless every input is closed, so that the view can be closed too."""
    for name in config.inputs:
        upper = client.state(name).upper
        if not upper.is_closed:
            raise InvalidInput(f"view {config.name} can't be closed: its input {name} is open (upper {upper})")
