"""A tiny collection: a DAG folder with `collections/fruit.yaml`, a dated JSON feed, and the expected table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.handles.client import PersistClient

DAY = timedelta(days=1)
DAY_MS = 24 * 3_600_000
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp()) * 1000
NAME = "fruit"

_COLLECTION = """
source:
  path: {feed}/date={{date:%Y-%m-%d}}/*.json
  format: json
key: id
columns: {{id: bigint, name: string}}
time: path
delete: {{null_value: true}}
start_date: 2026-01-01
"""
_DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.factory import build_dags
globals().update(build_dags(Path(__file__).parent / "collections"{options}))
"""

# Per day, in the order of its file: (id, name), None deletes. A key changes within a day, comes back, is deleted twice.
HISTORY: tuple[tuple[tuple[int, str | None], ...], ...] = (
    ((1, "apple"), (2, "pear"), (3, "fig"), (1, "red apple")),
    ((2, None), (4, "kiwi")),
    ((2, "green pear"), (3, "fig"), (9, None)),
    ((1, None), (4, "gold kiwi"), (5, "plum")),
)


def end_of(day: int) -> datetime:
    """The end of day `day` (0 is the first)."""
    return START + (day + 1) * DAY


def end_ms(day: int) -> int:
    """The end of that day as a time of the shard."""
    return START_MS + (day + 1) * DAY_MS


def expected(days: int) -> dict[int, str]:
    """The table after the first `days` days."""
    table: dict[int, str] = {}
    for changes in HISTORY[:days]:
        for key, name in changes:
            if name is None:
                table.pop(key, None)
            else:
                table[key] = name
    return table


def contents(client: PersistClient, days: int) -> dict[int, str]:
    """The rows that the shard holds just before the end of day `days`; a key that is there twice fails."""
    rows = client.open_reader(NAME).snapshot(as_of=START_MS + days * DAY_MS - 1).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), rows
    return {row["id"]: row["name"] for row in rows}


@dataclass(frozen=True)
class Fruit:
    """The folder. `config()` is the loaded collection."""

    dags: Path
    feed: Path

    @classmethod
    def create(cls, folder: Path) -> Fruit:
        """Write the DAG file and the collection; the feed stays empty."""
        made = cls(folder / "dags", folder / "feed")
        (made.dags / "collections").mkdir(parents=True)
        made.feed.mkdir()
        made.write_collection(NAME, _COLLECTION.format(feed=made.feed))
        made.write_dag_file()
        return made

    def write_dag_file(self, options: str = "", head: str = "") -> None:
        """The DAG file, with further arguments for `build_dags` and lines before it."""
        (self.dags / "fruit_dag.py").write_text(head + _DAG_FILE.format(options=options))

    def write_collection(self, name: str, text: str) -> Path:
        """`collections/<name>.yaml`."""
        path = self.dags / "collections" / f"{name}.yaml"
        path.write_text(text)
        return path

    def write_days(self, days: range) -> None:
        """Let these days of `HISTORY` arrive."""
        for day in days:
            folder = self.feed / f"date={START + day * DAY:%Y-%m-%d}"
            folder.mkdir()
            lines = [json.dumps({"id": key, "name": name}) for key, name in HISTORY[day]]
            (folder / "part.json").write_text("\n".join(lines) + "\n")

    def config(self) -> CollectionConfig:
        """The collection, loaded from its file."""
        return load_collection(self.dags / "collections" / f"{NAME}.yaml")


def check_history(client: PersistClient, days: int = len(HISTORY)) -> dict[str, Any]:
    """Assert the contents at the end of each of the first `days` days; the shard's newest facts, for messages."""
    for day in range(1, days + 1):
        assert contents(client, day) == expected(day), f"after {day} days"
    state = client.state(NAME)
    return {"upper": state.upper.time, "commits": len(state.commits)}
