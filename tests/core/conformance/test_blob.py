"""Every blob backend passes the one suite."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from persist_core.location import Blob, FileBlob, MemBlob, open_blob
from tests.suites.blob_conformance import BlobConformance


class TestMemBlob(BlobConformance):
    def make(self, folder: Path) -> Blob:
        return MemBlob(folder.name)

    def reopen(self, blob: Blob) -> Blob:
        return open_blob(blob.uri)

    def raw_read(self, blob: Blob, key: str) -> bytes | None:
        return cast(MemBlob, blob)._store.values.get(key, (None, 0))[0]

    def raw_write(self, blob: Blob, key: str, data: bytes) -> None:
        cast(MemBlob, blob)._store.values[key] = data, 0

    def address(self, blob: Blob) -> str | None:
        assert blob.uri.startswith("mem:")
        return None


class TestFileBlob(BlobConformance):
    key_may_be_prefix = False

    def make(self, folder: Path) -> Blob:
        return FileBlob(folder / "sub folder %41#?" / "blobs")

    def reopen(self, blob: Blob) -> Blob:
        return open_blob(blob.uri)

    def raw_read(self, blob: Blob, key: str) -> bytes | None:
        path = self._root(blob) / key
        return path.read_bytes() if path.is_file() else None

    def raw_write(self, blob: Blob, key: str, data: bytes) -> None:
        path = self._root(blob) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def address(self, blob: Blob) -> str | None:
        return blob.uri

    def _root(self, blob: Blob) -> Path:
        return cast(FileBlob, blob).path_of("x").parent
