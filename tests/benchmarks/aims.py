"""`make bench`: the scenarios behind docs/benchmarks.md, and its tables and charts made from their results.

    make bench                                  the preset `main`: about 15 minutes on an idle machine with 2 cores
    make bench ARGS='--preset long'             all scenarios: about 2 hours
    make bench ARGS='--scenario medium'         one scenario (may be given several times)
    make bench ARGS='--report'                  measures nothing: makes tables and charts from docs/benchmarks/*.json

After each scenario its results are in docs/benchmarks/NAME.json, its chart in NAME.svg, and the tables of
docs/benchmarks.md are made again. `python -m tests.benchmarks.upl --help` runs any other size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tests.benchmarks import memory, tables
from tests.benchmarks.charts import draw
from tests.benchmarks.tables import Measured
from tests.benchmarks.turns import DUCK, ICEBERG, NO_HISTORY, OURS, REWRITE, SEQUENCE
from tests.benchmarks.upl import Scenario, run
from tests.benchmarks.workload import Workload

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
RESULTS = DOCUMENT.with_suffix("")
_BEGIN, _END = "<!-- made by `make bench`: begin -->\n", "<!-- made by `make bench`: end -->\n"
_PEERS = (OURS, ICEBERG, REWRITE)

MAIN = {
    "fixed": Scenario(Workload(10_000, 1_000, 16), _PEERS, maintain_every=12, read_every=8),
    "small": Scenario(Workload(200_000, 5_000, 24), (*_PEERS, DUCK), maintain_every=12, read_every=4),
    "medium": Scenario(Workload(2_000_000, 50_000, 20), (*_PEERS, DUCK), maintain_every=5, read_every=1),
    "medium-recent": Scenario(
        Workload(2_000_000, 50_000, 20, "rising", "recent"), (OURS, ICEBERG), maintain_every=5, read_every=5
    ),
}
LONG = {
    **MAIN,
    "large": Scenario(Workload(10_000_000, 50_000, 12), _PEERS, maintain_every=6, read_every=6, memory="4g"),
    "large-recent": Scenario(
        Workload(10_000_000, 50_000, 12, "rising", "recent"),
        (OURS, ICEBERG),
        maintain_every=6,
        read_every=6,
        memory="4g",
    ),
    "sequence": Scenario(
        Workload(2_000_000, 50_000, 10, tombstones=200_000), (SEQUENCE, OURS), maintain_every=5, read_every=5
    ),
    "no-history": Scenario(Workload(200_000, 5_000, 48), (OURS, NO_HISTORY, REWRITE), maintain_every=12, read_every=12),
    "small-200": Scenario(Workload(200_000, 5_000, 200), _PEERS, maintain_every=12, read_every=20),
    "medium-200": Scenario(Workload(2_000_000, 50_000, 200), (OURS, REWRITE), maintain_every=12, read_every=50),
    "small-1000": Scenario(Workload(200_000, 5_000, 1_000), (OURS,), maintain_every=12, read_every=100),
}
COMPACTION = "compaction"  # of the preset `long`: peak memory (`memory`)


@dataclass(frozen=True)
class Aim:
    """One line of the table: a figure that is at most `aim`, measured by one scenario."""

    figure: str
    aim: float
    scenario: str
    measure: Callable[[Measured], float | None]


AIMS = (
    Aim(
        "commit / Iceberg merge-on-read: 200 k keys, 5 k events",
        0.8,
        "small",
        lambda m: tables.commit_ratio(m, ICEBERG),
    ),
    Aim("the same, 200 rounds", 0.8, "small-200", lambda m: tables.commit_ratio(m, ICEBERG)),
    Aim("the same: 2 M keys, 50 k events", 0.7, "medium", lambda m: tables.commit_ratio(m, ICEBERG)),
    Aim("the same: 10 M keys, 50 k events", 0.4, "large", lambda m: tables.commit_ratio(m, ICEBERG)),
    Aim(
        "95 % of updates on the newest 5 % of a rising key: 2 M keys, 50 k events",
        0.7,
        "medium-recent",
        lambda m: tables.commit_ratio(m, ICEBERG),
    ),
    Aim("the same: 10 M keys, 50 k events", 0.4, "large-recent", lambda m: tables.commit_ratio(m, ICEBERG)),
    Aim(
        "commit / rewrite, with all maintenance of 200 rounds: 2 M keys, 50 k events",
        0.6,
        "medium-200",
        lambda m: tables.maintained_ratio(m, REWRITE),
    ),
    Aim("the same, of 12 rounds: 10 M keys, 50 k events", 0.3, "large", lambda m: tables.maintained_ratio(m, REWRITE)),
    Aim("last / first of 200 commits, with maintenance", 1.1, "small-200", tables.flatness),
    Aim("last / first of 200 rounds: reads, with maintenance", 1.2, "small-200", tables.read_flatness),
    Aim(
        "read newest / plain Parquet, mean over rounds with maintenance: 2 M keys",
        1.3,
        "medium",
        lambda m: tables.mean_read_ratio(m, REWRITE),
    ),
    Aim("the same, at its worst", 1.5, "medium", lambda m: tables.worst_read_ratio(m, REWRITE)),
    Aim(
        "read newest / plain Parquet, after maintenance: 200 k keys",
        1.1,
        "small",
        lambda m: tables.read_ratio(m, REWRITE),
    ),
    Aim("read newest / Iceberg merge-on-read: 200 k keys", 1.0, "small", lambda m: tables.read_ratio(m, ICEBERG)),
    Aim("the same: 2 M keys", 1.0, "medium", lambda m: tables.read_ratio(m, ICEBERG)),
    Aim("read as of the middle of history / newest: 2 M keys", 1.5, "medium", tables.middle_ratio),
    Aim("bytes written / bytes of input, 1,000 rounds", 6.0, "small-1000", tables.write_amplification),
    Aim("the same, 24 rounds", 6.0, "small", tables.write_amplification),
    Aim(
        "commit in sequence order / in log order: 2 M keys, 200 k remembered tombstones, 50 k events",
        1.15,
        "sequence",
        tables.sequence_ratio,
    ),
    Aim("fixed cost: commit / Iceberg, 10 k keys, 1 k events", 0.7, "fixed", lambda m: tables.commit_ratio(m, ICEBERG)),
    Aim(
        "stored / plain Parquet of the living rows, `history: 0` after GC, 200 k keys, 48 rounds",
        1.15,
        "no-history",
        lambda m: tables.stored_ratio(m, NO_HISTORY),
    ),
    Aim(
        "peak memory of compaction, GB: 10 M keys",
        2.0,
        COMPACTION,
        lambda m: float(m["whole"]["peak_memory_bytes"]) / 1e9,
    ),
)


def aims_table(results: Mapping[str, Measured]) -> str:
    """Markdown: each aim with what was measured."""
    lines = ["| figure | aim, at most | measured | |", "| --- | --- | --- | --- |"]
    for aim in AIMS:
        measured = results.get(aim.scenario)
        found = None if measured is None else aim.measure(measured)
        shown, verdict = "not measured", f"`make bench ARGS='--scenario {aim.scenario}'`"
        if measured is not None and found is not None:
            is_busy = " (loaded machine)" if "machine" in measured and tables.is_loaded(measured) else ""
            shown = f"**{found:.2f}**{is_busy}"
            verdict = f"{'met' if found <= aim.aim else 'missed'}: [{aim.scenario}](#{aim.scenario})"
        lines.append(f"| {aim.figure} | {aim.aim:g} | {shown} | {verdict} |")
    return "\n".join([*lines, ""])


def write_report() -> None:
    """Make the charts, and the part of docs/benchmarks.md between the two marks, from the results."""
    results: dict[str, Any] = {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in (*LONG, COMPACTION)
        if (RESULTS / f"{name}.json").is_file()
    }
    parts = [aims_table(results)]
    for name, measured in results.items():
        if name == COMPACTION:
            parts.append(f"### {name}\n\n" + "\n".join(map(memory.sentence, measured.values())) + "\n")
            continue
        draw(measured, RESULTS / f"{name}.svg")
        chart = (
            f"![{tables.title_of(measured)}: commits, reads and stored bytes over the rounds](benchmarks/{name}.svg)"
        )
        parts.append(f"### {name}\n\n{tables.scenario_table(measured)}\n{chart}\n")
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    DOCUMENT.write_text(f"{before}{_BEGIN}\n" + "\n".join(parts) + f"\n{_END}{after}")


@click.command(help=__doc__)
@click.option("--preset", type=click.Choice(["main", "long"]), default="main", show_default=True)
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice([*LONG, COMPACTION]), help="Only this one.")
@click.option("--report", "is_report", is_flag=True, help="Measure nothing; make tables and charts again.")
def main(preset: str, scenarios: tuple[str, ...], is_report: bool) -> None:
    RESULTS.mkdir(exist_ok=True)
    names = () if is_report else scenarios or (tuple(MAIN) if preset == "main" else (*LONG, COMPACTION))
    for name in names:
        click.echo(f"scenario {name}")
        if name == COMPACTION:
            measured = memory.measure_two(Workload(10_000_000, 50_000, 4))
        else:
            measured = run(LONG[name], click.echo)
            click.echo("\n" + tables.scenario_table(measured))
        (RESULTS / f"{name}.json").write_text(json.dumps(measured) + "\n")
        write_report()
    if is_report:
        write_report()


if __name__ == "__main__":
    main()
