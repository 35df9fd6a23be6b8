"""The consensus contract (docs/semantics.md, section 2): per key, a linearizable history of `VersionedData`.

`compare_and_set` is the only commit point of the system. A mismatch is a value. After an `Indeterminate` error
the caller reads back to find out: every version's body carries a unique write id (`shard.machine` does that).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from persist_core.errors import InvalidInput, InvalidName, InvalidSeqNo

MAX_SEQNO = 2**63 - 1
SCAN_ALL = 2**63 - 1
MAX_KEY_BYTES = 512  # room for a prefix and a seqno within S3's 1024


@dataclass(frozen=True)
class VersionedData:
    """One version of a key: its sequence number and its bytes (an empty value is legal)."""

    seqno: int
    data: bytes


class CaSResult(enum.Enum):
    """The outcome of a `compare_and_set`."""

    COMMITTED = "committed"
    EXPECTATION_MISMATCH = "expectation_mismatch"


class Consensus(Protocol):
    """A linearizable register with history per key. Unknown driver errors are `Indeterminate`."""

    def list_keys(self) -> Iterator[str]:
        """Every key ever created, in no particular order."""

    def head(self, key: str) -> VersionedData | None:
        """The newest version, or `None` for a key without data."""

    def compare_and_set(self, key: str, expected: int | None, new: VersionedData) -> CaSResult:
        """Append `new` iff the current seqno is exactly `expected` (`None`: no data yet).

        Raises `InvalidSeqNo` if `new.seqno` is outside the range or not greater than `expected`, even if
        `expected` is current.
        """

    def scan(self, key: str, from_seqno: int, limit: int = SCAN_ALL) -> list[VersionedData]:
        """Up to `limit` versions with seqno >= `from_seqno`, ascending; `[]` past the head or for an unknown key."""

    def truncate(self, key: str, seqno: int) -> int:
        """Delete versions `< seqno`, return how many. Idempotent.

        Raises `InvalidSeqNo` if `seqno` > head or the key has no data.
        """

    def close(self) -> None:
        """Close connections. The object is not usable afterwards."""

    @property
    def uri(self) -> str:
        """The URI, with secrets removed: safe to print."""


def check_consensus_key(key: str) -> str:
    """Return `key` if it is legal (1 to 512 UTF-8 bytes, no control characters), else raise `InvalidName`."""
    try:
        size_bytes = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidName(f"consensus key {key!r} is not valid Unicode") from None
    if not 0 < size_bytes <= MAX_KEY_BYTES or any(ord(c) < 32 or ord(c) == 127 for c in key):
        raise InvalidName(f"consensus key {key[:80]!r}: expected 1 to {MAX_KEY_BYTES} bytes, no control characters")
    return key


def check_seqno(seqno: int, *, what: str = "seqno") -> int:
    """Return `seqno` if it lies in `[0, 2**63 - 1]`, else raise `InvalidSeqNo`."""
    if isinstance(seqno, bool) or not isinstance(seqno, int) or not 0 <= seqno <= MAX_SEQNO:
        raise InvalidSeqNo(f"{what} is {seqno!r}; expected an integer in [0, {MAX_SEQNO}]")
    return seqno


def check_cas(key: str, expected: int | None, new: VersionedData) -> None:
    """Check the arguments of `compare_and_set`, as every backend does before it touches its store."""
    check_consensus_key(key)
    check_seqno(new.seqno, what="new.seqno")
    if not isinstance(new.data, bytes):
        raise InvalidInput(f"new.data: expected bytes, found {type(new.data).__name__}")
    if expected is not None:
        check_seqno(expected, what="expected")
        if new.seqno <= expected:
            raise InvalidSeqNo(f"new.seqno {new.seqno} is not greater than expected {expected}")


def check_scan(key: str, from_seqno: int, limit: int) -> int:
    """Check the arguments of `scan`: a limit that is not an integer >= 0 is `InvalidInput`. Return the limit."""
    check_consensus_key(key)
    check_seqno(from_seqno, what="from_seqno")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInput(f"limit is {limit!r}; expected an integer >= 0, or SCAN_ALL")
    return min(limit, SCAN_ALL)


def check_truncation(key: str, seqno: int) -> None:
    """Check the arguments of `truncate`."""
    check_consensus_key(key)
    check_seqno(seqno)


def check_truncate(key: str, seqno: int, head: int | None) -> None:
    """Raise `InvalidSeqNo` unless `key` has data and `seqno` is at most its head."""
    if head is None:
        raise InvalidSeqNo(f"consensus key {key!r} has no data: there is nothing to truncate")
    if seqno > head:
        raise InvalidSeqNo(
            f"consensus key {key!r}: truncate at {seqno} is past the head {head}; expected at most {head}"
        )
