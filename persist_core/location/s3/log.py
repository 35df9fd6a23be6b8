"""Requests on the logs of `S3Consensus` (`entry` says what they are): read an entry, find the newest, add one.

`add` is the only place that makes conditional writes and determines their outcome:

    PUT If-None-Match: *  --200-------------------------------------> ours
                          --412, 409, 404, 5xx, time-out, cut off--> read that position back
                               our id  --> ours        (an answer was lost, or the network sent the request twice)
                               another --> theirs
                               nothing --> the same request again, MAX_TRIES times: only one can ever create the
                                           object, and whichever of ours does carries our id; else `Indeterminate`
                          --other 4xx--------------------------------> `Determinate`; `Indeterminate` after a lost try
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from persist_core.clock import Clock, tries
from persist_core.errors import Corruption, Determinate, StorageError
from persist_core.ids import Ids
from persist_core.location.s3.client import S3Client, Verdict, error_within, failures, status_of, verdict_on
from persist_core.location.s3.entry import (
    HEADER_BYTES,
    Entry,
    Header,
    decode_entry,
    decode_header,
    folder_of,
    is_folder_of_a_key,
    key_of,
    name_of,
    position_of,
)
from persist_core.location.s3.uri import S3Settings

MAX_TRIES = 5  # of one request: with the backoff below up to about 3 s; a store that is down longer is reported
BACKOFF_BASE_MS = 100
BACKOFF_CAP_MS = 1_000
MAX_SWEPT = 1_000  # objects deleted by one sweep: as many as one DeleteObjects takes
_NO_SUCH_RANGE = 416  # the status for the first bytes of an empty object
_LOOKED_AT = 10  # entries of a log whose folder does not say the key: all of them have it


class _LogClient(S3Client):
    """Tries each request again by itself: of a conditional write it has to know the outcome of every try."""

    def __init__(self, settings: S3Settings, clock: Clock, ids: Ids) -> None:
        super().__init__(settings, tries=1, clock=clock)
        self._ids = ids

    def may_repeat(self, verdict: Verdict) -> bool:
        return verdict is not Verdict.REFUSED

    def tries(self, most: int = MAX_TRIES) -> Callable[[], bool]:
        """`MAX_TRIES` or more, if the network or the server fails."""
        return tries(self._clock, max(most, MAX_TRIES), self._back_off)

    def _back_off(self, attempt: int) -> None:
        cap_ms = min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2**attempt)
        self._clock.sleep_ms(int(self._ids.jitter() * cap_ms) + 1)


class S3Logs:
    """The logs below one prefix. Thread-safe; holds nothing but connections."""

    def __init__(self, settings: S3Settings, root: str, clock: Clock, ids: Ids) -> None:
        self._settings = settings
        self._root = root  # ends with a slash
        self.client = _LogClient(settings, clock, ids)

    def keys(self) -> Iterator[str]:
        """Every key that has a log, page by page."""
        for page in self.client.pages("list the keys", Prefix=self._root, Delimiter="/"):
            for common in page.get("CommonPrefixes", ()):
                folder = str(common["Prefix"])[len(self._root) : -1]
                key = key_of(folder)
                if key is None and is_folder_of_a_key(folder):
                    key = self._key_inside(folder)
                if key is not None:
                    yield key

    def entry(self, key: str, position: int) -> Entry | None:
        folder = folder_of(key)
        data = self._bytes(folder, position)
        return None if data is None else decode_entry(data, folder, position, self._where(folder, position))

    def header(self, folder: str, position: int) -> Header | None:
        """The header of the entry at `position`, or `None`. Reads no more than that."""
        data = self._bytes(folder, position, Range=f"bytes=0-{HEADER_BYTES - 1}")
        return None if data is None else decode_header(data, folder, position, self._where(folder, position))

    def add(self, entry: Entry) -> bool:
        """Create `entry` iff its position is empty. True if `entry` is what is there now.

        Raises `Determinate` if it is certain that it never will be, `Indeterminate` if it may be.
        """
        folder, position = folder_of(entry.header.key), entry.header.position
        action = f"compare_and_set of {entry.header.key!r}"
        body = entry.encode()
        may_happen = False
        last: Exception | None = None
        again = self.client.tries()
        while last is None or again():
            try:
                self._put(folder, position, body)
                return True
            except failures() as error:
                last, verdict = error, verdict_on(error)
            if verdict is Verdict.REFUSED:
                break
            if verdict is Verdict.NOT_SENT:
                continue
            may_happen = may_happen or verdict is Verdict.UNKNOWN
            try:
                found = self.header(folder, position)
            except StorageError:
                may_happen = True  # also a 409 or 412 may have been about our own object
                continue
            if found is not None:
                return found.id == entry.header.id
        assert last is not None
        if may_happen:
            raise self.client.indeterminate(action, last) from last
        raise self.client.determinate(action, last) from last

    def sweep(self, key: str, first: int, min_age_ms: int) -> int:
        """Delete entries before position `first` that are older than `min_age_ms` by S3's own clock; how many."""
        doomed: list[str] = []
        folder = f"{self._root}{folder_of(key)}/"
        for page in self.client.pages(f"sweep {key!r}", Prefix=folder, StartAfter=f"{folder}{name_of(first)}"):
            now_ms = _date_ms(page)
            for found in page.get("Contents", ()):
                position_of(str(found["Key"]).rpartition("/")[2], f"{self._settings.uri}: {found['Key']}")
                if now_ms is not None and now_ms - found["LastModified"].timestamp() * 1000 > min_age_ms:
                    doomed.append(str(found["Key"]))
            if len(doomed) >= MAX_SWEPT:  # younger entries come first, however many they are
                break
        doomed = doomed[:MAX_SWEPT]  # the next sweep deletes the rest
        self._delete(f"sweep {key!r}", doomed)
        return len(doomed)

    def erase(self, key: str) -> int:
        """Delete objects of the log, up to as many as one listing shows; how many there were."""
        prefix = f"{self._root}{folder_of(key)}/"
        names = self._first_names(f"erase {key!r}", prefix, MAX_SWEPT)
        # Without any, also to learn whether S3 lets us.
        self._delete(f"erase {key!r}", [f"{prefix}{name}" for name in names or [name_of(0)]])
        return len(names)

    def _delete(self, action: str, names: list[str]) -> None:
        doomed = {"Objects": [{"Key": name} for name in names], "Quiet": True}

        def delete() -> None:
            answer = self.client.api.delete_objects(Bucket=self._settings.bucket, Delete=doomed)
            for refused in answer.get("Errors", ()):  # in an answer whose status is 200
                if refused.get("Code") != "NoSuchKey":
                    raise error_within(refused.get("Code", "?"), "DeleteObjects")

        if names:
            self.client.answer(action, delete)

    def _put(self, folder: str, position: int, body: bytes) -> None:
        name = self._name(folder, position)
        self.client.api.put_object(Bucket=self._settings.bucket, Key=name, Body=body, IfNoneMatch="*")

    def _key_inside(self, folder: str) -> str | None:
        """The key whose log this is, by the newest entry that can be read; `None` if it was erased meanwhile."""
        prefix = f"{self._root}{folder}/"
        for _ in range(MAX_TRIES):
            damage: Corruption | None = None
            names = self._first_names(f"find the entries of {prefix}", prefix, _LOOKED_AT)
            for name in names:
                try:
                    position = position_of(name, f"{self._settings.uri}: {prefix}")
                    if (header := self.header(folder, position)) is not None:
                        return header.key
                except Corruption as error:
                    damage = damage or error
            if damage is not None:
                raise damage
            if not names:
                return None
        raise Determinate(f"{self._settings.uri}: {self._root}{folder}/ changed during the call; try again")

    def newest_in(self, folder: str) -> int | None:
        """The newest entry's position, `None` for a folder without a log. One request."""
        prefix = f"{self._root}{folder}/"
        names = self._first_names(f"find the newest entry of {prefix}", prefix, 1)
        return position_of(names[0], f"{self._settings.uri}: {prefix}") if names else None

    def _first_names(self, action: str, prefix: str, limit: int) -> list[str]:
        """Names below `prefix`, from the first page that has some: a page may be empty and not the last one."""
        for page in self.client.pages(action, Prefix=prefix, MaxKeys=limit):
            if names := [str(found["Key"])[len(prefix) :] for found in page.get("Contents", ())]:
                return names
        return []

    def _bytes(self, folder: str, position: int, **options: str) -> bytes | None:
        name = self._name(folder, position)
        try:
            return self.client.read(f"read {name}", Key=name, **options)
        except Determinate as error:
            if isinstance(error.__cause__, Exception) and status_of(error.__cause__) == _NO_SUCH_RANGE:
                return b""
            raise

    def _name(self, folder: str, position: int) -> str:
        return f"{self._root}{folder}/{name_of(position)}"

    def _where(self, folder: str, position: int) -> str:
        return f"{self._settings.uri}: {self._name(folder, position)}"


def _date_ms(answer: Any) -> float | None:
    """When S3 answered, by its own clock; `None` if it does not say."""
    from email.utils import parsedate_to_datetime

    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if text is None else parsedate_to_datetime(text).timestamp() * 1000
