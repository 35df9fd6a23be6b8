"""The files of one description, as they were when it was minted, and their stored form."""

from __future__ import annotations

from dataclasses import dataclass

from persist_core.errors import CorruptArtifact
from persist_core.sealed import Sealed, seal, unseal
from persist_core.sources.natural_order import natural_key
from persist_core.sources.root import join


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file to read. `path` is absolute, or a URI; `order` is the natural-sort key of `relative`; `date_ms` is from
    its path.

    `ctime_ns` is when the system last changed its name, links, rights or bytes. No user can set it, and every file that
    is put in this one's place has a later one, this file itself if it is moved away and back. Numbers of devices and
    inodes would add nothing, and differ from machine to machine (devices) and from mount to mount (inodes of FUSE).
    Objects on S3 have `etag` in its place, and `version_id` in a bucket with versions: other bytes have another ETag.
    `is_corrected`: another file of this name was set aside before, or empty.
    """

    path: str
    relative: str
    size_bytes: int
    mtime_ms: int
    ctime_ns: int
    date_ms: int | None
    order: str
    is_corrected: bool = False
    etag: str = ""
    version_id: str = ""


@dataclass(frozen=True)
class FrozenInput(Sealed):
    """The input of one description: files in ascending `order`. `base` is what their relative paths are relative to."""

    KIND = "frozen_files"

    files: tuple[InputFile, ...]
    base: str = ""

    def encode(self) -> bytes:
        rows = [
            [
                f.relative,
                f.size_bytes,
                f.mtime_ms,
                f.ctime_ns,
                f.date_ms,
                None if f.path == join(self.base, f.relative) else f.path,
                f.is_corrected,
                f.etag,
                f.version_id,
            ]
            for f in self.files
        ]
        return seal(self.KIND, self.VERSION, {"base": self.base, "files": rows})

    @classmethod
    def decode(cls, data: bytes, *, what: str | None = None) -> FrozenInput:
        what = what or "a frozen input"
        body = unseal(data, kind=cls.KIND, version=cls.VERSION, what=what)
        try:
            base = body["base"]
            files = tuple(
                InputFile(path or join(base, name), name, size, mtime, ctime, date_ms, natural_key(name), *others)
                for name, size, mtime, ctime, date_ms, path, *others in body["files"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtifact(f"{what} is malformed: {error!r}; mint again") from error
        return cls(files, base)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)
