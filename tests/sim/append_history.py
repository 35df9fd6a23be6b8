"""Histories of appends: many writers of one shard, a consensus that fails on purpose, and what must hold afterwards.

    writers --compare_and_append--> Machine --> recorded --> paused --> unreliable --> the consensus under test
                   |                                |
         what each learned                    every call, with its moments
                   '--------> AppendHistory.check <-'

1. The log of consensus is linearizable: `linearize.find_order`.
2. An append that was acknowledged is in the log exactly once, under its token and with its contents.
3. An append that was reported as not done is not in the log.
4. An append with an unknown outcome (its writer died or gave up) is in the log at most once.
5. Every version decodes and follows the one before it: `persist_core.shard.invariants`.

All chance comes from the seed. With `is_stepped` the calls of the writers interleave as the seed says, and a history
repeats itself; without it the writers are free threads, and race freely.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from persist_core.contents.batch import BatchCounts, BatchDescription, BatchManifest
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import Determinate, StorageError
from persist_core.handles.client import PersistClient
from persist_core.handles.write import manifest_for
from persist_core.location.consensus import SCAN_ALL, CaSResult, Consensus, VersionedData
from persist_core.location.mem import MemBlob
from persist_core.location.open import OpenLocation
from persist_core.schema import CollectionSchema, Column
from persist_core.shard.codec import decode_state
from persist_core.shard.invariants import check_step
from persist_core.shard.machine import Machine
from persist_core.shard.state import Commit, Committed, ShardState
from tests.sim.linearize import RecordedConsensus, Recorder, Versions, explain, find_order
from tests.sim.turns import Pause, SteppedConsensus, take_turns
from tests.suites.faults import FaultRates, Outcome, SeededFaults, UnreliableConsensus
from tests.virtual import ManualClock, SeededIds

ROUGH = FaultRates(lost_answer=0.12, lost_request=0.08, refused=0.08, late=0.08)
SMOOTH = FaultRates(lost_answer=0, lost_request=0, refused=0)  # for stores that fail on their own
THREAD_TIMEOUT_S = 120.0  # for one writer of a history of free threads

_SCHEMA = SchemaVersions().placed(CollectionSchema(key=(Column("id", "bigint", nullable=False),)))
_TRIES = 3  # of one append, after answers that were lost
_GIVES_UP = 0.3  # after a try without an answer: its result stays unknown
_APPENDS_AGAIN = 0.2  # an append that is there already, as a cleared task does
_TRUNCATES_EVERY = 3  # one in so many histories: writers also delete old versions
_STREAMS = 1000  # of chance, for one seed


class Told(enum.Enum):
    """A writer's knowledge about an append when it has finished it."""

    DONE = "done"
    NOT_DONE = "not done"
    UNKNOWN = "unknown"


class WriterDied(BaseException):
    """A writer's death: no `except Exception` may survive it."""


@dataclass(frozen=True)
class AppendHistory:
    """The calls, the answers and the stored state. `told` is by token."""

    seed: int
    recorder: Recorder
    told: dict[str, Told]
    commits: dict[str, Commit]
    final: Versions
    injected: Counter[Outcome]
    deaths: int
    contradictions: list[str]

    def check(self) -> None:
        """Raise `AssertionError`, with the seed and the history, unless the module's five claims hold."""
        try:
            if self.contradictions:
                raise AssertionError(self.contradictions[0])
            if find_order(self.recorder.calls, self.final) is None:
                raise AssertionError("the log is not linearizable")
            logged = _commits_by_version(self.final)
            for token, told in self.told.items():
                self._check_append(token, told, logged.get(token, []))
            for token in logged.keys() - self.told.keys():
                raise AssertionError(f"token {token} is in the log, and nobody appended it")
        except AssertionError as error:
            lines = "\n".join(f"{token}: {what.value}" for token, what in sorted(self.told.items()))
            raise AssertionError(
                f"history of seed {self.seed}: {error}\n{lines}\n{explain(self.recorder.calls, self.final)}"
            ) from None

    def _check_append(self, token: str, told: Told, logged: list[Commit]) -> None:
        wanted = {Told.DONE: (1,), Told.NOT_DONE: (0,), Told.UNKNOWN: (0, 1)}[told]
        if len(logged) not in wanted:
            raise AssertionError(f"append {token} is {told.value}, and {len(logged)} times in the log")
        if told is Told.DONE and logged[0] != self.commits[token]:
            raise AssertionError(f"append {token} was told {self.commits[token]}; the log has {logged[0]}")


def append_history(
    seed: int,
    store: Consensus,
    *,
    shard: str = "shard",
    writers: int = 3,
    appends: int = 2,
    rates: FaultRates = ROUGH,
    death_rate: float = 0.02,
    is_stepped: bool = True,
    log: Consensus | None = None,
) -> AppendHistory:
    """Run one history over `store`, on an unused shard, and return it unchecked.

    `log` reads the same store without what makes `store` fail, where that is not only `rates` (default: `store`).
    """
    recorder = Recorder(shard)
    unreliable = UnreliableConsensus(store, SeededFaults(_ids(seed, 1), rates))
    truncates = seed % _TRUNCATES_EVERY == 0
    players = [
        _Writer(f"w{number}", _ids(seed, 2 + number), shard, appends, truncates=truncates) for number in range(writers)
    ]

    def play(writer: _Writer, pause: Pause) -> None:
        paused = SteppedConsensus(unreliable, pause) if is_stepped else unreliable
        writer.play(RecordedConsensus(_Mortal(paused, writer.ids, death_rate), recorder))

    if is_stepped:
        take_turns(_ids(seed, 0), [partial(play, writer) for writer in players])
    else:
        _in_threads([partial(play, writer, lambda: None) for writer in players])
    unreliable.deliver_late()
    return AppendHistory(
        seed,
        recorder,
        {token: told for writer in players for token, told in writer.told.items()},
        {token: commit for writer in players for token, commit in writer.commits.items()},
        tuple((log or store).scan(shard, 0)),
        unreliable.injected,
        sum(writer.deaths for writer in players),
        [text for writer in players for text in writer.contradictions],
    )


