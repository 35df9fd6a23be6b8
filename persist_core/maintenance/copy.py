"""`persist copy`: shards of one location in another one, of any kind, while writers and GC go on at both.

    source   lease ─> state ─────────────────────────────────────────────> (lease ends)
    target        era ─> objects that are not there ─> compare-and-set ─> checkpoints, pins, `_latest`

1. The copy of a shard is one of its states. Its target shows the old state until one compare-and-set names the new one,
   whose objects are all there by then. A copier may die anywhere: the next one moves what is still missing.
2. The lease keeps what the state names from the source's GC. At the target, the compare-and-set is refused if GC has
   given up the era in which the copier looked for objects (`shard.eras`): then it looks again.
3. A copy is replaced only by a later state of the same shard (`shard.origin`).
4. Checkpoints are derived data: they follow the state, and one that is damaged or deleted meanwhile is left out.

docs/decisions/copy.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from persist_core.alerts.board import WatchBoard
from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.publish import settle_latest
from persist_core.errors import CorruptArtifact, Corruption, InvalidInput, LeaseExpired, PersistError, RunFailed
from persist_core.gc.collect import collect
from persist_core.handles.client import PersistClient
from persist_core.handles.read import ReadHandle
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import copy_probe_key, erased_prefix, owner_of
from persist_core.maintenance.copy_objects import Inventory, Mover, Named, are_apart, inventory_of, lists_of_erasures
from persist_core.maintenance.drop import create_again
from persist_core.maintenance.hidden import left_by_copies
from persist_core.protocol.fork_records import list_forks
from persist_core.shard.receive import (
    AHEAD,
    ANOTHER,
    TOO_LATE,
    ErasedLists,
    NotReceived,
    Received,
    move_away,
    receive,
    relation_of,
)
from persist_core.shard.state import ShardState
from persist_core.sources.shards import Refreshed

THREADS = 8  # the store's latency, not the processor, limits small objects
LEASE_MS = 1_800_000  # of the source: longer than any one object takes; a copier that dies holds nothing longer
MAX_ROUNDS = 8  # each but the first because GC, or a merge and GC, of one of the places was faster than the copy
MAX_LOOKS = 50  # for a moment in which no shard of a group has a commit: a second or less each

Progress = Callable[[str, int, int, int], None]  # shard, objects moved, objects to move, bytes moved


@dataclass(frozen=True)
class Copied:
    """One call's result for a shard. `objects` were moved, `known` were there already. `is_new`: the copy has another
    state than before. `notes` are for people: what was left out, and why."""

    shard: str
    upper: int | None
    objects: int = 0
    size_bytes: int = 0
    known: int = 0
    is_new: bool = False
    notes: tuple[str, ...] = ()


class _Again(Exception):
    """Another process was faster, so the copy of this state was not made."""


@dataclass
class _Task:
    """The copy of one state. `era`: the target's before its objects were listed, `owners`: the eras of shards that own
    shared files. `erased`: lists of erasures to compare. `to_move` counts what was missing then."""

    state: ShardState
    inventory: Inventory
    mover: Mover
    era: int
    owners: dict[str, int]
    old_checkpoints: tuple[str, ...]
    erased: ErasedLists
    to_move: int = 0
    result: Received | NotReceived = AHEAD
    notes: list[str] = field(default_factory=list)

    @property
    def shard(self) -> str:
        return self.state.shard


@dataclass
class Copier:
    source: PersistClient
    target: PersistClient
    _: KW_ONLY
    threads: int = THREADS
    progress: Progress = lambda *_: None
    verifies: bool = False
    _is_apart: bool = field(default=False, init=False)

    @property
    def _place(self) -> str:
        return f"blob {self.target.blob.uri}, consensus {self.target.location.consensus.uri}"

    def groups(self, shards: Iterable[str] = (), *, is_together: bool = False) -> list[list[str]]:
        """The shards (default: all that are not dropped) in the order in which to copy them, by calls of `copy`.

        Views come before their inputs, so that a copied view is never ahead of them. Raises `ShardNotFound`; for a
        shard whose state is damaged, `copy` raises.
        """
        named = list(dict.fromkeys(shards))

        def inputs_of(shard: str) -> tuple[str, ...] | None:
            try:
                state = self.source.state(shard)
            except Corruption:
                return ()
            refreshed = Refreshed.of(state.sources)
            return None if state.is_dropped and not named else tuple(refreshed.uppers if refreshed else ())

        every = named or self.source.shards()
        found = zip(every, side_by_side(inputs_of, every, threads=self.threads), strict=True)
        inputs = {shard: each for shard, each in found if each is not None}
        depths = _depths({name: [each for each in read if each in inputs] for name, read in inputs.items()})
        names = sorted(inputs, key=lambda name: (-depths[name], name))
        return [names] if is_together else [[name] for name in names]

    def copy(self, group: Sequence[str], *, is_move: bool = False) -> list[Copied]:
        """Copy these shards; a group as of one moment. A second call moves what is new.

        With `is_move` the source then accepts no more commits, and the last difference is copied; the target accepts
        none before it has that. If the move ends with an error, a second call goes on with it.
        Raises `InvalidInput` if the target has commits that the source does not have, `CorruptArtifact` if an object of
        the source is damaged, `ShardMoved` if it was moved elsewhere before: the target is as before.
        """
        if is_move:
            for state in map(self.source.state, group):
                if not state.is_dropped:
                    state.origin.moved(state.shard, self._place)  # raises
        done = self._copy(group, self._place if is_move else None)
        if is_move:
            for name in group:
                if not self.source.state(name).is_dropped:
                    self.source.machine.apply(name, lambda state: move_away(state, self._place))
            done = [_both(first, last) for first, last in zip(done, self._copy(group), strict=True)]
            for name in group:
                self._move_alerts(name)
        return done

    def _copy(self, group: Sequence[str], moving_to: str | None = None) -> list[Copied]:
        self._check_apart()
        last: Exception | None = None
        for _ in range(MAX_ROUNDS):
            states: list[ShardState] = []
            try:
                with ExitStack() as stack:
                    return self._copy_once(group, stack, states, moving_to)
            except (_Again, LeaseExpired) as error:
                last = error
            except CorruptArtifact as error:
                if all(self.source.state(each.shard).manifest_keys == each.manifest_keys for each in states):
                    raise
                last = error  # is the state outdated, whose lease has ended, and GC was faster than the copy?
        if isinstance(last, CorruptArtifact):
            raise last
        raise RunFailed(
            f"{', '.join(group)}: not copied in {MAX_ROUNDS} tries: {last}. What was moved stays there; copy again"
        )

    def _copy_once(
        self, group: Sequence[str], stack: ExitStack, states: list[ShardState], moving_to: str | None
    ) -> list[Copied]:
        done = {name: Copied(name, None, notes=("dropped at the source: not copied",)) for name in group}
        live = [name for name in group if not self.source.state(name).is_dropped]
        leases = {name: stack.enter_context(self._leased(name)) for name in live}
        states += self._as_of_one_moment(live)
        tasks = []
        for state in states:
            done[state.shard] = Copied(state.shard, state.upper.time, notes=("the target has a later state already",))
            task = self._task(state, leases)
            if task is not None:
                self._move(task, task.inventory.needed)
                tasks.append(task)
        ordered: dict[str, _Task] = {}  # inputs before views, forks before what they share files of: it refuses eras
        for task in reversed(tasks):
            ordered |= {each.shard: each for each in [*(fork for fork in tasks if task.shard in fork.owners), task]}
        for task in ordered.values():
            self._commit(task, moving_to)
        for task in tasks:
            if isinstance(task.result, Received):
                self._derive(task)
            known = len(task.inventory.objects) - task.mover.moved - len(task.notes)
            moved = task.mover.moved, task.mover.moved_bytes, known
            is_new = task.result == Received(is_new=True)
            notes = (*task.notes, *left_by_copies(self.source, task.state))
            done[task.shard] = Copied(task.shard, task.state.upper.time, *moved, is_new, notes)
        return list(done.values())

    @contextmanager
    def _leased(self, shard: str) -> Iterator[ReadHandle]:
        lease = self.source.open_leased_reader(shard, lease_ms=LEASE_MS)
        try:
            yield lease
        finally:
            with suppress(PersistError):  # it ends by itself
                lease.expire()

    def _as_of_one_moment(self, names: list[str]) -> list[ShardState]:
        """Their states at a time at which all of these were the newest: between two looks that find the same commits.

        Raises `RunFailed` if there is always a commit in between.
        """
        before: list[ShardState] = []
        for _ in range(MAX_LOOKS):
            states = side_by_side(self.source.state, names, threads=self.threads)
            if len(names) < 2 or [each.commits[-1:] for each in before] == [each.commits[-1:] for each in states]:
                return states
            before = states
        raise RunFailed(
            f"{', '.join(names)}: there was no moment without a commit in {MAX_LOOKS} looks. Copy fewer shards together"
        )

    def _task(self, state: ShardState, leases: dict[str, ReadHandle]) -> _Task | None:
        shard, lease = state.shard, leases[state.shard]
        there = self.target.machine.fetch(shard)
        if there is not None and lease.reader in there.leases:
            raise InvalidInput(
                f"{self.target.location.consensus.uri} is the consensus store of the source; expected another one:"
                " another file, database, schema or prefix"
            )
        erased = lists_of_erasures([(self.target, there), (self.source, state)])
        if there is not None and there.is_dropped:
            create_again(self.target, shard)
        elif there is not None and (relation := relation_of(there, state, erased)) is not None:
            self._refuse(shard, relation)
            return None
        elif there is not None and there.commits:
            with suppress(Corruption):  # of the target: what is missing there is copied now
                collect(self.target, shard)  # first of all, so that it deletes nothing that is found below
        inventory = inventory_of(self.source, state)
        owners = self._record_forks(shard, {owner_of(each.key) for each in inventory.needed} - {shard})
        there = self.target.machine.fetch(shard)
        mover = Mover(self.source.blob, self.target.blob, self.threads, self.verifies)
        old = Checkpointer(self.target.blob, shard).listing(threads=self.target.fetch_threads)
        checkpoints = (*old.unfinished, *(manifest.checkpoint_id for manifest in old.manifests))
        task = _Task(state, inventory, mover, there.era if there else 0, owners, checkpoints, erased)
        mover.look(self._prefixes(task))
        task.to_move = sum(not each.is_in(mover.found) for each in inventory.objects)
        mover.beat = self._beat(task, leases.values())
        return task

    def _prefixes(self, task: _Task) -> list[str]:
        return [f"{owner}/" for owner in (task.shard, *task.owners)]

    def _beat(self, task: _Task, leases: Iterable[ReadHandle]) -> Callable[[], None]:
        """After each object: say how far it is, and keep the leases."""
        renewed = [self.source.clock.now_ms()]

        def beat() -> None:
            self.progress(task.shard, task.mover.moved, task.to_move, task.mover.moved_bytes)
            now_ms = self.source.clock.now_ms()
            if now_ms - renewed[0] > LEASE_MS // 3:
                renewed[0] = now_ms
                for lease in leases:
                    lease.heartbeat()

        return beat

    def _record_forks(self, fork: str, owners: Iterable[str]) -> dict[str, int]:
        """Say at the target which files of `owners` the fork shares, before they are looked for; the owners' eras.

        As in `protocol.fork`, the fork's shard is there first, so that GC can refuse a copy that it has given up.
        """
        eras = {}
        for owner in sorted(owners):
            known = self.target.ensure_shard(fork)
            eras[owner] = self.target.ensure_shard(owner).era  # without the shard, GC would not look at its files
            recorded = {each.keys for each in list_forks(self.target.blob, owner) if each.fork == fork}
            for record in list_forks(self.source.blob, owner):
                if record.fork == fork and not (known.commits and record.keys in recorded):
                    record = replace(record, era=eras[owner])
                    self.target.blob.set(record.key, record.encode())
        return eras

    def _move(self, task: _Task, objects: Iterable[Named]) -> None:
        """Move what the state needs. Raises `CorruptArtifact` naming an object that is missing or damaged."""
        mover = task.mover
        mover.move(objects)
        if mover.damaged or mover.missing:
            raise CorruptArtifact(f"shard {task.shard} was not copied: {(mover.damaged or mover.missing)[0]}")

    def _commit(self, task: _Task, moving_to: str | None) -> None:
        """The one compare-and-set. What GC has deleted until then at the target is moved again after it."""
        for owner, era in task.owners.items():
            shared = self.target.machine.fetch(owner)
            if shared is not None and shared.oldest_era > era:
                raise _Again(f"GC of {owner} at the target may have deleted what {task.shard} shares with it")
        if task.state.origin.moved_to == moving_to:
            moving_to = None  # the source already accepts no commits: this state is the last one
        earlier = list(self.target.blob.list_keys_and_metadata(erased_prefix(task.shard))) if task.state.erased else []
        _, task.result = self.target.machine.apply(
            task.shard,
            lambda state: receive(state, task.state, era=task.era, erased=task.erased, moving_to=moving_to),
            create=True,
        )
        if task.result == Received(is_new=True):
            for entry in earlier:  # an eraser that stored one expects another list than the state has
                if entry.key != task.state.erased:
                    self.target.blob.delete(entry.key)
            task.mover.look(self._prefixes(task))
            self._move(task, task.inventory.needed)
        elif task.result == TOO_LATE:
            raise _Again("GC at the target has given up the era in which the copy began, or keys were erased there")
        elif isinstance(task.result, NotReceived):
            self._refuse(task.shard, task.result)
            task.notes.append("another copier was faster: the target has a later state")

    def _refuse(self, shard: str, relation: NotReceived) -> None:
        if relation == TOO_LATE:
            raise _Again(f"a list of erasures of {shard} was replaced meanwhile, or is missing")
        if relation == ANOTHER:
            raise InvalidInput(
                f"shard {shard} in {self._place} has commits or erasures that the shard to be copied does not have: it"
                " is another shard of that name, or a copy that was written to, or keys were erased in both places, or"
                " in the copy alone. Nothing was changed there. Copy into another location, or, if it is not needed,"
                f" drop it there first (`persist drop {shard}`)"
            )

    def _derive(self, task: _Task) -> None:
        """Checkpoints, pins, the pointer, and records of lost appends, as the source has them."""
        shard, mover, inventory = task.shard, task.mover, task.inventory
        checkpointer = Checkpointer(self.target.blob, shard)
        mover.move([*inventory.records, *(file for each in inventory.checkpoints.values() for file in each.files)])
        whole = [each for each in inventory.checkpoints.values() if all(file.is_in(mover.found) for file in each.files)]
        mover.move(each.manifest for each in whole)
        task.notes += (f"left out: {each}" for each in (*mover.missing, *mover.damaged))
        for checkpoint_id in sorted(checkpointer.pinned() ^ inventory.pinned):
            if checkpoint_id in inventory.pinned:
                with suppress(Corruption):  # it was left out
                    checkpointer.pin(checkpoint_id)
            else:
                checkpointer.unpin(checkpoint_id)
        settle_latest(self.target, shard)
        for checkpoint_id in reversed(task.old_checkpoints):  # retention at the source has deleted it
            if checkpoint_id not in inventory.known_checkpoints:
                with suppress(InvalidInput):  # the latest needs it
                    checkpointer.delete_checkpoint(checkpoint_id)

    def _move_alerts(self, shard: str) -> None:
        """Open alerts and who has acknowledged them go along, so that the new place does not send them again."""
        here, there = WatchBoard(self.source), WatchBoard(self.target)
        known = here.read()
        there.apply(lambda record: (record.with_moved(shard, known), None))
        here.forget(shard)

    def _check_apart(self) -> None:
        """Raise `InvalidInput` if the locations share a blob store: the GC of one would delete what the other needs."""
        if self._is_apart:
            return
        probe = copy_probe_key(self.target.ids.uuid7())
        self._is_apart = are_apart(self.source.blob, self.target.blob, probe)
        if not self._is_apart:
            raise InvalidInput(
                f"{self.target.blob.uri} and {self.source.blob.uri} are one blob store, or lie in one another; expected"
                " another folder, bucket or prefix"
            )
        self.target.pair.make(mends=True)  # of a target that has lost its files


def _depths(inputs: dict[str, list[str]]) -> dict[str, int]:
    """How many layers of inputs lie below each view. Views whose files were turned round between refreshes have read
    one another: such a cycle is cut."""
    depths: dict[str, int] = {}
    while len(depths) < len(inputs):  # each turn but the last cuts one of the inputs
        try:
            for name in TopologicalSorter(inputs).static_order():
                depths[name] = 1 + max((depths[each] for each in inputs[name]), default=0)
        except CycleError as error:
            read, view, *_ = error.args[1]
            inputs[view].remove(read)
    return depths


def _both(first: Copied, last: Copied) -> Copied:
    return replace(
        last,
        objects=first.objects + last.objects,
        size_bytes=first.size_bytes + last.size_bytes,
        known=first.known,
        is_new=first.is_new or last.is_new,
        notes=tuple(dict.fromkeys((*first.notes, *last.notes))),
    )
