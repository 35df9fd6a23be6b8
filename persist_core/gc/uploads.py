"""Uploads that killed writers have left behind: pieces of objects that no listing of keys shows, and that cost money.

An upload is aborted when it is older than the staging intent, by the store's own clock. By then a batch that it could
belong to is refused. If its writer is still at work, completing the upload fails, and with it that try of the task.
"""

from __future__ import annotations

from collections.abc import Iterator

from persist_core.location.blob import Blob, UnfinishedUpload, UnfinishedUploads, UploadStore
from persist_core.shard.keys import collectable_prefixes


def unfinished_uploads(blob: Blob, shard: str) -> UnfinishedUploads:
    """Of all keys that GC may delete; none if the store has no such thing."""
    if not isinstance(blob, UploadStore):
        return UnfinishedUploads()
    uploads = blob.unfinished_uploads(f"{shard}/")
    known = collectable_prefixes(shard)
    return UnfinishedUploads(tuple(each for each in uploads.found if each.key.startswith(known)), uploads.skipped)


def abort_uploads(blob: Blob, shard: str, *, begun_before_ms: int) -> Iterator[UnfinishedUpload]:
    """Abort those that were begun at that time or before; yields each that was."""
    for each in unfinished_uploads(blob, shard).found:
        if each.begun_ms <= begun_before_ms and isinstance(blob, UploadStore) and blob.abort_upload(each):
            yield each
