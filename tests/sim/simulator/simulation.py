"""One simulation from its start to its last check, and where all of it is put together.

Scenario + Decisions --> actors on simulated stores --> closing dag runs without faults --> last checks --> Outcome
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.clock import Clock
from persist_core.contents import part_lists
from persist_core.contents.batch import BatchDescription
from persist_core.errors import OutdatedDescription
from persist_core.frontier import Frontier
from persist_core.handles.client import PersistClient
from persist_core.location.blob import Blob
from persist_core.location.consensus import Consensus
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.maintenance.copy import Copier
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.shard.state import Committed
from tests.sim.simulator.actors import (
    checkpoint_some,
    collect_some,
    copy_some,
    fork_some,
    hold_some,
    merge_some,
    restore_some,
    scrub_some,
    write_some,
)
from tests.sim.simulator.dag_runs import DagRuns, ends_of
from tests.sim.simulator.decoded_once import decoded_once
from tests.sim.simulator.history import keep_some
from tests.sim.simulator.jumping_clock import JumpingClock
from tests.sim.simulator.reachable import reachable
from tests.sim.simulator.reading import check_snapshot, read_some, read_without_lease
from tests.sim.simulator.referee import Referee
from tests.sim.simulator.scheduler import (
    MAX_TRIES,
    Decisions,
    Failure,
    Scheduler,
    ScriptedDecisions,
    SeededDecisions,
)
from tests.sim.simulator.script import Scenario, Script
from tests.sim.simulator.stores import SimulatedBlob, SimulatedConsensus, SlowToCommit, Unseen
from tests.sim.simulator.workload import CLOSING_ENDS, INTERVAL_ENDS, SHARD, Feed, ids_of, input_folder
from tests.sim.simulator.world import (
    GRACE_MS,
    INTENT_MS,
    SLOW_ERAS_END,
    SLOW_MERGES,
    Stages,
    collect_garbage,
    linger,
)
from tests.sim.simulator.write_stage import ArrowParts
from tests.virtual import ManualClock

START_MS = 1_700_000_000_000
SLOW_MINT_MS = 600_000
MAX_ERAS = 2 * INTENT_MS // GRACE_MS + 8  # until GC has nothing to do any more, what it deletes by what it deleted too
LONG_MS = 10 * 365 * 86_400_000  # longer than any clock here is ahead, and any lease


@dataclass(frozen=True)
class Parts:
    """The simulated parts: the product's own, or with a defect that a test has planted.

    `consensus` makes the store below the faults; `blob` wraps one that the referee sees as it is.
    """

    stages: Stages = field(default_factory=Stages)
    consensus: Callable[[], Consensus] = MemConsensus
    blob: Callable[[MemBlob], Blob] = lambda inner: inner


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation: the deviations that took place, all calls, and the finding, if any."""

    script: Script
    log: tuple[tuple[str, str], ...]
    failure: Failure | None
    commits: int

    def __str__(self) -> str:
        if self.failure is None:
            return f"{len(self.log)} calls, {self.commits} commits, nothing found"
        return f"{self.failure.kind}: {self.failure.message}\n{self.script}"


def simulate(scenario: Scenario, decisions: Decisions | None = None, parts: Parts | None = None) -> Outcome:
    """Run one simulation. Without `decisions` the scenario's seed decides."""
    # In one of four simulations all manifests of two parts and more have lists.
    max_parts = patch.object(part_lists, "MAX_PARTS", 1 if scenario.seed % 4 == 3 else part_lists.MAX_PARTS)
    with input_folder() as folder, decoded_once(), max_parts:
        simulation = _Simulation(scenario, decisions, parts or Parts(), folder)
        with closing(simulation.consensus):
            return simulation.run()


def simulate_seed(seed: int, parts: Parts | None = None) -> Outcome:
    """The simulation of a seed: it says who takes part, what they do, and what happens to them."""
    return simulate(Scenario.drawn(seed, ids_of(Scenario(seed), "scenario")), parts=parts)


def replay(script: Script, parts: Parts | None = None) -> Outcome:
    """Run exactly these steps."""
    return simulate(script.scenario, ScriptedDecisions(script.steps), parts)


