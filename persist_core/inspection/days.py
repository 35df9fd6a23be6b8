"""The calendar of a shard: one `DayFacts` for each day that its commits, its input and its schedule cover. Pure.

A day is one of the collection's time zone, so it may have 23 or 25 hours. Its files have its date in their path; if
the source has no dates in its paths, the commits of the day have read them. What a day is:

    failed      the day is over, no commit covers it, and its dag run failed
    missing     the day is over, and no commit covers it; or other days have dated files, and this one has none, as far
                as the inputs of all commits from its start on are known
    corrected   a restore has changed the shard on this day
    late        a file of the day came after a commit had covered the day
    loaded      commits cover the day
    unknown     only commits older than the given ones cover the day
    open        the day is not over, or its run is not due yet
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from persist_core.inspection.facts import CommitFacts, DayFacts, DayState, FileFacts
from persist_core.sources.source import ConsumedInput
from persist_core.time_text import DAY_MS, LAST_DAY, UTC_ZONE, day_of, local_of

MAX_DAYS = 366
MAX_FILES = 20  # names of one day; the rest are counted
_COUNTS = ("inserts", "updates", "deletes", "errors")


@dataclass(frozen=True)
class Loaded:
    """One commit, and the inputs that it has consumed; `None` if they are not known."""

    commit: CommitFacts
    inputs: tuple[ConsumedInput, ...] | None = ()


def days_of(
    loads: Sequence[Loaded],
    *,
    upper: int | None,
    due: int,
    now_ms: int,
    limit: int,
    failed: Collection[int] = (),
    zone: str = UTC_ZONE,
) -> tuple[DayFacts, ...]:
    """The newest `limit` days up to today, oldest first; none for a shard whose times are not clock times. Commits
    after the year 9999 are on no day.

    `loads` are the newest commits, oldest first. `upper` is the shard's (`None`: closed). `due`: all days that end at
    or before it should be covered by now. `failed` has the start of each day whose newest dag run failed. `zone` is the
    collection's: see `day_of`.
    """
    timed = [load for load in loads if load.commit.upper is None or DAY_MS <= load.commit.upper <= LAST_DAY]
    if not timed:
        return ()
    is_dated = any(each.date_ms is not None for load in timed for each in load.inputs or ())
    by_day: dict[int, list[Loaded]] = defaultdict(list)
    files: dict[int, list[tuple[ConsumedInput, CommitFacts]]] = defaultdict(list)
    for load in timed:
        own = day_of(load.commit.committed_ms if load.commit.upper is None else load.commit.upper - 1, zone)
        by_day[own].append(load)
        for each in load.inputs or ():
            files[own if each.date_ms is None else day_of(each.date_ms, zone)].append((each, load.commit))
    covered = now_ms if upper is None else upper
    read_from = timed[0].commit.lower
    known_from = max([read_from, *(load.commit.upper or covered for load in timed if load.inputs is None)])
    today = day_of(now_ms, zone)
    day = max(min([*by_day, *files]), day_of(today, zone, moved_by=1 - limit))
    shown = []
    while day <= today:  # at most `limit` days
        end = day_of(day, zone, moved_by=1)
        commits = [load.commit for load in by_day.get(day, ())]
        found = files.get(day, [])
        late = sum(commit.lower >= end for _, commit in found)
        is_covered = covered >= end
        state: DayState
        if not is_covered:
            state = "failed" if day in failed else "missing" if end <= due else "open"
        elif any(commit.restored_from for commit in commits):
            state = "corrected"
        elif is_dated and not found and day >= known_from:
            state = "missing"
        elif day < read_from and not found and not commits:
            state = "unknown"
        else:
            state = "late" if late else "loaded"
        counts = {name: sum(getattr(commit, name) or 0 for commit in commits) for name in _COUNTS}
        named = tuple(
            FileFacts(each.name, each.size_bytes, commit.committed_ms, commit.lower >= end)
            for each, commit in found[:MAX_FILES]
        )
        date = local_of(day, zone).date().isoformat()
        shown.append(
            DayFacts(
                date, day, end, state, len(commits), **counts, files=named, files_total=len(found), files_late=late
            )
        )
        day = end
    return tuple(shown)
