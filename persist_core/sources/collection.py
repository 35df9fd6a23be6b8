"""The input of a collection: the files that its `source.path` names."""

from __future__ import annotations

import logging
from functools import cached_property
from itertools import takewhile

from persist_core.config.collection import FILES, CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.schema import CollectionSchema
from persist_core.shard.state import ShardState
from persist_core.sources.feeds import feed_of
from persist_core.sources.files import FileSource, HoldBack
from persist_core.sources.frozen import load_frozen, stage_frozen
from persist_core.sources.input_file import FrozenInput
from persist_core.sources.source import Intake, ReadInput
from persist_core.time_text import MAX_TIME

_log = logging.getLogger(__name__)


def in_time_from(client: PersistClient, state: ShardState) -> int | None:
    """The end of the newest commit that took in input, if changes have moved the upper since; else `None`.

    Input dated between the two could not be taken in before, so it is not late. A hidden shard comes up to an upper of
    its shard, and leaves to the next run what that has left: so the shard's changes count. Raises `CorruptArtifact`.
    """
    shard, newest = state.shard.partition("~")[0], state.newest_commit
    if newest is not None and not newest.is_change and shard != state.shard:
        commits = (client.machine.fetch(shard) or state).commits
        newest = next((commit for commit in commits if commit.upper == newest.upper), newest)
    return client.manifest(newest).in_time_from if newest is not None and newest.is_change else None


def listed_to(client: PersistClient, state: ShardState) -> int | None:
    """Up to which time the input was listed for the shard's progress; `None`: up to its upper.

    0 if a change has put the progress back: input of any date may be unread again. Also if there may have been one.
    """
    changes = list(takewhile(lambda commit: commit.is_change, reversed(state.commits)))
    if changes and (len(changes) == len(state.commits) or any(each.restored_from for each in changes)):
        return 0
    return in_time_from(client, state)


class CollectionSource:
    """`Source` of a collection: file drops."""

    def __init__(
        self, client: PersistClient, config: CollectionConfig, holds_back: HoldBack = lambda *_: False
    ) -> None:
        """`holds_back`: files that `freeze` leaves for later."""
        self._config = config
        self._client = client
        self._location = client.location
        self._blob = client.blob
        self._holds_back = holds_back

    @cached_property
    def files(self) -> FileSource:
        return FileSource(self._config, self._blob, feed_of(self._location, self._config))

    def check(self, state: ShardState) -> None:
        """Check the schema, which is known from the collection file, before files are listed."""
        state.schemas.placed(self._config.collection_schema())

    def freeze(self, state: ShardState, *, lower: int, until: int | None) -> Intake:
        """All files that are due. Without files there is still an intake: the upper advances.

        The first commit names the progress though it is empty: a restore to its checkpoint needs it.
        """
        consumed = state.sources.get(FILES)
        since = listed_to(self._client, state)
        freeze = self.files.freeze(consumed, until=until, lower=lower, listed_to=since, holds_back=self._holds_back)
        if freeze.not_due:  # usual in a backfill, so no notice
            text = "%d files of %s are dated at or after the end of this run: left for later runs"
            _log.info(text, freeze.not_due, self._config.name)
        if freeze.requests:
            _log.info("listed the files of %s in %d requests", self._config.source.path, freeze.requests)
        sources, input_key = dict(state.sources), None
        if freeze.frozen.files:
            input_key = stage_frozen(self._blob, self._config.name, freeze.frozen, era=state.era)
        if consumed is None or freeze.frozen.files or self.files.has_other_place(consumed):
            sources[FILES] = self.files.advance(
                consumed, freeze.frozen, era=state.era, unread_from=freeze.unread_from, moved=freeze.moved
            )
        return Intake(
            upper=freeze.upper,
            sources=sources,
            input_key=input_key,
            input_files=len(freeze.frozen.files),
            input_bytes=freeze.frozen.size_bytes,
            notices=freeze.notices(),
        )

    def pending(self, state: ShardState, *, until: int | None, again: bool = False) -> int:
        """Files that no commit has consumed and that are dated before `until`; `again`: not before `look_back`."""
        lower = min(state.upper.time or 0, MAX_TIME if until is None else until)  # `look_back` is counted from here
        since = listed_to(self._client, state)
        since = until if again and since != 0 else since  # 0: the progress was put back
        freeze = self.files.freeze(state.sources.get(FILES), until=until, lower=lower, listed_to=since, is_look=True)
        return len(freeze.frozen.files) + freeze.left_over

    def inputs(self, input_key: str) -> list[ReadInput]:
        frozen = load_frozen(self._blob, input_key, FrozenInput)
        root, files = self._config.source_pattern().root, tuple(file.path for file in frozen.files)
        return [ReadInput(root, size_bytes=frozen.size_bytes, files=files)]

    def schema(self, state: ShardState) -> CollectionSchema:  # noqa: ARG002 - a view needs the state
        return self._config.collection_schema()

    def settle(self, state: ShardState) -> None:
        """No-op: files need no hold."""