class _Simulation:
    """The world of one simulation."""

    def __init__(self, scenario: Scenario, decisions: Decisions | None, parts: Parts, folder: Path) -> None:
        self.scenario = scenario
        self.stages = parts.stages
        self.clock = ManualClock(START_MS)
        self.feed = Feed(scenario, folder)
        self.config = self.feed.config
        self.forks: dict[str, str] = {}
        self.committed: dict[str, BatchDescription] = {}
        self._real_blob = MemBlob(clock=self.clock)
        self.scheduler = Scheduler(decisions or SeededDecisions(ids_of(scenario, "decisions")), self.clock)
        self.referee = Referee(self._real_blob, self.feed, self.fail, lambda: self.scheduler.current)
        self._blob_of_all = parts.blob(self._real_blob)
        self.blob = SimulatedBlob(self._blob_of_all, self.scheduler, self.referee)
        self._real_consensus = parts.consensus()
        self.consensus = SimulatedConsensus(self._real_consensus, self.scheduler, self.referee)
        self._real_backup = OpenLocation(MemBlob(clock=self.clock), MemConsensus())

    def client(self, name: str) -> PersistClient:
        if self.scenario.eras < 2:
            return self._client(name, self.blob)
        others = self._client(f"{name} meanwhile", self.blob)
        be_slow = partial(linger, self, others, ends=SLOW_ERAS_END, merges=SLOW_MERGES)
        blob = SlowToCommit(self._blob_of_all, self.scheduler, self.referee, be_slow)
        return self._client(name, blob)

    def _client(self, name: str, blob: Blob) -> PersistClient:
        clock: Clock = self.clock
        if self.clocks_jump:
            clock = JumpingClock(self.clock, ids_of(self.scenario, f"{name} clock"))
        location = OpenLocation(blob, self.consensus)
        return PersistClient(
            location, clock, ids_of(self.scenario, name, clock), fetch_threads=1, part_format=ArrowParts()
        )

    def backup(self, name: str) -> PersistClient:
        real = self._real_backup
        blob = SimulatedBlob(real.blob, self.scheduler, Unseen())
        location = OpenLocation(blob, SimulatedConsensus(real.consensus, self.scheduler, Unseen()))
        ids = ids_of(self.scenario, f"{name} backup", self.clock)
        return PersistClient(location, self.clock, ids, fetch_threads=1, part_format=ArrowParts())

    def now_ms(self) -> int:
        return self.clock.now_ms()

    @property
    def clocks_jump(self) -> bool:
        return self.scenario.jumps > 0

    def give_way(self) -> None:
        self.scheduler.give_way()

    def fail(self, kind: str, message: str) -> NoReturn:
        self.scheduler.fail(kind, message)

    def run(self) -> Outcome:
        scenario, start = self.scenario, self.scheduler.start
        for number in range(1, scenario.writers + 1):
            self._start_writer(f"writer-{number}")
        for number in range(1, scenario.slow_mints + 1):
            start(f"slow-mint-{number}", partial(self._mint_slowly, number))
        for role, count, work, times in (
            ("reader", scenario.readers, read_some, 2),
            ("checkpointer", scenario.checkpointers, checkpoint_some, 2),
            ("collector", scenario.collectors, collect_some, 7),
            ("holder", scenario.holders, hold_some, 3),
            ("plain-writer", scenario.plain_writers, write_some, 2),
            ("restorer", scenario.restorers, restore_some, 2),
            ("scrubber", scenario.scrubbers, scrub_some, 3),
            ("merger", scenario.mergers, merge_some, 3),
            ("keeper", scenario.keepers, keep_some, 3),
            ("forker", scenario.forkers, fork_some, 2),
            ("browser", scenario.browsers, read_without_lease, 3),
            ("copier", scenario.copiers, copy_some, 3),
        ):
            for number in range(1, count + 1):
                name = f"{role}-{number}"
                start(name, partial(work, self, name, times))
        if self.feed.late:
            start("feeder", self._drop_late_files)
        self.scheduler.run()
        if self.scheduler.failure is None:
            self.scheduler.decisions = ScriptedDecisions(())
            start("closing", self._close)
            self.scheduler.run()
        state = self.referee.state
        return Outcome(
            Script(scenario, tuple(self.scheduler.steps)),
            tuple(self.scheduler.log),
            self.scheduler.failure,
            len(state.commits) if state else 0,
        )

    def _start_writer(self, name: str) -> None:
        runs = DagRuns(self, name, ends_of(ids_of(self.scenario, f"{name} ends"), INTERVAL_ENDS))

        def begin() -> None:
            successor = begin if runs.tries + 1 < MAX_TRIES else None
            started = f"{name}+{runs.tries + 1}" if runs.tries else name
            self.scheduler.start(started, runs.work, successor)

        begin()

    def _mint_slowly(self, number: int) -> None:
        """A zombie of all dag runs of a writer, which is slow after each mint and otherwise goes on like the writer."""
        name = f"writer-{number}"
        ends = ends_of(ids_of(self.scenario, f"{name} ends"), INTERVAL_ENDS)
        DagRuns(self, name, ends, worker=f"slow-mint-{number}", after_mint_ms=SLOW_MINT_MS).work()

    def _drop_late_files(self) -> None:
        for file in self.feed.late:
            self.scheduler.call(f"drop {file.name}")
            self.feed.drop(file)

    def _close(self) -> None:
        """A few more dag runs without faults must complete everything; then the last checks."""
        for file in self.feed.late:
            self.feed.drop(file)
        for end in CLOSING_ENDS:
            DagRuns(self, f"closing-{end}", [end]).work()
            if self.referee.consumed == self.feed.known.keys():
                break
        client = self.client("last checks")
        stages.checkpoint(client, self.config)
        state = client.state(SHARD)
        if state.upper < Frontier(CLOSING_ENDS[0]) or self.referee.consumed != self.feed.known.keys():
            self.fail("unfinished", f"upper {state.upper}, consumed {sorted(self.referee.consumed)}")
        newest = state.newest_commit
        latest = Checkpointer(self._real_blob, SHARD).read_latest()
        if newest is None or latest != newest.checkpoint_id:
            self.fail("latest", f"in the end _latest is {latest}; the newest commit is {newest}")
        report = fsck(client, SHARD)
        if not report.is_clean:
            self.fail("fsck", f"{report.violations}")
        self._retry_all(client)
        self._collect_all()

    def _retry_all(self, client: PersistClient) -> None:
        """Every committed description is tried again, when its input is long gone: it must end as already committed."""
        self.feed.archive()
        for token, description in self.committed.items():
            try:
                key = self.stages.write(client, self.config, description)
            except OutdatedDescription:
                key = stages.manifest_of_outdated(client, self.config, description)
            result = self.stages.append(client, description, key)
            if not isinstance(result, Committed) or result.commit.token != token:
                self.fail("retry", f"{description} is committed; another try of it ended in {result}")

    def _collect_all(self) -> None:
        """When no actor is at work any more, GC deletes all that nothing needs, and nothing else."""
        location = OpenLocation(self._real_blob, self._real_consensus)
        client = PersistClient(location, self.clock, ids_of(self.scenario, "end", self.clock), fetch_threads=1)
        client.part_format = ArrowParts()
        self.clock.sleep_ms(LONG_MS)  # leases expire
        left: set[str] = set()
        for _ in range(MAX_ERAS):
            collected = collect_garbage(client)
            self.clock.sleep_ms(GRACE_MS)
            if collected.marked == collected.waiting == 0:
                left = {entry.key for entry in self._real_blob.list_keys_and_metadata(f"{SHARD}/")}
                left -= reachable(self._real_blob, self._real_consensus, SHARD)
                if not left:
                    break
        else:
            self.fail("garbage", f"GC has left {sorted(left)}")
        report = fsck(client, SHARD)
        if not report.is_clean:
            self.fail("fsck", f"after GC: {report.violations}")
        upper = client.state(SHARD).upper.time
        assert upper is not None  # no simulation closes its shard
        check_snapshot(self, client.open_reader(SHARD), upper - 1)
        if self.scenario.copiers:
            self._check_copy(client)
        for name, checkpoint_id in self.forks.items():
            state = client.state(name)
            assert state.upper.time is not None
            check_snapshot(self, client.open_reader(name), state.upper.time - 1)
            self.referee.check_fork(name, state, checkpoint_id)

    def _check_copy(self, client: PersistClient) -> None:
        """One more copy, without faults, is whole, whatever the copiers have left behind."""
        real, ids = self._real_backup, ids_of(self.scenario, "end of the copy", self.clock)
        backup = PersistClient(real, self.clock, ids, fetch_threads=1, part_format=ArrowParts())
        Copier(client, backup, threads=1).copy([SHARD])
        for _ in range(MAX_ERAS):
            collect_garbage(backup)
            self.clock.sleep_ms(GRACE_MS)
        left = {entry.key for entry in real.blob.list_keys_and_metadata(f"{SHARD}/")}
        if left != reachable(real.blob, real.consensus, SHARD):
            self.fail("copy", f"the copy has {sorted(left)}; needed are {reachable(real.blob, real.consensus, SHARD)}")
        report = fsck(backup, SHARD)
        if not report.is_clean:
            self.fail("copy", f"fsck of the copy: {report.violations}")
        ours, theirs = client.state(SHARD), backup.state(SHARD)
        if (ours.commits, ours.batches) != (theirs.commits, theirs.batches):
            self.fail("copy", f"the copy has {theirs.commits}; the source has {ours.commits}")
        check_snapshot(self, backup.open_reader(SHARD), (ours.upper.time or 1) - 1)
