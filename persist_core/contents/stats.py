"""Counts and reports of runs: plain numbers that a batch's manifest carries, and the report of a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from persist_core.errors import InvariantViolation
from persist_core.sealed import Sealed, seal

MAX_NAMES = 20  # of fields, in a warning
FILLED_COLUMN = "filled."  # of a fill's count, before a column's name
LEFT = "rows that stay as they are"  # a fill's warning
_REMARKABLE = {
    "stashed": "in the stash until their time",
    "late_times": "with a time that was final already",
    "order_ties": "with the order of another record",
    "late": "beaten by a higher order seen before (persist late lists them)",
    "late_beyond_memory": "that a forgotten delete may have beaten (order.keep_deleted)",
    "skipped": "control records skipped",
    "warnings": "warnings (persist run and the log of the append task list them)",
}


@dataclass(frozen=True)
class BatchWarning:
    """Rows of a batch to look at: `check NAME` is not true for them, or a value of `column NAME` was bad and is null.

    `samples`: keys as JSON, a bad text behind its key; two at most. `fails`: nothing may be committed. Without rows
    (`count` 0) it is about the feed, and `samples` are names of fields.
    """

    name: str
    count: int
    samples: tuple[str, ...]
    fails: bool = False

    @property
    def counted(self) -> str:
        """It in words, without the samples."""
        return f"{self.name}: {self.count or ', '.join(self.samples)}"

    def __str__(self) -> str:
        return f"{self.counted}, for example {' and '.join(self.samples)}" if self.count else self.counted


@dataclass(frozen=True)
class DrainStats:
    """Counts of one drain, all after consolidation, oks and errs alike (docs/semantics.md, section 4).

    `eligible`: winners processed, expanded truncates included. `result_count`: winners whose slot held a value
    just before. `already_persisted`: redelivered winners of a (slot, original time) before the batch's lower; what they
    beat is in `duplicates`, as everywhere. `truncated`: tombstones that truncates expanded to; the truncate itself is
    `skipped`. `stashed`: what the stash holds at the end. `order_ties`: records that lost by canonical bytes alone.
    In `sequence` order, `late`: winners that lost to an order seen before; `late_beyond_memory`: winners
    that won, though a tombstone that is not remembered any more may be newer. `warnings`: rows of `BatchWarning`s.
    """

    records_read: int = 0
    stash_before: int = 0
    truncated: int = 0
    eligible: int = 0
    result_count: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    output_count: int = 0
    already_persisted: int = 0
    stashed: int = 0
    duplicates: int = 0
    late: int = 0
    late_beyond_memory: int = 0
    late_times: int = 0
    order_ties: int = 0
    skipped: int = 0
    errors: int = 0
    warnings: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> DrainStats:
        """The inverse of `to_json`; a count that is missing is 0, one that is unknown is ignored."""
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})

    def check(self) -> None:
        """Raise `InvariantViolation` unless the counts add up."""
        came = self.records_read + self.stash_before + self.truncated
        went = self.eligible + self.already_persisted + self.stashed + self.duplicates + self.skipped
        written = self.inserts + 2 * self.updates + self.deletes
        found = self.updates + self.deletes
        broken = {
            "every count >= 0": min(asdict(self).values()) >= 0,
            f"records_read + stash_before + truncated = {came} is eligible + already_persisted + stashed + duplicates"
            f" + skipped = {went}": came == went,
            f"output_count = {self.output_count} is inserts + 2 x updates + deletes = {written}": self.output_count
            == written,
            f"updates + deletes = {found} <= result_count = {self.result_count} <= eligible - inserts ="
            f" {self.eligible - self.inserts}": found <= self.result_count <= self.eligible - self.inserts,
        }
        found_counts = ", ".join(f"{name} {count}" for name, count in asdict(self).items())
        for claim, holds in broken.items():
            if not holds:
                raise InvariantViolation(
                    f"the counts of this run do not add up; expected: {claim}; found {found_counts}."
                    " Nothing was committed; this is a defect, please report it with the job's log"
                )


@dataclass(frozen=True)
class ViewStats:
    """The report of one refresh; counts of rows, each copy of a row counted.

    `rows` and `errs` are what the view holds after it. `corrections` counts the rows that the target held in excess of,
    or short of, what the refresh before had left. `contents_*` is an order-independent digest of what it holds after.
    """

    rows: int
    errs: int
    inserted: int
    retracted: int
    errs_inserted: int
    errs_retracted: int
    updates: int
    corrections: int
    contents_0: int
    contents_1: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class DryRun(Sealed):
    """The report of a read-only refresh: its stats, and a few of its updates as JSON objects for people."""

    KIND = "dry_run"

    as_of: int
    stats: Mapping[str, int]
    sample: tuple[Mapping[str, Any], ...]

    def encode(self) -> bytes:
        """Sealed JSON. Values that JSON does not have (decimals, times) become text."""
        sample = [{name: _plain(value) for name, value in row.items()} for row in self.sample]
        return seal(self.KIND, self.VERSION, {"as_of": self.as_of, "stats": dict(self.stats), "sample": sample})


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def in_words(shard: str, stats: Mapping[str, int]) -> str:
    """The changes of a run, in one line for logs: `+21 rows, 16 updated, 10 deleted, 1 error (persist errors x)`.

    `stats`: a `DrainStats` or a `ViewStats` as a mapping.
    """
    inserted = stats.get("inserts", stats.get("inserted", 0))
    deleted = stats.get("deletes", stats.get("retracted", 0))
    errors = stats.get("errors", stats.get("errs_inserted", 0))
    said = [
        f"+{inserted} rows",
        f"{stats['updates']} updated" if "inserts" in stats else "",
        f"{deleted} deleted",
        f"{errors} {'error' if errors == 1 else 'errors'} (persist errors {shard})" if errors else "",
        *(f"{stats[name]} {words}" for name, words in _REMARKABLE.items() if stats.get(name)),
    ]
    return ", ".join(filter(None, said))


def correction_notice(shard: str, stats: Mapping[str, int]) -> str | None:
    """The warning if a refresh found the target other than the last one left it, else `None`."""
    corrections = stats.get("corrections", 0)
    if not corrections:
        return None
    return (
        f"view {shard}: {corrections} rows were not as the last refresh left them, and were corrected. Another writer"
        f" writes to this shard, or its parts were lost: see `persist describe {shard}` and `persist fsck {shard}`"
    )


def show_bytes(size_bytes: int) -> str:
    """A size for people, in powers of 1024."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size_bytes} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
