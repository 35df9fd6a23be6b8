"""Files dropped into folders: which are new, the input of one description frozen from them, the frontier after it.

    scan ----------------.
                          +--> freeze(consumed, until) -> Freeze(frozen input, what was noticed)
    ledger (consumed) ---'
    frozen input ------------> advance(consumed, frozen) -> SourceFrontier, committed with the data

1. A file is identified by its path, so a wider or narrower `source.path` does not read it again
   (`persist_core.sources.root` handles another root). Where it lies, in a folder or a bucket, is for
   `persist_core.sources.feed` alone.
2. A file that no commit has consumed is in `frozen`, or not due, or left over by the limits: never dropped.
3. A consumed file is never read again. If its size or time of change differ, it is reported in `changed`; or, if it was
   set aside or without a byte, it is corrected (`InputFile.is_corrected`) and read like a new one. In the run that
   moves the files to another root only sizes are compared, and the progress takes over their times there: copies have
   other ones.
4. Files are in the natural order of their relative paths, whatever order they arrived in. With `time: path` whole dates
   are taken, oldest first, and `Freeze.upper` stops before the first date that is left: so a limit never makes a
   record late.
5. The position of a record is its file's `order`, the offset of the block in which it was read, and its number among
   the records of the block; of a record that is too long to be read, the offset of its text, and -1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import SourceFrontier
from persist_core.errors import InvalidInput
from persist_core.location.blob import Blob
from persist_core.sources.feed import Feed, LocalFeed, Wanted
from persist_core.sources.file_scan import FoundFile, UnmatchedFile
from persist_core.sources.input_file import FrozenInput, InputFile
from persist_core.sources.ledger import Consumed, Facts, Ledger, place_of
from persist_core.sources.natural_order import natural_key, path_of
from persist_core.sources.root import Place, join, place_after, relative_to
from persist_core.time_text import DAY_MS, format_time, parse_time

SET_ASIDE = "set_aside"  # in the progress, if files are: the first of their names
UNREAD_FROM = "unread_from"  # in the progress, if files were left over; as text, because it may go back and vanish
_MAX_NOTICES = 20  # of one kind; the rest are counted


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that has changed since it was consumed."""

    relative: str
    old_size_bytes: int
    old_mtime_ms: int
    new_size_bytes: int
    new_mtime_ms: int

    def __str__(self) -> str:
        return (
            f"{ascii(self.relative)[1:-1]}: changed after it was consumed ({self.old_size_bytes} bytes at"
            f" {format_time(self.old_mtime_ms)}, now {self.new_size_bytes} bytes at"
            f" {format_time(self.new_mtime_ms)}); a run does not read it again. `persist reprocess` corrects the"
            " collection by it; or drop its new records as a new file"
        )


@dataclass(frozen=True)
class Freeze:
    """The result of `freeze`. Tuples are in natural order; counts are of files.

    `upper` is the greatest upper that a description of this input may have (`None`: closed). `unread_from` is the
    earliest date (ms) in the paths of the files left over; `requests`: of the listing. `moved`: the times of change, at
    their new place, of consumed files that were moved.
    """

    frozen: FrozenInput
    changed: tuple[ChangedFile, ...] = ()
    not_due: int = 0
    unmatched: tuple[UnmatchedFile, ...] = ()
    left_over: int = 0
    unread_from: int | None = None
    unfinished: int = 0
    requests: int = 0
    upper: int | None = None
    is_over_limit: bool = False
    moved: Mapping[str, int] = field(default_factory=dict)

    def notices(self) -> tuple[str, ...]:
        """One line for each thing that a user should know, bounded."""
        lines = [*_first(self.changed, "consumed files changed"), *_first(self.unmatched, "files were skipped")]
        if self.left_over:
            lines.append(
                f"{self.left_over} more files are due: left for the next run because of the collection's limits"
            )
        if self.is_over_limit:
            lines.append(
                f"{len(self.frozen.files)} files ({self.frozen.size_bytes} bytes) exceed the collection's limits,"
                " but they can't be split: one file, one date, or the end of the input"
            )
        if self.unfinished:
            shown = "names of unfinished files or folders (.x, _x, x.tmp ...)"
            lines.append(f"{self.unfinished} {shown} were found: skipped")
        return tuple(lines)


