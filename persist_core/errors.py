"""Every error this project raises, grouped by what the handler does next.

    PersistError
      InvalidInput      the call is invalid: change the arguments; a retry fails again
      NotReadable       the requested data does not exist (any longer): request other times
      Corruption        stored bytes violate an invariant: stop, run `persist fsck`, restore
      RunFailed         this run must not commit: nothing was committed; correct the input and run again
      StorageError      the store did not do the operation (Determinate) or did not answer (Indeterminate)

A lost race is not an error: compare-and-set mismatches, upper mismatches and conflicts are values.
Each class has a stable `kind` (for metrics, JSON output and failure records); messages name the thing, the value
found, the value expected and what to do next. Nothing in a message may be a secret: URIs are redacted first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


class PersistError(Exception):
    """Base of all errors of this project. `kind` is stable over releases, the message is not."""

    kind: ClassVar[str] = "persist"

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        cls.kind = kind or cls.kind


class InvalidInput(PersistError, ValueError, kind="invalid_input"):
    """The arguments are invalid. Nothing was changed; the same call will fail again."""


class InvalidUri(InvalidInput, kind="invalid_uri"):
    """A location's URI has an unknown scheme, an unknown query parameter or a malformed part."""


class UnfitStore(InvalidInput, kind="unfit_store"):
    """A store that does not meet the location's contract. Nothing was changed; use another store."""


class InvalidName(InvalidInput, kind="invalid_name"):
    """A shard, column, key or collection name that is not allowed (empty, too long, path traversal, reserved)."""


class InvalidSeqNo(InvalidInput, kind="invalid_seqno"):
    """A sequence number outside `[0, 2**63 - 1]`, or a new one that is not greater than the expected one."""


class InvalidTime(InvalidInput, kind="invalid_time"):
    """A timestamp outside `[0, 2**63 - 1]`, or a text that cannot be parsed as a time."""


class BadBounds(InvalidInput, kind="bad_bounds"):
    """An interval `[lower, upper)` that is empty or reversed, or a batch with an update outside its interval."""


class TokenReuse(InvalidInput, kind="token_reuse"):
    """A token that is bound to a commit was used again with different contents."""


class StateNotRead(InvalidInput, kind="state_not_read"):
    """A batch whose writer did not start from the shard's operator state: appending it would drop that state."""


class ShardMoved(InvalidInput, kind="shard_moved"):
    """The shard was moved to another location, which the message names. It can be read here, and accepts no commits."""


class SchemaMismatch(InvalidInput, kind="schema_mismatch"):
    """A schema that is not the shard's and not a compatible extension of it. Nothing was staged."""


class ConfigError(InvalidInput, kind="config"):
    """A collection or view file is invalid. The message names file and field, value found and value expected."""


class NotReadable(PersistError, kind="not_readable"):
    """The requested data cannot be read. Nothing was changed; other times or another shard may be readable."""


class ShardNotFound(NotReadable, kind="shard_not_found"):
    """The shard does not exist in this location."""


class CheckpointNotFound(NotReadable, kind="checkpoint_not_found"):
    """The shard has no such checkpoint: it never existed, or retention has deleted it."""


class OutsideFrontiers(NotReadable, kind="outside_frontiers"):
    """A read below `since` or at/after `upper`; the message prints both."""


class GenerationChanged(NotReadable, kind="generation_changed"):
    """Changes were asked for since a time of an earlier generation. Take a snapshot, or the difference, and go on."""


class LeaseExpired(NotReadable, kind="lease_expired"):
    """The reader's lease has expired: its `since` is no longer held. Register a new reader."""


class ReadTooSlow(NotReadable, kind="read_too_slow"):
    """A read without a lease needs a file that GC, after its grace, or an erasure has deleted. Read again."""


class Corruption(PersistError, kind="corruption"):
    """Stored state violates an invariant or does not match its digest. Stop writing and run `persist fsck`."""


class UnknownVersion(Corruption, kind="unknown_version"):
    """Bytes written by a newer version of this project. Upgrade before touching this shard."""


class CorruptArtifact(Corruption, kind="corrupt_artifact"):
    """An artifact (part, manifest, checkpoint file) is missing or its digest does not match. Names the artifact."""


class InvariantViolation(Corruption, kind="invariant_violation"):
    """A named invariant of state or contents does not hold."""


class RunFailed(PersistError, kind="run_failed"):
    """A run that must not commit. Nothing was committed; the description is void; the next mint may take more input."""


class ServerLost(RunFailed, kind="server_lost"):
    """The Spark Connect server ended while it ran a job. The starter runs the job again, as another attempt."""


class OutdatedDescription(RunFailed, kind="outdated_description"):
    """Another writer advanced the shard past the description's lower: stop early and mint again."""


class AlreadyCommitted(OutdatedDescription, kind="already_committed"):
    """The description is already committed: nothing is left to write, and append returns that commit."""


@dataclass(frozen=True)
class RejectedRecord:
    """A record that could not be decoded, of a batch that was refused. Key and payload may be cut.

    `position` is where it was read, as its source shows it; `None` if that is not known.
    """

    kind: str
    message: str
    time: int
    key: str | None
    payload: str | None
    position: str | None


class TooManyErrors(RunFailed, kind="too_many_errors"):
    """More than `max_errors` of the processed winners were errors, or all of them."""

    def __init__(self, message: str, samples: tuple[RejectedRecord, ...] = ()) -> None:
        super().__init__(message)
        self.samples = samples


class UnclearOrder(RunFailed, kind="unclear_order"):
    """It is not known which of several records of a key is the newest: the collection file must say it."""


class TooManyUpdates(RunFailed, kind="too_many_updates"):
    """A view's refresh would write more updates, or hold more rows, than its limits allow."""


class CheckFailed(RunFailed, kind="check_failed"):
    """A check of rows that must not fail (`on_fail: fail`) is not true for rows of the batch."""


class FeedChanged(RunFailed, kind="feed_changed"):
    """A feed has a field that is not in `columns`, or lacks one that is; and its collection file says `fail`."""


class SourceChanged(RunFailed, kind="source_changed"):
    """A frozen input file was deleted or changed between minting and reading."""


class UnreadableFiles(RunFailed, kind="unreadable_files"):
    """Input files that are not what their format says, by their bytes alone: cut off, damaged, of another format.

    `reasons`: what is wrong with each, by its path.
    """

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


class StorageError(PersistError, kind="storage"):
    """The store failed. `Determinate`: the operation did not happen. `Indeterminate`: it may have happened."""


class Determinate(StorageError, kind="storage_determinate"):
    """The operation did not happen and will not happen later: it is safe to retry."""


class Indeterminate(StorageError, kind="storage_indeterminate"):
    """The operation may or may not have happened: read back before you decide."""
