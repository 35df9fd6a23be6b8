"""Findings of fsck. No check stops another: an exception in a check becomes a violation, and the next check runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from persist_core.errors import PersistError, StorageError

STORAGE = "storage"  # the check of violations that do not concern the shard: its store did not answer
MAX_SHOWN = 20  # violations of one check; a damaged shard has many similar ones, so the rest are counted
_ADVICE = re.compile(r"[;.] run `persist fsck[^`]*`\.?$", re.IGNORECASE)  # of an error's end: this is fsck


@dataclass(frozen=True)
class Violation:
    """One violation of a shard: the check that found it, what it found, and where."""

    shard: str
    check: str
    message: str


class Violations:
    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._shown: list[Violation] = []
        self._counts: Counter[str] = Counter()

    def add(self, check: str, message: str) -> None:
        """Report one; beyond `MAX_SHOWN` of the same check it is only counted."""
        self._counts[check] += 1
        if self._counts[check] <= MAX_SHOWN:
            self._shown.append(Violation(self._shard, check, _ADVICE.sub("", message)))

    def count(self, check: str, number: int) -> None:
        """Count as many more of this check, without messages."""
        self._counts[check] += number

    @contextmanager
    def checking(self, check: str, what: str) -> Iterator[None]:
        """Report any exception in the block, with `what` was being read, instead of raising it.

        A store that fails is reported under `storage`: whether the object is intact is not known.
        """
        try:
            yield
        except StorageError as error:
            self.add(STORAGE, f"{what} could not be checked: {error}; run fsck again")
        except PersistError as error:
            self.add(check, str(error))
        except Exception as error:  # noqa: BLE001 - damaged bytes can raise anything in a decoder; fsck must go on
            self.add(check, f"{what} cannot be read: {error!r}")

    def __len__(self) -> int:
        return self._counts.total()

    def report(self) -> tuple[Violation, ...]:
        """All of them, in the order in which they were found."""
        more = [
            Violation(self._shard, check, f"and {count - MAX_SHOWN} more")
            for check, count in self._counts.items()
            if count > MAX_SHOWN
        ]
        return (*self._shown, *more)