@dataclass(frozen=True)
class InputsNow:
    """The files that were consumed since an earlier progress, as they are now: with other bytes, or gone; and
    the files that wait to be consumed.

    Each has the date in its path (ms).
    """

    replaced: Mapping[str, int | None]
    gone: Mapping[str, int | None]
    waiting: Mapping[str, int | None]


HoldBack = Callable[[str, int | None], bool]
"""Whether a file that no commit has consumed is left for later: by its relative path and the date in it (ms)."""


class FileSource:
    def __init__(self, config: CollectionConfig, blob: Blob, feed: Feed | None = None) -> None:
        """`feed`: where the files lie; by default in a folder."""
        self._config = config
        self._pattern = config.source_pattern()
        self._feed = feed or LocalFeed(self._pattern)
        self._ledger = Ledger(blob, config.name)

    def freeze(
        self,
        consumed: SourceFrontier | None,
        *,
        until: int | None,
        lower: int = 0,
        listed_to: int | None = None,
        holds_back: HoldBack = lambda *_: False,
        is_look: bool = False,
    ) -> Freeze:
        """All files that are not in `consumed`, dated before `until` (ms; `None`: all), within the collection's limits.

        `lower` is the shard's upper: files dated before it belong to one time. `listed_to` (`None`: `lower`): see
        `sources.collection`. `is_look`: no run reads the files, a sample may; they stay as they were listed. Reads
        names and file metadata, not contents; the same tree gives the same result. Raises `Determinate` if a folder
        can't be listed, `CorruptArtifact` if the ledger is damaged.
        """
        place, known, is_move = self._known(consumed)
        base = place.base
        naming = _Naming(self._pattern.root, base)
        found = self._feed.scan(self._wanted(consumed, known, naming, lower, until, listed_to))
        changed: list[ChangedFile] = []
        pending: list[InputFile] = []
        moved: dict[str, int] = {}
        not_due = 0
        for file in found.found:
            relative = naming.relative(file.below_root)
            facts = known.get(relative)
            is_changed = facts is not None and _differs(facts, file.size_bytes, file.mtime_ms, is_move=is_move)
            if facts is not None and not (is_changed and (facts[3] or (file.size_bytes and not facts[0]))):
                if is_move and not is_changed:
                    moved[relative] = file.mtime_ms
                if is_changed:
                    changed.append(ChangedFile(relative, *facts[:2], file.size_bytes, file.mtime_ms))
            elif holds_back(relative, file.date_ms) or (
                until is not None and file.date_ms is not None and file.date_ms >= until
            ):
                not_due += 1
            else:
                pending.append(_input_file(file, relative, base, is_corrected=facts is not None))
        pending.sort(key=lambda file: file.order)
        taken, left = self._within_limits(pending, until, lower)
        taken = taken if is_look else self._feed.freeze(taken)  # with versions a request for each file
        return Freeze(
            frozen=FrozenInput(tuple(taken), base),
            changed=tuple(sorted(changed, key=lambda file: natural_key(file.relative))),
            not_due=not_due,
            unmatched=tuple(sorted(found.unmatched, key=lambda file: natural_key(file.path))),
            left_over=len(left),
            unread_from=min((file.date_ms for file in left if file.date_ms is not None), default=None),
            unfinished=found.unfinished,
            requests=found.requests,
            upper=self._upper(until, lower, left),
            is_over_limit=not self._fits(len(taken), sum(file.size_bytes for file in taken)),
            moved=moved,
        )

    def _wanted(
        self,
        consumed: SourceFrontier | None,
        known: Consumed,
        naming: _Naming,
        lower: int,
        until: int | None,
        listed_to: int | None,
    ) -> Wanted:
        """Return what to look for. The first listing of each UTC day is whole, and one that begins or ends the shard.

        So is the first one after the progress was put back, and one at another root. Others leave out dates more than
        `look_back` before the shard's upper and before all that was left over.
        """

        def is_known(below_root: str, size_bytes: int, mtime_ms: int) -> bool:
            return known.get(naming.relative(below_root), ())[:2] == (size_bytes, mtime_ms)

        dates, look_back_ms = None, self._config.source.look_back_ms
        listed_to = lower if listed_to is None else listed_to
        midnight = -(-listed_to // DAY_MS) * DAY_MS  # the first one that no listing has passed
        stays = not self.has_other_place(consumed)
        if consumed is not None and look_back_ms is not None and until is not None and until <= midnight and stays:
            unread_from = unread_from_of(consumed)
            dates = max(min(lower, lower if unread_from is None else unread_from) - look_back_ms, 0), until
        names = sorted(known) if naming.is_base and dates is None else ()
        return Wanted(dates, is_known, names)

    def advance(
        self,
        consumed: SourceFrontier | None,
        frozen: FrozenInput,
        *,
        era: int,
        unread_from: int | None = None,
        moved: Mapping[str, int] | None = None,
    ) -> SourceFrontier:
        """The progress after `frozen`. `unread_from` and `moved` as in `Freeze`.

        Stages the ledger in the shard's `era` and commits nothing. Idempotent.
        """
        place, known, _ = self._known(consumed)
        known |= {name: (known[name][0], mtime_ms, *known[name][2:]) for name, mtime_ms in (moved or {}).items()}
        for file in frozen.files:
            if file.is_corrected:
                known.pop(file.relative, None)
        twice = next((file.relative for file in frozen.files if file.relative in known), None)
        if twice is not None:
            raise InvalidInput(f"file {twice!r} was consumed by an earlier commit; mint again from the newest state")
        added = {file.relative: (file.size_bytes, file.mtime_ms, file.date_ms, False) for file in frozen.files}
        if len(added) != len(frozen.files):
            raise InvalidInput("a frozen input names a file twice; mint again")
        after = self._ledger.extend(self._ledger.replaced(consumed, known, era=era), added, place=place, era=era)
        more: dict[str, Any] = {} if unread_from is None else {UNREAD_FROM: format_time(max(unread_from, 0))}
        if aside := sorted(name for name, facts in known.items() if facts[3]):
            more[SET_ASIDE] = aside[:_MAX_NOTICES]
        return replace(after, offsets={**after.offsets, **more}) if more else after

    def set_aside(self, after: SourceFrontier, files: Collection[InputFile], *, era: int) -> SourceFrontier:
        """The progress that `advance` has returned, with the new files that were not read. Idempotent."""
        names = {file.relative for file in files}
        aside = sorted(names.union(after.offsets.get(SET_ASIDE, ())))[:_MAX_NOTICES]
        after = self._ledger.set_aside(after, names, era=era)
        return replace(after, offsets={**after.offsets, SET_ASIDE: aside})

    def consumed(self, progress: SourceFrontier | None, *, like: SourceFrontier | None) -> Consumed:
        """All files of a progress, by their names now, as the progress `like` or one after it has them.

        A progress that began in another folder has other names for the same files. Raises `CorruptArtifact` if the
        ledger is damaged.
        """
        return self._named_like(progress, like)[0]

    def replaced(self, before: SourceFrontier | None, after: SourceFrontier | None) -> list[str]:
        """The files of which the two progresses have consumed different versions, by their names in `after`."""
        (ours, were_moved), (theirs, are_moved) = (self._named_like(each, after) for each in (before, after))
        both, is_move = sorted(ours.keys() & theirs.keys()), were_moved or are_moved
        return [name for name in both if _differs(ours[name], *theirs[name][:2], is_move=is_move)]

    def inputs_now(self, progress: SourceFrontier | None, earlier: SourceFrontier | None) -> InputsNow:
        """Compare files that `progress` has consumed, and `earlier` has not, with what is there. Lists all."""
        place, known, is_move = self._known(progress)
        before, is_earlier_root = self._named_like(earlier, progress)
        naming = _Naming(self._pattern.root, place.base)
        found = {naming.relative(each.below_root): each for each in self._feed.scan(Wanted()).found}
        since = {
            name: facts
            for name, facts in known.items()
            if name not in before
            or before[name][2:] != facts[2:]
            or _differs(before[name], *facts[:2], is_move=is_earlier_root)
        }
        replaced = {
            name: facts[2]
            for name, facts in since.items()
            if name in found and _differs(facts, found[name].size_bytes, found[name].mtime_ms, is_move=is_move)
        }
        gone = {name: facts[2] for name, facts in since.items() if name not in found}
        return InputsNow(replaced, gone, {name: found[name].date_ms for name in found.keys() - known.keys()})

    def has_other_place(self, consumed: SourceFrontier | None) -> bool:
        """True if `source.path` starts at another folder than when `consumed` was committed."""
        return consumed is not None and place_after(self._config, place_of(consumed))[0] != place_of(consumed)

    def _known(self, consumed: SourceFrontier | None) -> tuple[Place, Consumed, bool]:
        """The place that the collection reads from now, the consumed files by their names there, and whether they have
        been moved there since."""
        known = self._ledger.consumed(consumed)
        before = place_of(consumed)
        place, move = place_after(self._config, before)
        if before is None or move is None:
            return place, known, False
        paths = ((move.path(join(before.base, name)), facts) for name, facts in known.items())
        return place, {relative_to(path, place.base): facts for path, facts in paths}, True

    def _named_like(self, progress: SourceFrontier | None, like: SourceFrontier | None) -> tuple[Consumed, bool]:
        """The consumed files, named as `consumed` says, and whether they have been moved."""
        place, known, is_move = self._known(progress)
        base = place_after(self._config, place_of(like))[0].base
        if base != place.base:
            known = {relative_to(join(place.base, name), base): facts for name, facts in known.items()}
        return known, is_move

    def _within_limits(
        self, pending: list[InputFile], until: int | None, lower: int
    ) -> tuple[list[InputFile], list[InputFile]]:
        """The first files that fit, at least one (with `time: path`: at least one date), and the rest.

        If the run closes the shard and times do not come from the path, there is no later run: all are taken.
        """
        groups: list[list[InputFile]]
        if self._config.time.source == "path":
            by_date: dict[int, list[InputFile]] = {}
            for file in pending:
                by_date.setdefault(max(file.date_ms or 0, lower), []).append(file)
            groups = [by_date[date] for date in sorted(by_date)]
        elif until is None:
            groups = [pending]
        else:
            groups = [[file] for file in pending]
        files = size_bytes = taken = 0
        for group in groups:
            files += len(group)
            size_bytes += sum(file.size_bytes for file in group)
            if taken and not self._fits(files, size_bytes):
                break
            taken += 1
        inside = [file for group in groups[:taken] for file in group]
        left = [file for group in groups[taken:] for file in group]
        return sorted(inside, key=lambda file: file.order), left

    def _fits(self, files: int, size_bytes: int) -> bool:
        limits = self._config.limits
        return files <= limits.max_files and (limits.max_bytes is None or size_bytes <= limits.max_bytes)

    def _upper(self, until: int | None, lower: int, left: list[InputFile]) -> int | None:
        if self._config.time.source != "path" or not left:
            return until
        first_left = min(max(file.date_ms or 0, lower) for file in left)
        return first_left if until is None else min(until, first_left)


def unread_from_of(progress: SourceFrontier) -> int | None:
    """The earliest date (ms) in the paths of files that limits left over, or `None`."""
    text = progress.offsets.get(UNREAD_FROM)
    return None if text is None else parse_time(text)


def show_position(position: Mapping[str, Any]) -> str:
    """`orders/2026-01-02.jsonl, row 7`: the path as in the ledger."""
    path, block, row = position.values()
    place = f" of the block at byte {block}" if block and row >= 0 else f", byte {block}" if block else ""
    return f"{path_of(path)}{f', row {row}' if row >= 0 else ''}{place}"


class _Naming:
    """Relative paths, fast if the root is in the base (the usual case)."""

    def __init__(self, root: str, base: str) -> None:
        self._root = root
        self._base = base
        inner = relative_to(root, base)
        self._prefix = "" if inner == "." else None if inner.startswith("..") else f"{inner}/"

    @property
    def is_base(self) -> bool:
        """True if paths below the root are relative paths."""
        return self._prefix == ""

    def relative(self, below_root: str) -> str:
        if self._prefix is not None:
            return f"{self._prefix}{below_root}"
        return relative_to(join(self._root, below_root), self._base)


def _differs(facts: Facts, size_bytes: int, mtime_ms: int, *, is_move: bool) -> bool:
    """True if a file is another one than the consumed file of its name. `is_move`: it may be a copy, with its own time;
    of a file that was set aside the copy may be a corrected one."""
    return facts[0] != size_bytes or (facts[1] != mtime_ms and (facts[3] or not is_move))


def _input_file(file: FoundFile, relative: str, base: str, *, is_corrected: bool) -> InputFile:
    times = (file.mtime_ms, file.ctime_ns, file.date_ms)
    order = natural_key(relative)
    return InputFile(join(base, relative), relative, file.size_bytes, *times, order, is_corrected, file.etag)


def _first(items: Iterable[object], what: str) -> list[str]:
    lines = [str(item) for item in items]
    more = len(lines) - _MAX_NOTICES
    return [*lines[:_MAX_NOTICES], *([f"{more} more {what}"] if more > 0 else [])]
