"""The measurements as Markdown: a table for one scenario, and the ratios that the aims are about.

A ratio of commits is the median of the ratios of its rounds, from the fourth on: by then most of the code is compiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.turns import DUCK, ICEBERG, NEVER, NO_HISTORY, OURS, REWRITE, SEQUENCE

WARM = 4  # the first round that counts
_EDGE = 10  # rounds at each end, for "last / first"
_IDLE_CORES = 0.2  # used by other processes than the benchmark's, on average
Measured = Mapping[str, Any]


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of per-round ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def commit_ratio(measured: Measured, other: str) -> float | None:
    """Our commit / the other engine's, `None` without one of them or a warm round."""
    ours, theirs = (_commits(measured, name) for name in (OURS, other))
    return median_ratio(ours, theirs) if ours and theirs else None


def sequence_ratio(measured: Measured) -> float | None:
    """Our commit in `sequence` order / in `log` order."""
    found = commit_ratio(measured, SEQUENCE)
    return 1 / found if found else None


def maintained_ratio(measured: Measured, other: str) -> float | None:
    """All our commits and maintenance / all commits of the other engine, after the base."""
    engines = measured["engines"]
    if not {OURS, other} <= engines.keys():
        return None
    ours = sum(engines[OURS]["commit_s"][1:]) + sum(engines[OURS]["maintain_s"][1:])
    return float(ours / sum(engines[other]["commit_s"][1:]))


def flatness(measured: Measured) -> float | None:
    """The median commit of the last rounds / of the first warm ones."""
    rounds = measured["engines"][OURS]["commit_s"][WARM:]
    if len(rounds) < 3 * _EDGE:
        return None
    return float(statistics.median(rounds[-_EDGE:]) / statistics.median(rounds[:_EDGE]))


def read_flatness(measured: Measured) -> float | None:
    """The median of the last three reads / of the first three."""
    reads = list(measured["engines"][OURS]["read_s"].values())
    return float(statistics.median(reads[-3:]) / statistics.median(reads[:3])) if len(reads) >= 9 else None


def read_ratio(measured: Measured, other: str) -> float | None:
    """Our read of the newest rows / the other engine's, of the same round: the median of rounds that end with
    maintenance."""
    after = _read_ratios(measured, other, "read_s")
    return (
        statistics.median(each for number, each in after.items() if _is_maintained(measured, number)) if after else None
    )


def mean_read_ratio(measured: Measured, other: str) -> float | None:
    """As `read_ratio`: the mean of the rounds, of which some end with maintenance."""
    after = _read_ratios(measured, other, "read_s")
    return statistics.fmean(after.values()) if after else None


def worst_read_ratio(measured: Measured, other: str) -> float | None:
    """As `read_ratio`: the worst of all reads, before and after maintenance."""
    found = [_read_ratios(measured, other, when) for when in ("read_before_s", "read_s")]
    return max((ratio for each in found for ratio in each.values()), default=None)


def _read_ratios(measured: Measured, other: str, when: str) -> dict[int, float]:
    """By round; none without one of the engines."""
    engines = measured["engines"]
    if not {OURS, other} <= engines.keys():
        return {}
    theirs = engines[other][when]
    return {int(number): seconds / theirs[number] for number, seconds in engines[OURS][when].items()}


def _is_maintained(measured: Measured, number: int) -> bool:
    """True if this round ended with maintenance."""
    return bool(number % measured["maintain_every"] == 0 or number == measured["workload"]["rounds"])


def middle_ratio(measured: Measured) -> float | None:
    """Our read as of the middle round / of the newest."""
    ours = measured["engines"][OURS]
    return float(ours["middle_read_s"] / list(ours["read_s"].values())[-1]) if ours["middle_read_s"] else None


def write_amplification(measured: Measured) -> float:
    """Bytes that our commits and maintenance wrote after the base / bytes of input."""
    ours = measured["engines"][OURS]
    written = sum(ours["commit_bytes"][1:]) + sum(ours["maintain_bytes"][1:])
    return float(written / sum(measured["input_bytes"][1:]))


