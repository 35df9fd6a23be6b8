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


class InvalidInput(PersistError, ValueError):
    """The arguments are invalid. Nothing was changed; the same call will fail again."""

    kind: ClassVar[str] = "invalid_input"


class InvalidUri(InvalidInput):
    """A location's URI has an unknown scheme, an unknown query parameter or a malformed part."""

    kind: ClassVar[str] = "invalid_uri"


class UnfitStore(InvalidInput):
    """A store that does not meet the location's contract. Nothing was changed; use another store."""

    kind: ClassVar[str] = "unfit_store"


class InvalidName(InvalidInput):
    """A shard, column, key or collection name that is not allowed (empty, too long, path traversal, reserved)."""

    kind: ClassVar[str] = "invalid_name"


class InvalidSeqNo(InvalidInput):
    """A sequence number outside `[0, 2**63 - 1]`, or a new one that is not greater than the expected one."""

    kind: ClassVar[str] = "invalid_seqno"


class InvalidTime(InvalidInput):
    """A timestamp outside `[0, 2**63 - 1]`, or a text that cannot be parsed as a time."""

    kind: ClassVar[str] = "invalid_time"


class BadBounds(InvalidInput):
    """An interval `[lower, upper)` that is empty or reversed, or a batch with an update outside its interval."""

    kind: ClassVar[str] = "bad_bounds"


class TokenReuse(InvalidInput):
    """A token that is bound to a commit was used again with different contents."""

    kind: ClassVar[str] = "token_reuse"


class StateNotRead(InvalidInput):
    """A batch whose writer did not start from the shard's operator state: appending it would drop that state."""

    kind: ClassVar[str] = "state_not_read"


class ShardMoved(InvalidInput):
    """The shard was moved to another location, which the message names. It can be read here, and accepts no commits."""

    kind: ClassVar[str] = "shard_moved"


class SchemaMismatch(InvalidInput):
    """A schema that is not the shard's and not a compatible extension of it. Nothing was staged."""

    kind: ClassVar[str] = "schema_mismatch"


class ConfigError(InvalidInput):
    """A collection or view file is invalid. The message names file and field, value found and value expected."""

    kind: ClassVar[str] = "config"


class NotReadable(PersistError):
    """The requested data cannot be read. Nothing was changed; other times or another shard may be readable."""

    kind: ClassVar[str] = "not_readable"


class ShardNotFound(NotReadable):
    """The shard does not exist in this location."""

    kind: ClassVar[str] = "shard_not_found"


class CheckpointNotFound(NotReadable):
    """The shard has no such checkpoint: it never existed, or retention has deleted it."""

    kind: ClassVar[str] = "checkpoint_not_found"


class OutsideFrontiers(NotReadable):
    """A read below `since` or at/after `upper`; the message prints both."""

    kind: ClassVar[str] = "outside_frontiers"


class GenerationChanged(NotReadable):
    """Changes were asked for since a time of an earlier generation. Take a snapshot, or the difference, and go on."""

    kind: ClassVar[str] = "generation_changed"


class LeaseExpired(NotReadable):
    """The reader's lease has expired: its `since` is no longer held. Register a new reader."""

    kind: ClassVar[str] = "lease_expired"


class ReadTooSlow(NotReadable):
    """A read without a lease took longer than GC's grace, and a file that it needs was deleted. Read again."""

    kind: ClassVar[str] = "read_too_slow"


class Corruption(PersistError):
    """Stored state violates an invariant or does not match its digest. Stop writing and run `persist fsck`."""

    kind: ClassVar[str] = "corruption"


class UnknownVersion(Corruption):
    """Bytes written by a newer version of this project. Upgrade before touching this shard."""

    kind: ClassVar[str] = "unknown_version"


class CorruptArtifact(Corruption):
    """An artifact (part, manifest, checkpoint file) is missing or its digest does not match. Names the artifact."""

    kind: ClassVar[str] = "corrupt_artifact"


class InvariantViolation(Corruption):
    """A named invariant of state or contents does not hold."""

    kind: ClassVar[str] = "invariant_violation"


class RunFailed(PersistError):
    """A run that must not commit. Nothing was committed; the description is void; the next mint may take more input."""

    kind: ClassVar[str] = "run_failed"


class ServerLost(RunFailed):
    """The Spark Connect server ended while it ran a job. The starter runs the job again, as another attempt."""

    kind: ClassVar[str] = "server_lost"


class OutdatedDescription(RunFailed):
    """Another writer advanced the shard past the description's lower: stop early and mint again."""

    kind: ClassVar[str] = "outdated_description"


class AlreadyCommitted(OutdatedDescription):
    """The description is already committed: nothing is left to write, and append returns that commit."""

    kind: ClassVar[str] = "already_committed"


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


class TooManyErrors(RunFailed):
    """More than `max_errors` of the processed winners were errors, or all of them."""

    kind: ClassVar[str] = "too_many_errors"

    def __init__(self, message: str, samples: tuple[RejectedRecord, ...] = ()) -> None:
        super().__init__(message)
        self.samples = samples


class UnclearOrder(RunFailed):
    """It is not known which of several records of a key is the newest: the collection file must say it."""

    kind: ClassVar[str] = "unclear_order"


class TooManyUpdates(RunFailed):
    """A view's refresh would write more updates, or hold more rows, than its limits allow."""

    kind: ClassVar[str] = "too_many_updates"


class CheckFailed(RunFailed):
    """A check of rows that must not fail (`on_fail: fail`) is not true for rows of the batch."""

    kind: ClassVar[str] = "check_failed"


class FeedChanged(RunFailed):
    """A feed has a field that is not in `columns`, or lacks one that is; and its collection file says `fail`."""

    kind: ClassVar[str] = "feed_changed"


class SourceChanged(RunFailed):
    """A frozen input file was deleted or changed between minting and reading."""

    kind: ClassVar[str] = "source_changed"


class UnreadableFiles(RunFailed):
    """Input files that are not what their format says, by their bytes alone: cut off, damaged, of another format.

    `reasons`: what is wrong with each, by its path.
    """

    kind: ClassVar[str] = "unreadable_files"

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = reasons or {}


class StorageError(PersistError):
    """The store failed. `Determinate`: the operation did not happen. `Indeterminate`: it may have happened."""

    kind: ClassVar[str] = "storage"


class Determinate(StorageError):
    """The operation did not happen and will not happen later: it is safe to retry."""

    kind: ClassVar[str] = "storage_determinate"


class Indeterminate(StorageError):
    """The operation may or may not have happened: read back before you decide."""

    kind: ClassVar[str] = "storage_indeterminate"
