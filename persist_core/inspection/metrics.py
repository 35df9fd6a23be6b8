"""Every metric, defined once: what tasks send to Airflow's Stats, and what `persist metrics` prints.

    ShardSummary, CommitFacts --SHARD_METRICS--> samples --prometheus_text--> `persist metrics`
                                                    +--> gauges of Airflow's tasks (persist_airflow.metrics)
    a task's try, a commit    --RUN_METRICS----> counters and timings of Airflow's tasks

1. A name, its unit and its labels mean the same in every backend; only the spelling differs (`stat`, `series`).
2. Units are Prometheus' base units: seconds and bytes. Only timings go to StatsD and OpenTelemetry in milliseconds, as
   both expect.
3. A fact that is not known (a closed frontier, an unreadable manifest) has no sample. It is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from persist_core.inspection.facts import ATTENTION, UNREADABLE, CommitFacts, ShardSummary
from persist_core.time_text import DAY_MS

COMMON_LABELS = ("location", "shard")
LATE = {"time": "late_times", "order": "late", "memory": "late_beyond_memory"}  # reason -> its count in a run's stats
PREFIX = "persist"

Value = int | float | None
Shard = tuple[ShardSummary, CommitFacts | None]
"""A shard, and its newest commit: `None` if it has none, or if the state can't be read."""


@dataclass(frozen=True)
class Metric:
    """One metric. `labels` follow location and shard; tasks add `dag_id` to metrics of a run.

    `read` gives the values by the value of the one label of its own (`""`: it has none); `None` for metrics of runs.
    """

    name: str
    kind: Literal["counter", "gauge", "timing"]
    help: str
    unit: Literal["", "seconds", "bytes"] = ""
    labels: tuple[str, ...] = ()
    read: Callable[[Shard], Mapping[str, Value]] | None = field(default=None, repr=False, compare=False)

    @property
    def series(self) -> str:
        """The name in Prometheus: with the unit, and with `_total` if it is a counter."""
        return "_".join(filter(None, (PREFIX, self.name, self.unit, "total" if self.kind == "counter" else "")))

    @property
    def stat(self) -> str:
        """The name in Airflow's Stats, to which Airflow adds its prefix."""
        unit = "" if self.kind == "timing" else self.unit  # StatsD's timings are in milliseconds
        return f"{PREFIX}." + "_".join(filter(None, (self.name, unit)))

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (*COMMON_LABELS, *self.labels)


def _of(read: Callable[[ShardSummary], Value]) -> Callable[[Shard], Mapping[str, Value]]:
    """A fact of the summary; of a shard whose state can't be read nothing is known."""
    return lambda shard: {} if UNREADABLE in shard[0].attention else {"": read(shard[0])}


def _of_commit(read: Callable[[CommitFacts], Value]) -> Callable[[Shard], Mapping[str, Value]]:
    return lambda shard: {"": read(shard[1])} if shard[1] is not None else {}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _clock_seconds(ms: int | None) -> float | None:
    """A time as Unix time in seconds; `None` for a counter, whose times come from no clock."""
    return None if ms is None or ms < DAY_MS else ms / 1000


def changes_of(commit: CommitFacts) -> dict[str, Value]:
    """The changes of a commit, by the values of the label `kind`."""
    return {"insert": commit.inserts, "update": commit.updates, "delete": commit.deletes, "error": commit.errors}


def late_of(commit: CommitFacts) -> dict[str, Value]:
    """The late records of a commit, by the values of the label `reason`; views and plain writers report none."""
    return {reason: (commit.stats or {}).get(name) for reason, name in LATE.items()}


def _attention_of(shard: Shard) -> dict[str, Value]:
    summary, commit = shard
    unread = bool(summary.error or (commit and commit.error))
    return {word: int(word in summary.attention or (word == UNREADABLE and unread)) for word in ATTENTION}