class _Writer:
    """Appends one batch after the other; dies now and then, and a successor goes on with the same append."""

    def __init__(self, name: str, ids: SeededIds, shard: str, appends: int, *, truncates: bool) -> None:
        self.name, self.ids, self.shard, self.appends, self.truncates = name, ids, shard, appends, truncates
        self.told: dict[str, Told] = {}
        self.commits: dict[str, Commit] = {}
        self.contradictions: list[str] = []
        self.deaths = 0

    def play(self, consensus: Consensus) -> None:
        for number in range(self.appends):
            token = f"{self.name}.{number}"
            self.told[token] = Told.NOT_DONE
            manifest: BatchManifest | None = None
            for _ in range(_TRIES):
                client = PersistClient(OpenLocation(MemBlob(), consensus), ManualClock(), self.ids)
                client.machine = Machine(consensus, client.clock, self.ids)  # which has no blobs to compare with
                try:
                    manifest = manifest or self._mint(client, token)
                    self._append(client, manifest)
                except StorageError:
                    if self.ids.jitter() < _GIVES_UP:
                        break
                except WriterDied:
                    self.deaths += 1
                    if self.ids.jitter() < _GIVES_UP:
                        break
                else:
                    if self.told[token] is Told.NOT_DONE or self.ids.jitter() >= _APPENDS_AGAIN:
                        break
            if self.truncates:
                self._truncate(consensus)

    def _truncate(self, consensus: Consensus) -> None:
        """Keep the newest version only: a writer that reads back an older one finds nothing."""
        with suppress(StorageError, WriterDied):
            head = consensus.head(self.shard)
            if head is not None:
                consensus.truncate(self.shard, head.seqno)

    def _mint(self, client: PersistClient, token: str) -> BatchManifest:
        state = client.ensure_shard(self.shard)
        lower = state.upper.time or 0
        description = BatchDescription(
            self.shard, lower, lower + 1 + int(self.ids.jitter() * 3), token, self.ids.uuid7(),
            epoch=state.newest_commit.epoch + 1 if state.newest_commit else 1, parent_id=None, writer=self.name,
        )  # fmt: skip
        return manifest_for(description, _SCHEMA, (), BatchCounts(), rows=token)

    def _append(self, client: PersistClient, manifest: BatchManifest) -> None:
        """One try. Once an append is known to be done it stays so; a later answer may only say the same."""
        known = self.commits.get(manifest.token)
        try:
            result = client.open_writer(self.shard).compare_and_append(manifest, f"{self.shard}/{manifest.token}")
        except Determinate:
            raise  # this try did nothing; the outcome of earlier ones is known already
        except BaseException:
            if known is None:
                self.told[manifest.token] = Told.UNKNOWN
            raise
        if known is not None:
            if not isinstance(result, Committed) or result.is_new or result.commit != known:
                self.contradictions.append(f"append {manifest.token} was told {known}, and then {result}")
        elif isinstance(result, Committed):
            self.told[manifest.token], self.commits[manifest.token] = Told.DONE, result.commit
        else:
            self.told[manifest.token] = Told.NOT_DONE


class _Mortal:
    """A `Consensus` whose caller dies at some calls: half of the time before the store got the request."""

    def __init__(self, inner: Consensus, ids: SeededIds, death_rate: float) -> None:
        self._inner, self._ids, self._death_rate = inner, ids, death_rate
        self.list_keys = inner.list_keys
        self.truncate = inner.truncate
        self.close = inner.close

    def head(self, key: str) -> VersionedData | None:
        self._live_on()
        return self._inner.head(key)

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        self._live_on()
        result = self._inner.compare_and_set(key, expected, new)
        self._live_on()
        return result

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        self._live_on()
        return self._inner.scan(key, from_seqno, limit)

    @property
    def uri(self) -> str:
        return self._inner.uri

    def _live_on(self) -> None:
        if self._ids.jitter() < self._death_rate:
            raise WriterDied


def _commits_by_version(final: Versions) -> dict[str, list[Commit]]:
    """Token to the commits that versions made; checks that each version follows the one before it.

    For truncated versions, the first that is left is enough: states keep more commits than a history makes.
    """
    found: dict[str, list[Commit]] = {}
    before: ShardState | None = None
    for version in final:
        state = decode_state(version.data).state
        check_step(before, state)
        if before is None:
            for commit in state.commits[:-1]:
                found.setdefault(commit.token, []).append(commit)
        newest = state.newest_commit
        if newest is not None and (before is None or before.newest_commit != newest):
            found.setdefault(newest.token, []).append(newest)
        before = state
    return found


def _in_threads(work: list[Callable[[], None]]) -> None:
    """Run all of `work` concurrently; raises the error of the first that failed."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - it must reach the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(THREAD_TIMEOUT_S)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"a writer did not come to its end within {THREAD_TIMEOUT_S:g} s")


def _ids(seed: int, stream: int) -> SeededIds:
    """One of several independent streams of chance that belong to one seed."""
    return SeededIds(seed * _STREAMS + stream, ManualClock())


__all__ = ["ROUGH", "SMOOTH", "AppendHistory", "Told", "WriterDied", "append_history"]
