"""The files that a shard has consumed: `(path, size, time of change, date, set aside)` in content-addressed segments.

    SourceFrontier.offsets  {"root": ..., "base": ..., "files": n, "size_bytes": ..., "segments": [{key, files, ...}]}
                            and after a move "moved_from": ...
    <shard>/sources/files/<era>/<sha256>.json.zst  zstd of a sealed {"files": [[relative, size, ...], ...]}

1. A segment never changes: its key is the digest of its bytes. Staging one twice has no effect.
2. Each segment holds at least twice the files of the next. So n files lie in at most log2(n) + 1 segments, and each
   file is rewritten O(log n) times, whatever the sizes of the commits: the cost of a commit does not grow with the
   ledger.
3. The segments of one frontier hold disjoint sets of paths.
4. `files` and `size_bytes` never sink: a file that was set aside, corrected and read counts twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import zstandard

from persist_core.config.collection import FILES
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import CorruptArtifact, Corruption, InvariantViolation
from persist_core.keys import ledger_segment_key, owner_of
from persist_core.location.blob import Blob
from persist_core.sealed import seal, unseal
from persist_core.sources.root import Place
from persist_core.sources.source import ConsumedInput

SEGMENT_VERSION = 1
_SEGMENT = "ledger_segment"
_LEVEL = 3  # zstd's default: compresses paths to a tenth, in milliseconds

Facts = tuple[
    int, int, int | None, bool
]  # size_bytes, mtime_ms, date_ms: the date in its path; whether it was set aside
Consumed = dict[str, Facts]  # by relative path


@dataclass(frozen=True)
class LedgerSegment:
    """One segment as the frontier lists it; `size_bytes` and `sha256`: of the stored bytes."""

    key: str
    files: int
    sha256: str
    size_bytes: int


class Ledger:
    """The ledger of one shard in blob storage. Keeps the segments that it has read in memory."""

    def __init__(self, blob: Blob, shard: str) -> None:
        self._blob = blob
        self._shard = shard
        self._read: dict[str, Consumed] = {}

    def consumed(self, frontier: SourceFrontier | None) -> Consumed:
        """All files that `frontier` has consumed. Raises `CorruptArtifact` naming a damaged segment."""
        every: Consumed = {}
        for segment in segments_of(frontier):
            every.update(self.read(segment))
        expected = sum(segment.files for segment in segments_of(frontier))
        if len(every) != expected:
            raise InvariantViolation(
                f"the ledger of shard {self._shard} has {len(every)} different files, expected {expected}: a file is in"
                " two segments; run `persist fsck`"
            )
        return every

    def added(self, before: SourceFrontier | None, after: SourceFrontier | None) -> Consumed:
        """The files of `after` that `before` does not have. Reads only the segments that are not in both."""
        old, new = set(segments_of(before)), set(segments_of(after))
        every: Consumed = {}
        for segment in new - old:
            every.update(self.read(segment))
        for segment in old - new:
            for relative, facts in self.read(segment).items():
                if every.get(relative) == facts:
                    del every[relative]
        return every

    def replaced(self, frontier: SourceFrontier | None, files: Consumed, *, era: int) -> SourceFrontier | None:
        """The frontier with `files` in place of all its files: fewer, or under other names. Stages one segment."""
        if frontier is None or files == self.consumed(frontier):
            return frontier
        segments = [asdict(self._stage(files, era))] if files else []
        return SourceFrontier(FILES, {**frontier.offsets, "segments": segments})

    def set_aside(self, frontier: SourceFrontier, names: Collection[str], *, era: int) -> SourceFrontier:
        """The frontier with these of the files that it was extended by last as set aside. Stages one segment."""
        *others, last = segments_of(frontier)
        files = {name: (*facts[:3], facts[3] or name in names) for name, facts in self.read(last).items()}
        segments = [asdict(segment) for segment in (*others, self._stage(files, era))]
        return SourceFrontier(FILES, {**frontier.offsets, "segments": segments})

    def extend(self, frontier: SourceFrontier | None, files: Consumed, *, place: Place, era: int) -> SourceFrontier:
        """The frontier after `files` too. Stages at most one segment; commits nothing."""
        segments = list(segments_of(frontier))
        added = dict(files)
        while segments and segments[-1].files < 2 * len(added):  # bounded by the number of segments
            added.update(self.read(segments.pop()))
        if added:
            segments.append(self._stage(added, era))
        before: Mapping[str, int] = frontier.offsets if frontier else {}
        return SourceFrontier(
            FILES,
            {
                **{name: folder for name, folder in asdict(place).items() if folder},
                "files": before.get("files", 0) + len(files),
                "size_bytes": before.get("size_bytes", 0) + sum(size for size, *_ in files.values()),
                "segments": [asdict(segment) for segment in segments],
            },
        )

    def owned(self, frontier: SourceFrontier, *, era: int) -> SourceFrontier:
        """The frontier of another shard as this one's: segments that are not its own are copied. Commits nothing."""
        segments = [
            segment if owner_of(segment.key) == self._shard else self._stage(self.read(segment), era)
            for segment in segments_of(frontier)
        ]
        return replace(frontier, offsets={**frontier.offsets, "segments": [asdict(each) for each in segments]})

    def _stage(self, files: Consumed, era: int) -> LedgerSegment:
        rows = [[relative, *facts] for relative, facts in sorted(files.items())]
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(seal(_SEGMENT, SEGMENT_VERSION, {"files": rows}))
        sha256 = hashlib.sha256(data).hexdigest()
        key = ledger_segment_key(self._shard, era, sha256)
        self._blob.set(key, data)
        self._read[key] = files
        return LedgerSegment(key, len(files), sha256, len(data))

    def read(self, segment: LedgerSegment) -> Consumed:
        """The files of one segment. Raises `CorruptArtifact` or `UnknownVersion`, naming it."""
        known = self._read.get(segment.key)
        if known is not None:
            return known
        data = self._blob.get(segment.key)
        name = f"ledger segment {segment.key} in {self._blob.uri}"
        if data is None:
            raise CorruptArtifact(f"{name} is missing, so the consumed files are not known; run `persist fsck`")
        found = hashlib.sha256(data).hexdigest()
        if found != segment.sha256:
            raise CorruptArtifact(f"{name} has the digest {found}, expected {segment.sha256}; run `persist fsck`")
        try:
            unpacked = zstandard.ZstdDecompressor().decompress(data)
            body = unseal(unpacked, kind=_SEGMENT, version=SEGMENT_VERSION, what=name)
            files = {name: (size, mtime_ms, date_ms, aside) for name, size, mtime_ms, date_ms, aside in body["files"]}
        except (ValueError, KeyError, TypeError, zstandard.ZstdError) as error:
            raise CorruptArtifact(f"{name} can't be read: {error!r}; run `persist fsck`") from error
        if len(files) != segment.files:
            raise CorruptArtifact(f"{name} holds {len(files)} files, expected {segment.files}; run `persist fsck`")
        self._read[segment.key] = files
        return files


