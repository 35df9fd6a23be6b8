"""UPL-small: a base table and rounds of change events, as Parquet files, the same for the same arguments.

    base: `keys` rows of 10 columns, about 150 bytes each; keys: scrambled bigints, 16-byte strings, or rising bigints
    round: `events` rows: 60 % updates, 30 % inserts, 10 % deletes; a tenth of them repeat a key of the same round

An event has the table's columns, `op` (`u` or `d`, whose value columns are null) and its place in the file as order.
Updates and deletes hit all keys alike (`uniform`), or 95 % of them hit the newest 5 % of the keys (`recent`).

The expected contents are the newest event of each key (`newest_events`), as DuckDB finds them in the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb
import numpy as np

KeyType = Literal["bigint", "string", "rising"]
Hits = Literal["uniform", "recent"]
_SCRAMBLE = 0x5851F42D4C957F2D  # odd, so that multiplying by it modulo 2**63 loses nothing (Knuth's MMIX constant)
_RECENT_SHARE, _RECENT_HITS = 0.05, 0.95
_NEVER_MADE = 10**12  # from here on no row of a run has the number
VALUE_COLUMNS = ("name", "mail", "city", "age", "visits", "score", "balance", "born", "seen_at")


@dataclass(frozen=True)
class Workload:
    """The parameters of a run. `seed` selects another run of the same kind. The base ends with so many `tombstones`, of
    keys that it does not have."""

    keys: int
    events: int
    rounds: int
    key_type: KeyType = "bigint"
    hits: Hits = "uniform"
    seed: int = 7
    tombstones: int = 0

    @property
    def key_column_type(self) -> str:
        """The key's type as a collection declares it."""
        return "string" if self.key_type == "string" else "bigint"

    def key_sql(self, number: str) -> str:
        """SQL for the key of the `number`-th row ever made."""
        if self.key_type == "rising":
            return f"({number})::BIGINT"
        scrambled = f"(({number})::HUGEINT * {_SCRAMBLE} % 9223372036854775808)"
        return f"{scrambled}::BIGINT" if self.key_type == "bigint" else f"substr(md5({scrambled}::VARCHAR), 1, 16)"


def _values_sql(version: str) -> str:
    """SQL for the value columns of row `n` in its `version`: text that hardly compresses, numbers, dates."""
    text = f"md5(n::VARCHAR || '/' || {version})"
    number = f"(hash(n, {version}) % 1000000007)::BIGINT"
    return f"""
        {text} AS name,
        {text} || '@example.com' AS mail,
        'city-' || ({number} % 500)::VARCHAR AS city,
        ({number} % 90)::INTEGER AS age,
        {number} AS visits,
        {number} / 7.0::DOUBLE AS score,
        ({number} / 100.0)::DECIMAL(12, 2) AS balance,
        DATE '1950-01-01' + ({number} % 20000)::INTEGER AS born,
        (TIMESTAMP '2020-01-01' + to_seconds({number} % 100000000))::TIMESTAMPTZ AS seen_at
    """


def write_base(workload: Workload, path: Path) -> None:
    """The base table: rows 0 to `keys` - 1, version 0."""
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(
            f"COPY (SELECT {workload.key_sql('n')} AS id, {_values_sql('0')}, 'u' AS op"
            f" FROM range({workload.keys}) r(n) UNION ALL BY NAME SELECT {workload.key_sql('n')} AS id, 'd' AS op"
            f" FROM range({_NEVER_MADE}, {_NEVER_MADE + workload.tombstones}) r(n))"
            f" TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
        )


def write_round(workload: Workload, number: int, path: Path) -> None:
    """The events of round `number` (from 1): see the module's docstring."""
    rng = np.random.default_rng([workload.seed, number])
    inserted = int(workload.events * 0.3)
    first_new = workload.keys + (number - 1) * inserted
    once = int(workload.events * 0.9)
    ops = rng.choice(np.array(["u", "i", "d"]), size=once, p=[0.6, 0.3, 0.1])
    rows = rng.integers(0, first_new, size=once)
    if workload.hits == "recent":
        recent = rng.random(once) < _RECENT_HITS
        rows[recent] = rng.integers(int(first_new * (1 - _RECENT_SHARE)), first_new, size=once)[recent]
    fresh = ops == "i"
    rows[fresh] = first_new + np.arange(fresh.sum())
    again = rng.integers(0, once, size=workload.events - once)
    n = np.concatenate([rows, rows[again]])
    op = np.where(np.concatenate([ops, np.full(len(again), "u")]) == "d", "d", "u")
    place = np.arange(workload.events)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("picked", {"n": n, "op": op, "place": place})
        columns = ", ".join(f"CASE WHEN op = 'u' THEN v.{name} END AS {name}" for name in VALUE_COLUMNS)
        db.execute(
            f"COPY (SELECT id, {columns}, op FROM (SELECT {workload.key_sql('n')} AS id,"
            f" {_values_sql(f'({number}::BIGINT * 100000000 + place)')}, op, place FROM picked) v ORDER BY place)"
            f" TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
        )


def write_feed(workload: Workload, folder: Path) -> list[Path]:
    """The base, then the rounds, one file each."""
    files = [folder / f"{number:05}.parquet" for number in range(workload.rounds + 1)]
    write_base(workload, files[0])
    for number, path in enumerate(files[1:], 1):
        write_round(workload, number, path)
    return files


def newest_events(feed: list[Path]) -> str:
    """SQL for the living rows after these files."""
    files = ", ".join(f"'{path}'" for path in feed)
    return f"""
        WITH events AS (
            SELECT * EXCLUDE (filename, file_row_number), (filename, file_row_number) AS place
            FROM read_parquet([{files}], filename = true, file_row_number = true)
        ), newest AS (SELECT id, max(place) AS place FROM events GROUP BY id)
        SELECT e.* EXCLUDE (op, place) FROM events e SEMI JOIN newest n ON e.id = n.id AND e.place = n.place
        WHERE e.op = 'u'
    """


def fingerprint(rows: str, memory: str = "3GB") -> tuple[int, int]:
    """The number of rows of a query, and a sum of their hashes, which does not depend on their order."""
    columns = ", ".join(("id", *VALUE_COLUMNS))
    with duckdb.connect(config={"memory_limit": memory}) as db:
        db.execute("SET TimeZone = 'UTC'")
        found = db.execute(f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM ({rows})").fetchone()
    assert found is not None
    return int(found[0]), int(found[1] or 0)
