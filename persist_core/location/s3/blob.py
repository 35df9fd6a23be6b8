"""`s3:` blobs: objects below a prefix of a bucket. An acknowledged write is whole, durable and visible to all.

    set     one PutObject, or for large data a multipart upload, which becomes visible whole when it is completed
    delete  HeadObject (for the size), DeleteObject
    list    ListObjectsV2, page by page: S3 lists in the order of the keys' UTF-8 bytes

`set` and `delete` are idempotent, so botocore may try them again by itself. A multipart upload that dies half way
leaves invisible pieces behind, which cost money until GC or a lifecycle rule removes them (docs/locations-s3.md).

The folder `_consensus` below the prefix is `S3Consensus`'s, if the two share a prefix: not listed, not touched here.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from persist_core.clock import Clock
from persist_core.errors import InvalidName, StorageError
from persist_core.location.blob import (
    MAX_KEY_BYTES,
    BlobMetadata,
    UnfinishedUpload,
    UnfinishedUploads,
    check_blob_data,
    check_blob_key,
    check_blob_prefix,
)
from persist_core.location.finding import Finding
from persist_core.location.s3.client import (
    BLOB_TRIES,
    S3Client,
    Verdict,
    code_of,
    described,
    failures,
    status_of,
    verdict_on,
)
from persist_core.location.s3.diagnosis import diagnose
from persist_core.location.s3.uri import S3Settings

# From this size on, upload in parallel pieces: only a piece that fails is sent again. Below, one request is cheaper.
MULTIPART_BYTES = 64 << 20
PIECE_BYTES = 16 << 20

# S3 refuses a write with these codes if another request is at the same key. A server that keeps objects as files may
# also answer with them if a folder vanished during the write because its last object was deleted.
CONFLICT_TRIES = 5

CONSENSUS_FOLDER = "_consensus"

MAX_UPLOADS = 10_000  # of one listing; GC comes again

# versitygw's and MinIO's ways to say that a key is below, or above, another one that holds an object.
_BELOW_ANOTHER = {
    "ObjectParentIsFile",
    "ExistingObjectIsDirectory",
    "XMinioParentIsObject",
    "XMinioObjectExistsAsDirectory",
}


class S3Blob:
    """`Blob`, `RangeReader`, `FileTaker`, `UploadStore` and `Examinable` in an S3 bucket."""

    def __init__(
        self,
        settings: S3Settings,
        *,
        multipart_bytes: int = MULTIPART_BYTES,
        piece_bytes: int = PIECE_BYTES,
        max_uploads: int = MAX_UPLOADS,
    ) -> None:
        self._settings = settings
        self._multipart_bytes, self._piece_bytes, self._max_uploads = multipart_bytes, piece_bytes, max_uploads
        self._client = S3Client(settings, tries=BLOB_TRIES)
        self._root = f"{settings.prefix}/" if settings.prefix else ""

    def get(self, key: str) -> bytes | None:
        return self._client.read(f"get {key!r}", Key=self._name(key))

    def get_range(self, key: str, start: int, size_bytes: int) -> bytes | None:
        """See `RangeReader`. Raises `Determinate` also if `start` is at or beyond the end."""
        wanted = f"bytes={start}-{start + size_bytes - 1}"
        return self._client.read(f"get {key!r}", Key=self._name(key), Range=wanted)

    def set(self, key: str, data: bytes) -> None:
        check_blob_data(key, data)
        self._set(key, lambda name: self._put(name, data))

    def set_file(self, key: str, path: Path) -> None:
        def upload(name: str) -> None:
            with path.open("rb") as source:
                self._upload(name, source)

        self._set(key, upload)

    def _set(self, key: str, put: Callable[[str], None]) -> None:
        name = self._name(key)
        for attempt in range(1, CONFLICT_TRIES + 1):
            try:
                put(name)
            except failures() as error:
                if verdict_on(error) is Verdict.CONFLICT and attempt < CONFLICT_TRIES:
                    continue
                raise self._set_error(key, error) from error
            return

    def delete(self, key: str) -> int | None:
        name = self._name(key)
        size_bytes = self._size(key, name)
        if size_bytes is None:
            return None
        try:
            self._client.api.delete_object(Bucket=self._settings.bucket, Key=name)
        except failures() as error:
            if verdict_on(error) is not Verdict.ABSENT:  # not every server calls that a success
                raise self._client.write_error(f"delete {key!r}", error) from error
        return size_bytes

    def list_keys_and_metadata(self, prefix: str) -> Iterator[BlobMetadata]:
        check_blob_prefix(prefix)
        return self._listing(prefix)

    def unfinished_uploads(self, prefix: str) -> UnfinishedUploads:
        """See `UploadStore`. If the server refuses the request or does not have it, `skipped` is the reason.

        A server that lists uploads only by whole names (MinIO) shows none.
        """
        check_blob_prefix(prefix)
        found: list[UnfinishedUpload] = []
        request: dict[str, Any] = {"Bucket": self._settings.bucket, "Prefix": self._root + prefix}
        while len(found) < self._max_uploads:  # bounded: each page goes on after the last key of the one before
            try:
                page = self._client.api.list_multipart_uploads(**request)
            except failures() as error:
                if status_of(error) and verdict_on(error) is not Verdict.UNKNOWN:
                    return UnfinishedUploads(skipped=described(error))
                raise self._client.determinate(f"list uploads of {prefix!r}", error) from error
            for each in page.get("Uploads", ()):
                key, begun_ms = str(each["Key"]).removeprefix(self._root), int(each["Initiated"].timestamp() * 1000)
                found.append(UnfinishedUpload(key, str(each["UploadId"]), begun_ms))
            if not page.get("IsTruncated"):
                break
            request["KeyMarker"] = page["NextKeyMarker"]  # further uploads of this key wait for the next listing
        return UnfinishedUploads(tuple(found[: self._max_uploads]))

    def abort_upload(self, upload: UnfinishedUpload) -> bool:
        name, bucket = self._name(upload.key), self._settings.bucket
        try:
            self._client.api.abort_multipart_upload(Bucket=bucket, Key=name, UploadId=upload.upload_id)
        except failures() as error:
            if verdict_on(error) is Verdict.ABSENT:
                return False
            raise self._client.write_error(f"abort an upload of {upload.key!r}", error) from error
        return True

    def uri_of(self, key: str) -> str:
        return f"s3a://{self._settings.bucket}/{self._name(key)}"

    def make_durable(self, prefix: str) -> None:
        """Nothing to do: S3 acknowledges any client's write only once it is durable."""
        check_blob_prefix(prefix)

    def diagnose(self, clock: Clock) -> Iterator[Finding]:
        yield from diagnose(self._client, self._root, clock, has_uploads=True)

    def close(self) -> None:
        self._client.close()

    @property
    def uri(self) -> str:
        return self._settings.uri

    def _name(self, key: str) -> str:
        check_blob_key(key)
        if key == CONSENSUS_FOLDER or key.startswith(f"{CONSENSUS_FOLDER}/"):
            raise InvalidName(f"blob key {key!r}: the folder {CONSENSUS_FOLDER} is kept for S3Consensus; use another")
        name = self._root + key
        if len(name.encode()) > MAX_KEY_BYTES:
            raise InvalidName(
                f"blob key of {len(key.encode())} bytes below the prefix {self._settings.prefix!r}: S3's names end at"
                f" {MAX_KEY_BYTES} bytes; shorten one of them: {key[:80]!r}"
            )
        return name

    def _put(self, name: str, data: bytes) -> None:
        if len(data) < self._multipart_bytes:
            self._client.api.put_object(Bucket=self._settings.bucket, Key=name, Body=data)
        else:
            self._upload(name, io.BytesIO(data))

    def _upload(self, name: str, source: IO[bytes]) -> None:
        from boto3.s3.transfer import TransferConfig

        config = TransferConfig(
            multipart_threshold=self._multipart_bytes, multipart_chunksize=self._piece_bytes, max_concurrency=4
        )
        self._client.api.upload_fileobj(source, self._settings.bucket, name, Config=config)

    def _size(self, key: str, name: str) -> int | None:
        try:
            return int(self._client.api.head_object(Bucket=self._settings.bucket, Key=name)["ContentLength"])
        except failures() as error:
            if verdict_on(error) is Verdict.ABSENT:
                return None
            raise self._client.determinate(f"delete {key!r}: look up its size", error) from error

    def _set_error(self, key: str, error: Exception) -> InvalidName | StorageError:
        code = code_of(error)
        if code in _BELOW_ANOTHER:
            return InvalidName(
                f"{self.uri}: blob key {key!r} is below or above another key, and this S3 server keeps objects as files"
                f" ({code}): choose a key that is not a prefix of another key"
            )
        return self._client.write_error(f"set {key!r}", error)

    def _listing(self, prefix: str) -> Iterator[BlobMetadata]:
        for page in self._client.pages(f"list {prefix!r}", Prefix=self._root + prefix):
            for entry in page.get("Contents", ()):
                key = str(entry["Key"]).removeprefix(self._root)
                # Some tools mark a folder by an empty object whose name ends in a slash: it is not one of our keys.
                if not key.endswith("/") and not key.startswith(f"{CONSENSUS_FOLDER}/"):
                    yield BlobMetadata(key, int(entry["Size"]), int(entry["LastModified"].timestamp() * 1000))
