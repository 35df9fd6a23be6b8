"""Charts of one scenario as SVG: commits, reads and stored bytes over its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tests.benchmarks.tables import title_of
from tests.benchmarks.turns import DUCK, ICEBERG, NEVER, NO_HISTORY, OURS, REWRITE, SEQUENCE

_COLORS = {
    SEQUENCE: "#e69f00",
    NO_HISTORY: "#cc79a7",
    OURS: "#0072b2",
    NEVER: "#56b4e9",
    ICEBERG: "#d55e00",
    REWRITE: "#777777",
    DUCK: "#009e73",
}  # Okabe-Ito
_SMOOTH = 100  # from so many rounds on, a line shows the median of each 5 neighbors


def draw(measured: Mapping[str, Any], path: Path) -> None:
    """Write the chart of one scenario. The same figures give the same bytes."""
    mpl.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 9})
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    commits, reads, stored = figure.subplots(1, 3)
    for name, each in measured["engines"].items():
        _line(commits, name, _smoothed(dict(enumerate(each["commit_s"][1:], 1))))
        _line(reads, name, {int(at): seconds for at, seconds in each["read_s"].items()})
        _line(stored, name, {int(at): size / 1e6 for at, size in each["stored_bytes"].items()})
        done = {at: seconds for at, seconds in enumerate(each["maintain_s"]) if at and seconds}
        if done:
            label = f"{name}: maintenance"
            commits.plot(list(done), list(done.values()), ".", color=_COLORS[name], alpha=0.5, label=label)
    for axes, title, unit in (
        (commits, "Commit", "s"),
        (reads, "Read (rewrite: plain Parquet)", "s"),
        (stored, "Stored", "MB"),
    ):
        axes.set(title=title, xlabel="round", ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    lines, labels = commits.get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(title_of(measured))
    figure.savefig(path, format="svg", metadata={"Date": None})


def _line(axes: Axes, name: str, values: Mapping[int, float]) -> None:
    marker = "" if len(values) > 30 else "o"
    axes.plot(list(values), list(values.values()), color=_COLORS[name], marker=marker, markersize=3, label=name)


def _smoothed(values: Mapping[int, float]) -> Mapping[int, float]:
    if len(values) < _SMOOTH:
        return values
    rounds = list(values)
    groups = [rounds[at : at + 5] for at in range(0, len(rounds), 5)]
    return {group[len(group) // 2]: sorted(values[at] for at in group)[len(group) // 2] for group in groups}
