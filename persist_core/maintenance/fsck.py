"""`persist fsck`: check that a shard keeps its invariants. Reads everything; only `repair` changes anything.

    check_state     every version of the state; batch manifests against the state; staged operator state
    check_contents  parts: size, digest, format, bounds, counts; the updates keep the invariants at every time
    check_objects   checkpoints against their commits, their files, `_latest`; progress of sources; records of GC, forks
                    and conflicts

1. No damage stops a check of something else: errors are reported, and everything that can still be read is read.
2. No violation means that all of the above is intact, byte for byte.
3. `repair` writes again what commits determine (checkpoints, copies of operator state, offsets, `_latest`), and moves
   checkpoint manifests that nothing can derive into the quarantine. A shard whose state is gone it makes again, empty.
   It changes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.alerts.board import WatchBoard
from persist_core.checkpoint.publish import CheckpointRepair, repair_checkpoints
from persist_core.errors import Corruption
from persist_core.handles.client import PersistClient
from persist_core.keys import CheckpointLayout, is_shard_name, owner_of
from persist_core.maintenance.check_contents import Counted, check_contents
from persist_core.maintenance.check_objects import check_checkpoints, check_records, check_sources
from persist_core.maintenance.check_state import check_operator_state, read_manifests, read_state
from persist_core.maintenance.violations import STORAGE, Violation, Violations

MAX_FINDING_CHARS = 500  # that are remembered of the first finding


@dataclass(frozen=True)
class FsckReport:
    """The objects examined, and the violations found: damage first, then what a store that failed did not give."""

    shard: str
    batches: int
    parts: int
    updates: int
    size_bytes: int
    violations: tuple[Violation, ...]

    @property
    def is_clean(self) -> bool:
        return not self.violations

    @property
    def damage(self) -> tuple[Violation, ...]:
        return tuple(each for each in self.violations if each.check != STORAGE)


def fsck(client: PersistClient, shard: str) -> FsckReport:
    """Check one shard completely. Damage is reported, never raised. Raises `ShardNotFound` if it does not exist."""
    found = Violations(shard)
    state = read_state(client, shard, found)
    counted, batches = Counted(0, 0, 0), 0
    with found.checking("location", f"the location of shard {shard}"):
        client.pair.check()
    if state is not None and not state.is_dropped:
        examined = read_manifests(client, state, found)
        batches = len(state.batches)
        with found.checking("part", f"the parts of shard {shard}"):
            counted = check_contents(examined, found)
        for check, run in (
            ("operator_state", check_operator_state),
            ("source_progress", check_sources),
            ("record", check_records),
            ("checkpoint", check_checkpoints),
        ):
            with found.checking(check, f"shard {shard}"):
                run(examined, found)
    violations = tuple(sorted(found.report(), key=lambda each: each.check == STORAGE))
    return FsckReport(shard, batches, counted.parts, counted.updates, counted.size_bytes, violations)


def lost_shards(client: PersistClient) -> list[str]:
    """Shards whose state is gone from consensus though their `_latest` is there, sorted. It lists all blobs."""
    owners = {
        owner
        for blob in client.blob.list_keys_and_metadata("")
        if is_shard_name(owner := owner_of(blob.key)) and blob.key == CheckpointLayout(owner).latest
    }
    return sorted(owners.difference(client.shards()))  # read last: a shard precedes its `_latest`


def remember(client: PersistClient, report: FsckReport) -> None:
    """Keep the result for `persist_watch`, which alerts until an fsck finds nothing (docs/alerts.md). If a store failed
    and nothing else was found, the last result stays.

    Of the first finding, the check and the object: behind the object a message may show a row, which an erasure of its
    key would not reach in this record.
    """
    if not report.is_clean and not report.damage:
        return
    found = report.damage[:1]
    first = "".join(f"{each.check}: {each.message.partition(': ')[0]}" for each in found)
    WatchBoard(client).record_check(report.shard, len(report.damage), first[:MAX_FINDING_CHARS])


def repair(client: PersistClient, shard: str) -> CheckpointRepair:
    """Write again what can be derived from the shard's commits, as `repair_checkpoints` does. Run `fsck` again to find
    what is left.

    Safe at any time, also during runs of the shard.
    """
    try:
        return repair_checkpoints(client, shard)
    except Corruption as error:  # of the state itself: nothing can be derived
        return CheckpointRepair((), not_repaired=(str(error),))
