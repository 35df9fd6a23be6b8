"""Which files a shard has consumed: sets of `(path, size, time of change)` in content-addressed segments.

    SourceFrontier.offsets  {"base": ..., "files": n, "size_bytes": ..., "segments": [{key, files, sha256, size_bytes}]}
    <shard>/sources/files/<sha256>.json.zst  zstd of a sealed {"files": [[relative, size_bytes, mtime_ms], ...]}

1. A segment is never changed: its key is the digest of its bytes. Staging one twice is harmless.
2. Each segment holds at least twice the files of the next. So n files lie in at most log2(n) + 1 segments, and each
   file is rewritten O(log n) times however the commits come: the cost of a commit does not grow with the ledger.
3. The segments of one frontier hold disjoint sets of paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import zstandard

from persist_core.errors import CorruptArtifact, InvariantViolation
from persist_core.location.blob import Blob
from persist_core.shard.batch import SourceFrontier
from persist_core.shard.keys import ledger_segment_key
from persist_core.shard.sealed import seal, unseal

SOURCE_TYPE = "files"
SEGMENT_VERSION = 1
_SEGMENT = "ledger_segment"
_LEVEL = 3  # zstd's default: paths shrink to a tenth, in milliseconds

Facts = tuple[int, int]  # size_bytes, mtime_ms
Consumed = dict[str, Facts]  # by relative path


@dataclass(frozen=True)
class Segment:
    """One segment as the frontier names it; `size_bytes` and `sha256` are of the stored bytes."""

    key: str
    files: int
    sha256: str
    size_bytes: int


class Ledger:
    """The ledger of one shard in blob storage. Segments that were read are kept in memory."""

    def __init__(self, blob: Blob, shard: str) -> None:
        self._blob = blob
        self._shard = shard
        self._read: dict[str, Consumed] = {}

    def consumed(self, frontier: SourceFrontier | None) -> Consumed:
        """All files that `frontier` has consumed. Raises `CorruptArtifact` naming a segment that is not whole."""
        every: Consumed = {}
        for segment in segments_of(frontier):
            every.update(self._segment(segment))
        wanted = sum(segment.files for segment in segments_of(frontier))
        if len(every) != wanted:
            raise InvariantViolation(
                f"the ledger of shard {self._shard} names {len(every)} different files, wanted {wanted}: some are in"
                " two segments; run `persist fsck`"
            )
        return every

    def extend(self, frontier: SourceFrontier | None, files: Consumed, *, base: str) -> SourceFrontier:
        """The frontier after `files` too. Stages at most one segment; commits nothing."""
        segments = list(segments_of(frontier))
        added = dict(files)
        while segments and segments[-1].files < 2 * len(added):  # bounded by the number of segments
            added.update(self._segment(segments.pop()))
        if added:
            segments.append(self._stage(added))
        before: Mapping[str, int] = frontier.offsets if frontier else {}
        return SourceFrontier(
            SOURCE_TYPE,
            {
                "base": base,
                "files": before.get("files", 0) + len(files),
                "size_bytes": before.get("size_bytes", 0) + sum(size for size, _ in files.values()),
                "segments": [asdict(segment) for segment in segments],
            },
        )

    def _stage(self, files: Consumed) -> Segment:
        rows = [[relative, *facts] for relative, facts in sorted(files.items())]
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(seal(_SEGMENT, SEGMENT_VERSION, {"files": rows}))
        sha256 = hashlib.sha256(data).hexdigest()
        key = ledger_segment_key(self._shard, sha256)
        self._blob.set(key, data)
        self._read[key] = files
        return Segment(key, len(files), sha256, len(data))

    def _segment(self, segment: Segment) -> Consumed:
        known = self._read.get(segment.key)
        if known is not None:
            return known
        data = self._blob.get(segment.key)
        name = f"ledger segment {segment.key} in {self._blob.uri}"
        if data is None:
            raise CorruptArtifact(f"{name} is missing: which files were consumed is not known; run `persist fsck`")
        found = hashlib.sha256(data).hexdigest()
        if found != segment.sha256:
            raise CorruptArtifact(f"{name} has the digest {found}, wanted {segment.sha256}; run `persist fsck`")
        try:
            unpacked = zstandard.ZstdDecompressor().decompress(data)
            body = unseal(unpacked, kind=_SEGMENT, version=SEGMENT_VERSION, what=name)
            files = {relative: (size_bytes, mtime_ms) for relative, size_bytes, mtime_ms in body["files"]}
        except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
            raise CorruptArtifact(f"{name} can't be read: {error!r}; run `persist fsck`") from error
        if len(files) != segment.files:
            raise CorruptArtifact(f"{name} holds {len(files)} files, wanted {segment.files}; run `persist fsck`")
        self._read[segment.key] = files
        return files


def segments_of(frontier: SourceFrontier | None) -> tuple[Segment, ...]:
    """The segments that a frontier names, largest first. `InvariantViolation` where it is no frontier of files."""
    if frontier is None:
        return ()
    try:
        if frontier.source_type != SOURCE_TYPE:
            raise ValueError(f"source type {frontier.source_type!r}")
        return tuple(Segment(**segment) for segment in frontier.offsets["segments"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvariantViolation(f"the source frontier is none of {SOURCE_TYPE!r}: {error!r}") from error


def segment_keys(frontiers: Iterable[SourceFrontier]) -> set[str]:
    """Blob keys that these frontiers need: what GC must keep."""
    return {segment.key for frontier in frontiers for segment in segments_of(frontier)}
