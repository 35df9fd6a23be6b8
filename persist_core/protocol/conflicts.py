"""Conflicts as records: `persist conflicts` lists them, and notifiers fire once for each.

A conflict is one description that lost its append. Its record's key comes from the description's token, so that a
retry or a zombie that loses again with the same description finds the record there and does not alert twice.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass

from persist_core.clock import Clock
from persist_core.contents.batch import BatchDescription
from persist_core.errors import CorruptArtifact
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import conflict_key, conflicts_prefix
from persist_core.location.blob import Blob
from persist_core.sealed import Sealed, check_in_place
from persist_core.shard.state import UpperMismatch
from persist_core.time_text import show_interval, show_time


@dataclass(frozen=True)
class ConflictRecord(Sealed):
    """Both sides of a lost append. `winner` is the writer whose commit covers the expected upper, if still known."""

    KIND = "conflict"

    conflict_id: str
    shard: str
    expected_upper: int
    found_upper: int | None
    description_upper: int | None
    loser: str
    winner: str | None
    winner_committed_ms: int | None
    token: str
    detected_ms: int

    @classmethod
    def read(cls, data: bytes, key: str) -> ConflictRecord:
        """The record under `key`. Raises as `decode`, and for a record of another place."""
        record = cls.decode(data, what=f"conflict record {key}")
        check_in_place(conflict_key(record.shard, record.conflict_id), key, what=f"conflict record {key}")
        return record

    def __str__(self) -> str:
        lost = show_interval(self.expected_upper, self.description_upper)
        if self.found_upper == self.expected_upper:
            return (
                f"the batch {lost} of shard {self.shard} by {self.loser} was refused: the shard was begun again, or the"
                " batch was minted so long ago that GC may have deleted files that it names. No input is lost or"
                " duplicated: it is minted again"
            )
        if self.found_upper is None:
            ended = f"closed by {self.winner}" if self.winner else "dropped or closed"
            return (
                f"the batch {lost} of shard {self.shard} by {self.loser} was refused: the shard was {ended} meanwhile,"
                " and accepts no commits"
            )
        return (
            f"CAS conflict on shard {self.shard}: expected upper {show_time(self.expected_upper)}, found"
            f" {show_time(self.found_upper)}; lost {lost} of {self.loser}; won by {self.winner or 'an older commit'}."
            " No input is lost or duplicated: it is minted again from the new upper"
        )


def record_conflict(
    blob: Blob, clock: Clock, description: BatchDescription, mismatch: UpperMismatch
) -> tuple[ConflictRecord, bool]:
    """Write the record of this conflict, or find it; True if it is new. A damaged one is written again."""
    conflict_id = hashlib.sha256(description.token.encode()).hexdigest()[:32]
    key = conflict_key(description.shard, conflict_id)
    known = blob.get(key)
    if known is not None:
        with suppress(CorruptArtifact):
            return ConflictRecord.read(known, key), False
    record = ConflictRecord(
        conflict_id=conflict_id,
        shard=description.shard,
        expected_upper=mismatch.expected,
        found_upper=mismatch.found.time,
        description_upper=description.upper,
        loser=description.writer,
        winner=mismatch.winner.writer if mismatch.winner else None,
        winner_committed_ms=mismatch.winner.committed_ms if mismatch.winner else None,
        token=description.token,
        detected_ms=clock.now_ms(),
    )
    blob.set(key, record.encode())
    return record, known is None


def list_conflicts(
    blob: Blob,
    shard: str,
    *,
    since_ms: int = 0,
    known: MutableMapping[str, ConflictRecord] | None = None,
    limit: int | None = None,
    threads: int = 1,
) -> list[ConflictRecord]:
    """The conflicts of a shard whose records were stored since a time (or `limit` of them, any), oldest first.

    Older records are not read. `known` remembers records by key, because a record never changes. Raises
    `CorruptArtifact` naming a record that is damaged.
    """
    known = {} if known is None else known
    listed = blob.list_keys_and_metadata(conflicts_prefix(shard))
    keys = list(itertools.islice((entry.key for entry in listed if entry.modified_ms >= since_ms), limit))

    def read(key: str) -> None:
        data = blob.get(key)
        if data is not None:
            known[key] = ConflictRecord.read(data, key)

    side_by_side(read, [key for key in keys if key not in known], threads=threads)
    records = [record for key in keys if (record := known.get(key)) is not None]
    return sorted(records, key=lambda record: (record.detected_ms, record.conflict_id))
