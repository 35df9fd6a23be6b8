"""Iceberg merge-on-read, with the settings that were fastest here: a local Hadoop catalog, format version 3.

`MERGE INTO` writes new rows and one deletion vector for each data file that lost rows; no changelog. Version 3 and no
distribution before the write were the fastest of eight combinations tried (versions 2 and 3, distributions `none` and
`hash`, sort-merge or shuffled hash join): deletion vectors took 0.85 of the time of position deletes, all else was
within the noise. `MERGE` reads only `id` and the position of old rows, because each value comes from the event.

The runtime is made for one Spark release (requirements/bench.in).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.benchmarks.engines import Setting, schema_of, winners
from tests.benchmarks.sessions import consume, plain_session
from tests.env.spark_jars import JARS

_TABLE = "ice.upl"
_PROPERTIES = {
    "format-version": "3",
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
}


class Iceberg:
    """One table, never compacted."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self.stored = setting, setting.stored()
        jars = sorted((JARS / "iceberg").glob("*.jar"))
        if not jars:
            raise AssertionError(f"no jar in {JARS / 'iceberg'}: `python -m tests.env.spark_jars iceberg` fetches it")
        self._spark = plain_session(
            setting.cores,
            setting.memory,
            {
                "spark.driver.extraClassPath": ":".join(map(str, jars)),
                "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.ice.type": "hadoop",
                "spark.sql.catalog.ice.warehouse": str(self.stored),
            },
        )
        self._columns = [column.name for column in schema_of(setting.workload).columns]

    def commit(self, number: int, events: Path) -> None:
        found = winners(self._spark, self._setting.workload, events)
        if number == 0:
            table = found.drop("op").writeTo(_TABLE).using("iceberg")
            for name, value in _PROPERTIES.items():
                table = table.tableProperty(name, value)
            table.create()
        else:
            found.createOrReplaceTempView("winners")
            self._spark.sql(
                f"MERGE INTO {_TABLE} t USING winners w ON t.id = w.id"
                " WHEN MATCHED AND w.op = 'd' THEN DELETE"
                f" WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = w.{name}' for name in self._columns)}"
                f" WHEN NOT MATCHED AND w.op = 'u' THEN INSERT ({', '.join(self._columns)})"
                f" VALUES ({', '.join(f'w.{name}' for name in self._columns)})"
            )

    def read(self) -> None:
        consume(self._spark.table(_TABLE))

    def read_as_of(self, number: int) -> None:
        consume(self._spark.sql(f"SELECT * FROM {_TABLE} VERSION AS OF {self._snapshots()[number]}"))

    @cache  # noqa: B019 - one engine a process; looked up once, so that the best of several reads does not pay for it
    def _snapshots(self) -> list[int]:
        found = self._spark.sql(f"SELECT snapshot_id FROM {_TABLE}.snapshots ORDER BY committed_at").collect()
        return [row[0] for row in found]

    def export(self, folder: Path) -> None:
        self._spark.table(_TABLE).write.parquet(str(folder))