SHARD_METRICS: tuple[Metric, ...] = (
    Metric("upper_timestamp", "gauge", "The shard's upper as Unix time: all earlier times are complete.",
           "seconds", read=_of(lambda s: _clock_seconds(s.upper))),
    Metric("upper_lag", "gauge", "How far the upper is behind the clock, when it was measured.",
           "seconds", read=_of(lambda s: _seconds(s.lag_ms))),
    Metric("since_timestamp", "gauge", "The shard's since as Unix time: the earliest time that can be read.",
           "seconds", read=_of(lambda s: _clock_seconds(s.since))),
    Metric("last_commit_timestamp", "gauge", "When the newest commit was made, as Unix time.",
           "seconds", read=_of(lambda s: _seconds(s.newest_commit.committed_ms) if s.newest_commit else None)),
    Metric("rows", "gauge", "Rows that the newest contents hold.", read=_of(lambda s: s.rows)),
    Metric("errors_alive", "gauge", "Errors that the newest contents hold: records that could not be decoded.",
           read=_of(lambda s: s.errors)),
    Metric("stash_records", "gauge", "Records that wait in the stash for their time.", read=_of(lambda s: s.stash)),
    Metric("size", "gauge", "Bytes of the parts of all batches.", "bytes", read=_of(lambda s: s.size_bytes)),
    Metric("batches", "gauge", "Batches that a read goes through.", read=_of(lambda s: s.batches)),
    Metric("updates", "gauge", "Updates that the batches hold, history not included.", read=_of(lambda s: s.updates)),
    Metric("merge_due_batches", "gauge", "Batches of the merge that maintenance would do next; 0 if none is due.",
           read=_of(lambda s: s.due_merge.batches if s.due_merge else 0)),
    Metric("merge_due_rows", "gauge", "Rows of the merge that maintenance would do next; 0 if none is due.",
           read=_of(lambda s: s.due_merge.rows if s.due_merge else 0)),
    Metric("conflicts_7d", "gauge", "Appends that lost a race in the last 7 days.", read=_of(lambda s: s.conflicts_7d)),
    Metric("holders", "gauge", "Leases and holds that keep history.", read=_of(lambda s: s.holders)),
    Metric("held_timestamp", "gauge", "The earliest time that leases and holds keep, as Unix time.",
           "seconds", read=_of(lambda s: _clock_seconds(s.held_at))),
    Metric("attention", "gauge", "1 if the shard has this problem, else 0.", labels=("problem",), read=_attention_of),
    Metric("last_commit_changes", "gauge", "What the newest commit changed: rows, and records that became errors.",
           labels=("kind",), read=lambda s: changes_of(s[1]) if s[1] else {}),
    Metric("last_commit_size", "gauge", "Bytes of the parts of the newest commit.", "bytes",
           read=_of_commit(lambda c: c.size_bytes)),
    Metric("last_commit_parts", "gauge", "Parts (Parquet files) of the newest commit.",
           read=_of_commit(lambda c: c.parts)),
    Metric("last_commit_late_records", "gauge", "Late records of the newest commit, by what they were late for.",
           labels=("reason",), read=lambda s: late_of(s[1]) if s[1] else {}),
)  # fmt: skip

COMMITS = Metric("commits", "counter", "Commits. Tasks count their own; the state counts all.",
                 read=_of(lambda s: s.commits))  # fmt: skip
CHANGES = Metric("changes", "counter", "What commits changed: rows, and records that became errors.", labels=("kind",))
RECORDS = Metric("records_read", "counter", "Records that committed runs read from their input.")
LATE_RECORDS = Metric("late_records", "counter", "Late records of commits, by what they were late for.",
                      labels=("reason",))  # fmt: skip
WRITTEN = Metric("written", "counter", "Bytes of the parts that commits added.", "bytes")
CONFLICTS = Metric("conflicts", "counter", "Appends that lost a race; each is counted once.")
HEALS = Metric("heals", "counter", "Appends that succeeded after a conflict: minted and written again.")
MERGES = Metric("merges", "counter", "Merges of batches that the DAG persist_maintenance did.")
TRIES = Metric(
    "tries",
    "counter",
    "Tries of tasks, by how they ended: success, skipped, conflict or failed.",
    labels=("stage", "result"),
)
STAGE_DURATION = Metric("stage_duration", "timing", "How long a try of a stage took.", "seconds", labels=("stage",))

RUN_METRICS = (
    COMMITS, CHANGES, RECORDS, LATE_RECORDS, WRITTEN, CONFLICTS, HEALS, MERGES, TRIES, STAGE_DURATION,
)  # fmt: skip
STAGES = ("mint", "write", "append", "checkpoint", "retry", "maintain")
RESULTS = ("success", "skipped", "conflict", "failed")


def labeled_samples(shards: Iterable[Shard], *, location: str) -> Iterator[tuple[Metric, dict[str, str], float]]:
    """Each metric's samples, with the values of all its labels by name; none of shards that are dropped.

    `location` is the value of that label.
    """
    given = [shard for shard in shards if not shard[0].is_dropped]
    for metric in (*SHARD_METRICS, COMMITS):
        assert metric.read is not None  # only metrics of runs have none
        for shard in given:
            for own, value in metric.read(shard).items():
                if value is not None:
                    values = (location, shard[0].shard, *([own] if metric.labels else []))
                    yield metric, dict(zip(metric.all_labels, values, strict=True)), value


def prometheus_text(shards: Iterable[Shard], *, location: str) -> str:
    """The metrics in Prometheus' text format 0.0.4. Every metric has its help, also without samples."""
    lines: dict[Metric, list[str]] = {
        metric: [f"# HELP {metric.series} {_escaped(metric.help)}", f"# TYPE {metric.series} {metric.kind}"]
        for metric in (*SHARD_METRICS, COMMITS)
    }
    for metric, labels, value in labeled_samples(shards, location=location):
        shown = ",".join(f'{name}="{_escaped(text, quotes=True)}"' for name, text in labels.items())
        lines[metric].append(f"{metric.series}{{{shown}}} {_number(value)}")
    return "\n".join(line for each in lines.values() for line in each) + "\n"


def _escaped(text: str, *, quotes: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quotes else escaped


def _number(value: float) -> str:
    """Integers without a fraction or an exponent, whatever their size."""
    return str(int(value)) if value == int(value) else repr(value)