def stored_ratio(measured: Measured, ours: str = OURS) -> float | None:
    """Our stored bytes at the end / plain Parquet of the living rows."""
    engines = measured["engines"]
    if not {ours, REWRITE} <= engines.keys():
        return None
    stored, plain = (list(engines[name]["stored_bytes"].values())[-1] for name in (ours, REWRITE))
    return float(stored / plain)


def _commits(measured: Measured, name: str) -> list[float]:
    figures = measured["engines"].get(name)
    return list(figures["commit_s"][WARM:]) if figures else []


def title_of(measured: Measured) -> str:
    """A scenario in words."""
    work = measured["workload"]
    hits = ", 95 % of the updates on the newest 5 %" if work["hits"] == "recent" else ""
    return f"{work['keys']:,} keys ({work['key_type']}), {work['rounds']:,} rounds of {work['events']:,} events{hits}"


def is_loaded(measured: Measured) -> bool:
    """True if other processes used the machine meanwhile."""
    return bool(measured["machine"]["others"] > _IDLE_CORES)


def provenance(measured: Measured) -> str:
    """Where and on what a scenario was measured."""
    machine = measured["machine"]
    busy = f", **loaded machine** ({machine['others']} cores used by others)" if is_loaded(measured) else ""
    return f"Commit {measured['commit']}, Spark {machine['spark']}, {machine['cores']} cores{busy}"


def scenario_table(measured: Measured) -> str:
    """Medians of one scenario, and its ratios. Maintenance and bytes written are per round."""
    lines = [
        f"{title_of(measured)}. {provenance(measured)}.",
        "",
        "| engine | base, s | commit, s | maintenance, s | read, s | written, MB | stored, MB | peak, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in measured["engines"].items():
        rounds = len(each["commit_s"]) - 1
        written = (sum(each["commit_bytes"][1:]) + sum(each["maintain_bytes"][1:])) / rounds / 1e6
        read, stored = (list(each[what].values())[-1] for what in ("read_s", "stored_bytes"))
        commit = statistics.median(each["commit_s"][WARM:] or each["commit_s"])
        lines.append(
            f"| {name} | {each['commit_s'][0]:.1f} | {commit:.2f} | {sum(each['maintain_s'][1:]) / rounds:.2f} |"
            f" {read:.2f} | {written:.1f} | {stored / 1e6:.0f} | {each['peak_memory_bytes'] / 1e6:.0f} |"
        )
    lines += ["", "| ratio | measured |", "| --- | --- |"]
    lines += [f"| {what} | {ratio:.2f} |" for what, ratio in ratios(measured).items()]
    return "\n".join([*lines, ""])


def ratios(measured: Measured) -> dict[str, float]:
    """Every ratio that this scenario gives."""
    found = {
        "commit / Iceberg merge-on-read": commit_ratio(measured, ICEBERG),
        "commit / rewrite": commit_ratio(measured, REWRITE),
        "commit / DuckDB": commit_ratio(measured, DUCK),
        "commit / the same without maintenance": commit_ratio(measured, NEVER),
        "commits with all maintenance / rewrite": maintained_ratio(measured, REWRITE),
        "commits with all maintenance / Iceberg without": maintained_ratio(measured, ICEBERG),
        "last 10 commits / first 10": flatness(measured),
        "last 3 reads / first 3": read_flatness(measured),
        "read / plain Parquet": read_ratio(measured, REWRITE),
        "read / plain Parquet, mean of the rounds": mean_read_ratio(measured, REWRITE),
        "read / plain Parquet, at its worst": worst_read_ratio(measured, REWRITE),
        "read / Iceberg merge-on-read": read_ratio(measured, ICEBERG),
        "read as of the middle / newest": middle_ratio(measured),
        "bytes written / bytes of input": write_amplification(measured),
        "stored / plain Parquet": stored_ratio(measured),
        "stored with history: 0, after GC / plain Parquet": stored_ratio(measured, NO_HISTORY),
    }
    return {what: ratio for what, ratio in found.items() if ratio is not None}
