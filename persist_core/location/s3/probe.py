"""Does this S3 server honor conditional writes? Probed once per process and bucket, before the first commit.

    RACERS threads --PUT If-None-Match: * to one new name--> all bodies stop half way --> all continue together
        exactly one 200, and its body is what is stored?  ROUNDS times; then once more, to the name that is taken

Some servers ignore the condition. Others look first and write later: they are correct for one request at a time, but
if the bodies of two requests arrive slowly, both find nothing and both succeed. Nothing built on such a store can be
trusted, so it is refused (`UnfitStore`). No setting disables the probe.
"""

from __future__ import annotations

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from persist_core.errors import Determinate, StorageError, UnfitStore
from persist_core.ids import Ids, is_leftover, time_of_uuid7
from persist_core.location.s3.client import S3Client, Verdict, described, failures, is_unsupported, verdict_on
from persist_core.location.s3.uri import S3Settings

PROBE_FOLDER = "=probe"  # beside the logs; no key's folder is called so
RACERS = 6
ROUNDS = 4
MAX_INCONCLUSIVE = 3  # rounds without an answer because of network or server errors
# How long a racer holds its body for the others, in seconds. A server may decide a request before its
# body arrives; then that racer never comes, and each round waits this long.
GATHER_S = 0.3
# More than the buffers on the way hold: a server that reads the body in pieces has to wait.
BODY_BYTES = 256 << 10

_probing = threading.Lock()
_passed: set[tuple[str, str | None, str | None]] = set()


def probe_once(client: S3Client, root: str, ids: Ids) -> None:
    """Probe the bucket unless this process has done so.

    `root` is the folder, with a slash at its end, below which the probe's objects may be made. Raises `UnfitStore`, and
    `Determinate` if there is no answer.
    """
    place = client.settings.bucket, client.settings.endpoint, client.settings.region
    if place in _passed:
        return
    with _probing:
        if place not in _passed:
            probe(client, root, ids)
            _passed.add(place)


def _forget_locks() -> None:
    """In a forked child: the lock may have been held by a thread that the child does not have."""
    global _probing
    _probing = threading.Lock()


os.register_at_fork(after_in_child=_forget_locks)


def probe(client: S3Client, root: str, ids: Ids) -> None:
    """Probe, even if it was done before. What a killed probe leaves, one at least a day later deletes."""
    inconclusive = 0
    rounds = 0
    while rounds < ROUNDS:
        name = f"{root}{PROBE_FOLDER}/{ids.uuid7()}"
        try:
            conclusive = _race(client, name)
            if conclusive and rounds == 0:
                _check_taken_name(client, name)
        finally:
            with suppress(*failures()):
                client.api.delete_object(Bucket=client.settings.bucket, Key=name)
        if conclusive:
            rounds += 1
            continue
        inconclusive += 1
        if inconclusive == MAX_INCONCLUSIVE:
            raise Determinate(
                f"{client.settings.uri}: could not determine whether this S3 server honors If-None-Match:"
                f" {MAX_INCONCLUSIVE} races ended in errors of the network or the server; this call changed nothing;"
                " try again"
            )
    _delete_leftovers(client, f"{root}{PROBE_FOLDER}/", time_of_uuid7(ids.uuid7()) or 0)


def _delete_leftovers(client: S3Client, folder: str, now_ms: int) -> None:
    with suppress(StorageError, *failures()):
        for page in client.pages("probe: list what others have left", Prefix=folder):
            for each in page.get("Contents", ()):
                if is_leftover(each["Key"].removeprefix(folder), now_ms=now_ms):
                    client.api.delete_object(Bucket=client.settings.bucket, Key=each["Key"])


def _race(client: S3Client, name: str) -> bool:
    gate = threading.Barrier(RACERS)
    bodies = [bytes([65 + racer]) * BODY_BYTES for racer in range(RACERS)]
    client.api.meta.events.register("before-send.s3.PutObject", _start, unique_id="persist-probe")
    try:
        with ThreadPoolExecutor(RACERS) as pool:
            answers = list(pool.map(lambda body: _put(client, name, _SlowBody(body, gate)), bodies))
    finally:
        client.api.meta.events.unregister("before-send.s3.PutObject", _start, unique_id="persist-probe")
    won = [number for number, answer in enumerate(answers) if answer is None]
    if len(won) > 1:
        raise _unfit(client.settings, f"{len(won)} of {RACERS} racing conditional writes to one new name succeeded")
    verdicts = [verdict_on(answer) for answer in answers if answer is not None]
    for answer in answers:
        if answer is not None and verdict_on(answer) in (Verdict.REFUSED, Verdict.NOT_SENT):
            raise _refusal(client, name, answer) from answer
    if not won or Verdict.UNKNOWN in verdicts:
        return False
    if client.read("probe: read back", Key=name) != bodies[won[0]]:
        raise _unfit(client.settings, "a conditional write succeeded, and what is stored is another's")
    return True


def _check_taken_name(client: S3Client, name: str) -> None:
    answer = _put(client, name, io.BytesIO(b"late"))
    if answer is None:
        raise _unfit(client.settings, "a conditional write to a name that was taken succeeded")
    if verdict_on(answer) in (Verdict.REFUSED, Verdict.NOT_SENT):
        raise _refusal(client, name, answer) from answer


def _put(client: S3Client, name: str, body: Any) -> Exception | None:
    try:
        client.api.put_object(Bucket=client.settings.bucket, Key=name, Body=body, IfNoneMatch="*")
    except failures() as error:
        return error
    return None


def _refusal(client: S3Client, name: str, error: Exception) -> Exception:
    """The error for a request that could not be made, or that the server does not support."""
    if not is_unsupported(error):
        return client.determinate("probe: conditional write", error)
    # A server may refuse all writes so: MinIO without a KMS, if a key is set. Then this raises that refusal.
    client.answer("probe: write", lambda: client.api.put_object(Bucket=client.settings.bucket, Key=name, Body=b""))
    return _unfit(client.settings, f"a conditional write was refused ({described(error)})")


def _unfit(settings: S3Settings, found: str) -> UnfitStore:
    return UnfitStore(
        f"{settings.uri}: this S3 server cannot hold consensus: {found}; expected exactly one winner of each race, by"
        " If-None-Match. Nothing was committed. Use another server (docs/locations-s3.md names some that pass), or keep"
        " consensus in postgresql:// and only the blobs here"
    )


class _SlowBody(io.BytesIO):
    """A body that, once it is being sent, stops half way until all racers are there, or `GATHER_S` are over."""

    def __init__(self, data: bytes, gate: threading.Barrier) -> None:
        super().__init__(data)
        self._half = len(data) // 2
        self._gate = gate
        self.is_sending = False  # before that it is read for its digest
        self._has_waited = False

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.is_sending:
            return super().read(size)
        at = self.tell()
        if at < self._half:
            wanted = self._half - at
            return super().read(wanted if size is None or size < 0 else min(size, wanted))
        if not self._has_waited:
            self._has_waited = True
            with suppress(threading.BrokenBarrierError):
                self._gate.wait(GATHER_S)
        return super().read(size)


def _start(request: Any, **_: Any) -> None:
    body = request.body
    inner = getattr(body, "_raw", body)  # botocore wraps what it sends with a checksum in a trailer
    if isinstance(inner, _SlowBody):
        inner.is_sending = True
