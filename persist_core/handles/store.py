"""`Store`: a location with a clock and ids, which all handles on its shards share; and the id that its two stores hold.

    before a new shard:      consensus ──id, by compare-and-set──> blobs; then the shard
    before each new shard, and before garbage is deleted: do both hold the same id?

Another consensus store (a disk that is not mounted, a new database, another URI) has no shards. Runs would begin every
table again beside the files of the real one, and GC would delete these.
"""

from __future__ import annotations

from persist_core.clock import Clock, SystemClock
from persist_core.contents.parts import PARQUET, PartFormat
from persist_core.errors import ConfigError
from persist_core.ids import Ids, RandomIds
from persist_core.keys import LOCATION, is_shard_name
from persist_core.location.blob import Blob
from persist_core.location.consensus import VersionedData
from persist_core.location.open import OpenLocation
from persist_core.shard.machine import Machine
from persist_core.shard.register import Register

FETCH_THREADS = 8  # parts are fetched side by side: latency of a store, not work


class Pair:
    def __init__(self, location: OpenLocation, register: Register, ids: Ids) -> None:
        self._location, self._register, self._ids = location, register, ids

    def check(self) -> None:
        """Raise `ConfigError` if the stores are not of one location."""
        self._checked()

    def make(self, *, mends: bool = False) -> None:
        """Check the pair, and give new stores an id, consensus first. `mends`: blobs without one get it from consensus.

        Raises `ConfigError` as `check`.
        """
        named, stored = self._checked(mends=mends)
        if named is None:
            own = self._ids.uuid7().encode()
            named = self._register.change(
                LOCATION,
                lambda head: (VersionedData(0, own), own) if head is None else (None, head.data),
                "the location's id",
            )
        if stored is None:
            self._location.blob.set(LOCATION, named)

    def _checked(self, *, mends: bool = False) -> tuple[bytes | None, bytes | None]:
        """Both ids. Of a location that is being made, which has no shard yet, consensus may have the only one."""
        named, stored = self._stored()
        if named != stored:
            is_unfinished = mends or not any(is_shard_name(key) for key in self._location.consensus.list_keys())
            named, stored = self._stored()  # another process may have been between the two
            if named is None or stored is not None or not is_unfinished:
                self._refuse_other(named, stored)
        return named, stored

    def _stored(self) -> tuple[bytes | None, bytes | None]:
        head = self._register.head(LOCATION)
        return None if head is None else head.data, self._location.blob.get(LOCATION)

    def _refuse_other(self, named: bytes | None, stored: bytes | None) -> None:
        if named == stored:
            return
        consensus, blobs = (text.decode("ascii", "replace") if text else "none" for text in (named, stored))
        raise ConfigError(
            f"{self._location.consensus.uri} and {self._location.blob.uri} are not the stores of one location: its id"
            f" in consensus is {consensus}, in the blobs (`{LOCATION}`) it is {blobs}. One of them was lost, is not"
            " mounted, or has another URI. Nothing was changed. Give the right pair, or restore what was lost"
            " (docs/deploy.md, Backup and restore); to begin with nothing, give two empty stores"
        )


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
        return self.location.blob
