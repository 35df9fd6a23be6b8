"""Files in a bucket. Their names are listed by what the pattern says of them; each is frozen with its ETag and version.

1. A listing asks for the plain text that `source.path` starts with; of dated files, if only some dates are asked for,
   each of these days alone. A long listing of names that are mostly known is cut into pieces that run side by side.
2. An object is frozen with its size and ETag, and in a bucket with versions with its version: that version can be read
   even if another one is the newest now.
3. Only exactly the frozen bytes are read (`S3Objects.read`), or `SourceChanged` is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from persist_core.config.path_pattern import HIDDEN, S3, PathPattern
from persist_core.errors import Determinate, SourceChanged
from persist_core.handles.side_by_side import side_by_side
from persist_core.location.s3.objects import ObjectFacts, S3Objects
from persist_core.sources.feed import Wanted
from persist_core.sources.file_scan import FoundFile, Scan, is_unfinished
from persist_core.sources.input_file import InputFile

THREADS = 16  # requests at the same time, of at most `client.MAX_CONNECTIONS`
_PAGE = 1000  # names in one answer: fewer known names are not worth several requests


class S3Feed:
    """`Feed` of a bucket."""

    def __init__(self, pattern: PathPattern, objects: S3Objects) -> None:
        self.objects = objects
        self._pattern = pattern
        self._loose = pattern.loose
        self._root = f"{pattern.root.removeprefix(S3)}/".partition("/")[2]  # a prefix of names, empty or with a slash

    def scan(self, wanted: Wanted) -> Scan:
        """See `Feed`. Raises `Determinate` too if no object lies below the root: a bucket has no other folders."""
        scan, listed = Scan(), 0
        pieces = self._pieces(wanted)
        for found, names in side_by_side(lambda piece: self._piece(wanted, *piece), pieces, threads=THREADS):
            listed += names
            scan.requests += found.requests
            scan.unfinished += found.unfinished
            scan.found += found.found
            scan.unmatched += found.unmatched
        if not listed and self._root:  # of a whole bucket the listing itself says whether it is there
            scan.requests += 1
            if not any(self.objects.listed(self._root)):
                raise Determinate(
                    f"source folder {self._pattern.root} (of source.path {self._pattern.text!r}) does not exist: there"
                    " is no object below it; correct source.path, or if its files come later, create an empty object"
                    f" named {self._root!r}"
                )
        return scan

    def freeze(self, files: Sequence[InputFile]) -> list[InputFile]:
        """See `Feed`. One request if the bucket has no versions, else one for each file."""
        if not files:
            return []
        first = self._now(files[0])
        if first is not None and not first.version_id:
            return list(files)  # as listed; `check` comes before any of them is read
        found = side_by_side(self._now, files[1:], threads=THREADS)
        return [file for file in (first, *found) if file is not None]

    def check(self, files: Sequence[InputFile]) -> None:
        """See `Feed`. A version that is frozen must be there, whether or not it is still the newest."""
        side_by_side(self._check, files, threads=THREADS)

    def superseded(self, files: Sequence[InputFile]) -> set[InputFile]:
        """The files whose frozen version is no longer what a plain read of their name gives."""
        now = side_by_side(self._now, [file for file in files if file.version_id], threads=THREADS)
        newest = {(file.path, file.version_id) for file in now if file is not None}
        return {file for file in files if file.version_id and (file.path, file.version_id) not in newest}

    def opened(self, file: InputFile) -> IO[bytes]:
        return self.objects.opened(_facts(file), _changed(file, "another object has its name now"))

    def _pieces(self, wanted: Wanted) -> list[tuple[str, str, str | None]]:
        """The listings to make: prefix, and the names after which and up to which."""
        prefixes = self._pattern.prefixes(*wanted.dates) if wanted.dates is not None else None
        if prefixes is not None:
            return [(f"{self._root}{prefix}", "", None) for prefix in prefixes]
        step = max(len(wanted.known_names) // THREADS, _PAGE)
        cuts = [f"{self._root}{name}" for name in wanted.known_names[step::step]]
        prefix = f"{self._root}{self._pattern.head}"
        return [(prefix, after, through) for after, through in zip(["", *cuts], [*cuts, None], strict=True)]

    def _piece(self, wanted: Wanted, prefix: str, after: str, through: str | None) -> tuple[Scan, int]:
        """Return what one listing finds, and the number of all names in it."""
        scan, names = Scan(), 0
        for page in self.objects.listed(prefix, after=after, through=through):
            scan.requests += 1
            names += len(page)
            for each in page:
                self._look(scan, wanted, each)
        return scan, names

    def _look(self, scan: Scan, wanted: Wanted, each: ObjectFacts) -> None:
        below_root = each.name.removeprefix(self._root)
        if wanted.is_known(below_root, each.size_bytes, each.mtime_ms) or not self._loose.fullmatch(below_root):
            return
        *folders, name = below_root.split("/")
        is_hidden = any(folder.startswith(HIDDEN) and folder not in (".", "..") for folder in folders)
        if is_hidden or is_unfinished(name):
            scan.unfinished += 1
        elif not name:
            pass  # some tools mark a folder by an object whose name ends in a slash
        elif set(folders) & {"", ".", ".."}:
            scan.reject(below_root, "its name has an empty, '.' or '..' part, which a path can't have")
        elif "\ufffd" in below_root:  # in place of what the server can't write in a listing
            scan.reject(below_root, "its name holds a character that can't be listed")
        else:
            scan.look(self._pattern, FoundFile(below_root, each.size_bytes, each.mtime_ms, 0, None, each.etag))

    def _now(self, file: InputFile) -> InputFile | None:
        found = self.objects.looked_at(_name(file))
        if found is None:
            return None
        return replace(
            file,
            size_bytes=found.size_bytes,
            mtime_ms=found.mtime_ms if found.etag != file.etag else file.mtime_ms,  # a listing may be more exact
            etag=found.etag,
            version_id=found.version_id,
        )

    def _check(self, file: InputFile) -> None:
        found = self.objects.looked_at(_name(file), file.version_id)
        if found is None:
            raise _changed(file, "there is no such object now")
        # Listings may be more exact than a second. A version's bytes never change, whatever its time is called.
        is_rewritten = not file.version_id and found.mtime_ms // 1000 != file.mtime_ms // 1000
        if (found.etag, found.size_bytes) != (file.etag, file.size_bytes) or is_rewritten:
            raise _changed(file, f"the object has {found.size_bytes} bytes and the ETag {found.etag} now")


def _changed(file: InputFile, now: str) -> SourceChanged:
    version = f", version {file.version_id}" if file.version_id else ""
    return SourceChanged(
        f"input file {file.path} changed between minting and reading: it was frozen with {file.size_bytes} bytes and"
        f" the ETag {file.etag}{version}; {now}. Nothing was committed: the next run mints again. Writers should give"
        " each file a name of its own; in a bucket with versions the frozen one is read"
    )


def _name(file: InputFile) -> str:
    return file.path.removeprefix(S3).partition("/")[2]


def _facts(file: InputFile) -> ObjectFacts:
    return ObjectFacts(_name(file), file.size_bytes, file.mtime_ms, file.etag, file.version_id)
