"""`Store`: a location with a clock and ids, which all handles on its shards share."""

from __future__ import annotations

from persist_core.clock import Clock, SystemClock
from persist_core.contents.parts import PARQUET, PartFormat
from persist_core.handles.pair import Pair
from persist_core.ids import Ids, RandomIds
from persist_core.location.blob import Blob
from persist_core.location.open import OpenLocation
from persist_core.shard.machine import Machine
from persist_core.shard.register import Register

FETCH_THREADS = 8  # parts are fetched side by side: latency of a store, not work


class Store:
    """Cheap; holds no state but the location's connections.

    `fetch_threads`: how many blobs are fetched concurrently; with 1 all calls come from the caller's own thread.
    """

    def __init__(
        self,
        location: OpenLocation,
        clock: Clock | None = None,
        ids: Ids | None = None,
        *,
        fetch_threads: int = FETCH_THREADS,
        part_format: PartFormat = PARQUET,
    ) -> None:
        self.location = location
        self.clock: Clock = clock or SystemClock()
        self.ids: Ids = ids or RandomIds(self.clock)
        self.pair = Pair(location, Register(location.consensus, self.clock, self.ids), self.ids)
        self.machine = Machine(location.consensus, self.clock, self.ids, self.pair.make)
        self.fetch_threads = fetch_threads
        self.part_format = part_format

    @property
    def blob(self) -> Blob:
        """The location's blob store."""
        return self.location.blob
