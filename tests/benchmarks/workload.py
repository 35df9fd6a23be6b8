"""UPL-small: a base table and rounds of change events, as Parquet files, the same for the same arguments.

    base: `keys` rows of 10 columns, about 150 bytes each, scrambled bigint or 16-byte string keys
    round: `events` rows: 60 % updates, 30 % inserts, 10 % deletes; a tenth of them repeat a key of the same round

An event has the table's columns, `op` (`u` or `d`, whose value columns are null) and its place in the file as order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import duckdb
import numpy as np

KeyType = Literal["bigint", "string"]
_SCRAMBLE = 0x5851F42D4C957F2D  # odd, so that multiplying by it modulo 2**63 loses nothing (Knuth's MMIX constant)
VALUE_COLUMNS = ("name", "mail", "city", "age", "visits", "score", "balance", "born", "seen_at")


@dataclass(frozen=True)
class Workload:
    """The parameters of a run. `seed` selects another run of the same kind."""

    keys: int
    events: int
    rounds: int
    key_type: KeyType = "bigint"
    seed: int = 7

    def key_sql(self, number: str) -> str:
        """SQL for the key of the `number`-th row ever made."""
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
            f" FROM range({workload.keys}) r(n)) TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
        )


def write_round(workload: Workload, number: int, path: Path) -> None:
    """The events of round `number` (from 1): see the module's docstring."""
    rng = np.random.default_rng([workload.seed, number])
    inserted = int(workload.events * 0.3)
    first_new = workload.keys + (number - 1) * inserted
    once = int(workload.events * 0.9)
    ops = rng.choice(np.array(["u", "i", "d"]), size=once, p=[0.6, 0.3, 0.1])
    rows = rng.integers(0, first_new, size=once)
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
