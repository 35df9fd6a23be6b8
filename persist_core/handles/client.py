"""`PersistClient`: a location, a clock and ids; everything else is opened from it.

client = PersistClient(open_location(PersistLocation("file:///data", "sqlite:////data/consensus.db")))
client.open_reader("customers").snapshot()
"""

from __future__ import annotations

from collections.abc import Iterable

from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.errors import ShardNotFound
from persist_core.frontier import Frontier
from persist_core.handles.load import load_head, load_manifests
from persist_core.handles.read import ReadHandle
from persist_core.handles.since import SinceHandle
from persist_core.handles.store import Store
from persist_core.handles.write import WriteHandle
from persist_core.keys import check_key_name, is_shard_name
from persist_core.shard import history
from persist_core.shard.state import Commit, ShardState


class PersistClient(Store):
    """Opens handles on the shards of one location."""

    def shards(self) -> list[str]:
        """Names of all shards ever created here, dropped ones included, sorted."""
        return sorted(key for key in self.location.consensus.list_keys() if is_shard_name(key))

    def state(self, shard: str) -> ShardState:
        """The shard's newest state; `ShardNotFound` if it was never created."""
        state = self.machine.fetch(check_key_name(shard))
        if state is None:
            raise ShardNotFound(
                f"no shard {shard!r} in {self.location.consensus.uri}; `persist shards` lists the existing ones"
            )
        return state

    def ensure_shard(self, shard: str) -> ShardState:
        """Like `state`, but creates an empty shard (`[0, 0)`) if it does not exist."""
        state, _ = self.machine.apply(check_key_name(shard), lambda state: (state, None), create=True)
        return state

    def manifest(self, of: HollowBatch | Commit) -> BatchManifest:
        """The manifest of a batch or commit of a state; `CorruptArtifact` if it is missing or not the one committed.

        Many parts are in lists, which are not read (`UnreadParts`): see `manifests`."""
        return load_head(self.blob, of.manifest_key, sha256=of.manifest_sha256)

    def manifests(self, named: Iterable[HollowBatch | Commit]) -> list[BatchManifest]:
        """The manifests of these batches and commits with all their parts, in their order. Raises as `manifest`."""
        return load_manifests(self.blob, named, threads=self.fetch_threads)

    def staged_manifest(self, key: str) -> BatchManifest:
        """A manifest that no state names yet, as `manifest`; `CorruptArtifact` naming the key if it is missing or
        damaged."""
        return load_head(self.blob, key)

    def open_reader(self, shard: str, *, generation: int | None = None) -> ReadHandle:
        """A reader of the shard as it is now; sees later appends too. Holds nothing back: see `open_leased_reader`.

        `generation`: the one whose times the caller knows; changes are then of no other (`GenerationChanged`).
        """
        self.state(shard)
        return ReadHandle(self, shard, generation=generation)

    def open_leased_reader(self, shard: str, *, lease_ms: int) -> ReadHandle:
        """A reader whose lease holds the shard's `since` for `lease_ms` after each heartbeat."""
        handle = ReadHandle(self, check_key_name(shard), reader=self.ids.uuid7())
        handle.register(lease_ms)
        return handle

    def open_since(self, shard: str, holder: str, *, since: Frontier | None = None) -> SinceHandle:
        """The critical hold `holder` on the shard's `since`, registered at `since` (default: the shard's) if it is new.

        Raises `NotReadable` if the shard has given up `since` already.
        """
        return SinceHandle.open(self, check_key_name(shard), holder, since=since)

    def open_writer(self, shard: str) -> WriteHandle:
        """A writer of the shard, which is created if it is new."""
        self.ensure_shard(shard)
        return WriteHandle(self, shard)

    def set_history(self, shard: str, history_ms: int | None) -> tuple[ShardState, int | None]:
        """Keep `history_ms` of history from now on (`None`: all); returns the newest state and what it was before.

        Writes a version only if it differs.
        """
        return self.machine.apply(shard, lambda state: history.set_history(state, history_ms))

    def advance_since(self, shard: str) -> history.Advance:
        """Move the shard's `since` as far as its history and its holders allow; says what holds it back.

        Writes a version only if `since` moves or a lease has expired. Safe at any time, beside anything.
        """
        _, advance = self.machine.apply(shard, lambda state: history.advance_since(state, now_ms=self.clock.now_ms()))
        return advance
