"""Reports of changes, for people and programs, as `persist reprocess`, `fill` and `rebuild` print them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from persist_core.inspection.values import json_rows
from persist_core.maintenance.fill import Filled
from persist_core.maintenance.rebuild import Rebuilt
from persist_core.maintenance.reprocess import Reprocessed
from persist_core.protocol.difference import Differences
from persist_core.row_text import show_count, show_names
from persist_core.time_text import show_time

SAMPLES = 20  # rows of a report


def facts_of(found: Differences, samples: int = SAMPLES) -> dict[str, Any]:
    """The counts and some rows, as JSON."""
    counts = {name: value for name, value in vars(found).items() if name not in ("rows", "columns")}
    return {**counts, "columns": dict(found.columns), "samples": list(json_rows(found.rows.slice(0, samples)))}


def line_of(found: Differences) -> str:
    errs = (
        f"; {found.errs_added} errors added, {found.errs_removed} removed"
        if found.errs_added + found.errs_removed
        else ""
    )
    return f"{found.added} rows added, {found.removed} removed, {_changed_in(found)}{errs}"


def _changed_in(found: Differences | Filled) -> str:
    columns = ", ".join(f"{name} {count}" for name, count in found.columns.items())
    return f"{found.changed} changed{f' ({columns})' if columns else ''}"


@dataclass(frozen=True)
class Report:
    """The report of a correction, a fill or a rebuild. `lines`: before the commit; `done`: what was committed.
    `differing`: the rows, if they can be compared; `samples`: what else shows rows. `facts`: all of it, as JSON."""

    lines: tuple[str, ...]
    done: str
    differing: Differences | None
    facts: dict[str, Any]
    samples: tuple[str, ...] = ()


def report_of(found: Reprocessed | Rebuilt | Filled) -> Report:
    """The report, before the commit or after it."""
    if isinstance(found, Filled):
        return _fill_report(found)
    return _reprocess_report(found) if isinstance(found, Reprocessed) else _rebuild_report(found)


def _reprocess_report(found: Reprocessed) -> Report:
    lines = [f"{found.shard}, of {show_count(found.rows)}: {line_of(found.found)}"]
    for what, names in (("replaced", found.replaced), ("gone", found.gone), ("new", found.new)):
        lines += [f"files {what}: {show_names(names)}"] if names else []
    done = "nothing was committed" if found.is_needed else f"nothing to correct in {found.shard}"
    if found.commit:
        done = (
            f"corrected from {show_time(found.commit.lower)} on, as checkpoint {found.commit.checkpoint_id}; earlier"
            " times show what was believed then"
        )
    facts = {
        "shard": found.shard,
        "status": "corrected" if found.commit else "dry_run" if found.is_needed else "up_to_date",
        "replayed_from": found.start.upper,
        "from_checkpoint": found.start.checkpoint_id,
        "checkpoint_id": found.commit.checkpoint_id if found.commit else None,
        "upper": found.commit.upper if found.commit else None,
        "rows": found.rows,
        "replaced": list(found.replaced),
        "gone": list(found.gone),
        "new": list(found.new),
        **facts_of(found.found),
    }
    return Report(tuple(lines), done, found.found, facts)


def _fill_report(found: Filled) -> Report:
    lines = [f"{found.shard}, of {show_count(found.rows)}: {_changed_in(found)}"]
    lines += [each.counted for each in found.warnings]
    done = "nothing was committed" if found.changed else f"nothing to fill in {found.shard}"
    if found.commit:
        done = f"filled from {show_time(found.commit.lower)} on, as checkpoint {found.commit.checkpoint_id}"
    facts = {
        "shard": found.shard,
        "status": "filled" if found.commit else "dry_run" if found.changed else "up_to_date",
        "checkpoint_id": found.commit.checkpoint_id if found.commit else None,
        "upper": found.commit.upper if found.commit else None,
        "rows": found.rows,
        "changed": found.changed,
        "columns": dict(found.columns),
        "warnings": [each.counted for each in found.warnings],
    }
    return Report(tuple(lines), done, None, facts, tuple(text for each in found.warnings for text in each.samples))


def _rebuild_report(found: Rebuilt) -> Report:
    """`differences` is `null` if rows cannot be compared: `why` says why."""
    lines = [f"{found.shard} holds {found.before}; rebuilt it holds {found.after}"]
    lines += [line_of(found.found)] if found.found else [found.why] if found.why else []
    lines += [f"files gone: {show_names(found.gone)}"] if found.gone else []
    done = f"nothing was swapped in; look at it: `persist snapshot {found.built}`"
    if found.commit:
        swapped = "is swapped in" if found.is_new else "was swapped in before"
        done = f"generation {found.generation} of {found.shard} {swapped}, from {show_time(found.commit.lower)} on"
        done += f"; the one before is kept as {found.kept}"
    if not found.is_new:
        lines, done = [], f"nothing to do: {done} (--swap-back --generation {found.generation - 1})"
    facts = {
        "shard": found.shard,
        "status": "up_to_date" if not found.is_new else "swapped" if found.commit else "dry_run",
        "generation": found.generation,
        "built": found.built,
        "before": asdict(found.before),
        "after": asdict(found.after),
        "gone": list(found.gone),
        "why": found.why,
        "differences": facts_of(found.found) if found.found else None,
        "checkpoint_id": found.commit.checkpoint_id if found.commit else None,
        "upper": found.commit.upper if found.commit else None,
        "kept": found.kept,
    }
    return Report(tuple(lines), done, found.found, facts)