def place_of(frontier: SourceFrontier | None) -> Place | None:
    """The place that the files of a frontier were read from; `None` if it has no files. Raises `InvariantViolation`."""
    if frontier is None or frontier.offsets.get("files") == 0:
        return None
    try:
        offsets = frontier.offsets
        return Place(offsets["root"], offsets["base"], offsets.get("moved_from", ""))
    except (KeyError, TypeError) as error:
        raise InvariantViolation(
            f"the source progress does not name a folder: {error!r}; run `persist fsck`"
        ) from error


def segments_of(frontier: SourceFrontier | None) -> tuple[LedgerSegment, ...]:
    """The segments that a frontier lists, largest first. Raises `InvariantViolation` if it is not of files."""
    if frontier is None:
        return ()
    try:
        if frontier.source_type != FILES:
            raise ValueError(f"source type {frontier.source_type!r}")
        return tuple(LedgerSegment(**segment) for segment in frontier.offsets["segments"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvariantViolation(
            f"the source progress is not of type {FILES!r}: {error!r}; run `persist fsck`"
        ) from error


class FileProgress:
    """`persist_core.sources.source.Progress` of files."""

    def __init__(self, blob: Blob, shard: str, stored: SourceFrontier) -> None:
        self._blob = blob
        self._ledger = Ledger(blob, shard)
        self._stored = stored

    def copied_to(self, shard: str, *, era: int) -> SourceFrontier:
        """Copies the segments that are not the shard's."""
        return Ledger(self._blob, shard).owned(self._stored, era=era)

    def needed_keys(self) -> set[str]:
        return {segment.key for segment in segments_of(self._stored)}

    def verify(self) -> Iterator[str]:
        """Check each segment, and that no file is in two."""
        damaged = False
        try:
            segments = segments_of(self._stored)
            place_of(self._stored)
        except Corruption as error:
            yield str(error)
            return
        for segment in segments:
            try:
                self._ledger.read(segment)
            except Corruption as error:
                damaged = True
                yield str(error)
        if not damaged:
            try:
                self._ledger.consumed(self._stored)
            except Corruption as error:
                yield str(error)

    def check_restorable(self) -> None:
        """Always possible: files that still exist can be read again."""

    def consumed_since(self, earlier: SourceFrontier | None) -> tuple[ConsumedInput, ...]:
        """Names as in the ledger: paths relative to the folder that the first commit read from."""
        added = self._ledger.added(earlier, self._stored)
        return tuple(ConsumedInput(name, size, date_ms) for name, (size, _, date_ms, _) in sorted(added.items()))
