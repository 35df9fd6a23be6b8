"""The job of `persist fill`: each row that gets values from its `rest` is retracted, and inserted as it is then.

    rows, with the orders that made them ──filled──> rows that change ──> two updates each ──> stage
                                             └─ rows that are left as they are: counted, with samples

Orders and what rows have inherited stay. Only a batch is staged: it changes nothing that a reader sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from persist_core.contents.batch import BatchCounts, BatchDescription, BatchManifest, PartKind
from persist_core.contents.stats import FILLED_COLUMN, LEFT, BatchWarning
from persist_core.handles.client import PersistClient
from persist_core.keys import PART
from persist_core.location.open import OpenLocation
from persist_core.protocol.stages import check_not_outdated, outdated_first
from persist_core.schema import DIFF, ORDER, TIME
from persist_core.spark_job.spec import JobSpec
from persist_spark import progress
from persist_spark.counted import Counting, digest_sums, hashes, rows_digest, tally
from persist_spark.decode.filled import BAD, FAULT, FILLED, IS_CHANGED, WAS, filled
from persist_spark.decode.records import Fields
from persist_spark.decode.row_checks import check_texts
from persist_spark.decode.times import check_zone
from persist_spark.frame import ERR_COLUMNS, err_type, inherited_fields, order_type, passed, quoted, shown_json
from persist_spark.read.damage import named_damage
from persist_spark.read.frames import snapshot
from persist_spark.session import OUR_PLANS, listing, own_session, stage_settings, use
from persist_spark.stage import StateRows, stage
from persist_spark.upsert.arguments import Watched
from persist_spark.upsert.warnings import counted, split


def run_fill_job(spark: SparkSession, spec: JobSpec, location: OpenLocation) -> BatchManifest:
    """Stage the batch that `spec` describes; its manifest is under `persist_core.contents.batch.manifest_key`.

    Raises `OutdatedDescription` before anything is staged. Nothing is committed in any case.
    """
    client, description, config = PersistClient(location), spec.description, spec.collection
    state = client.state(description.shard)
    check_not_outdated(state, description)
    schema = state.schema
    assert schema is not None
    with (
        outdated_first(client, description),
        own_session(spark, spec) as own,
        named_damage(client.blob, client),
    ):
        check_zone(own, config.timezone)
        check_texts(own, config)
        use(own, {**stage_settings(description.input_bytes), **OUR_PLANS, **listing(client.blob)})
        progress.enter("plan")
        more = [T.StructField(ORDER, order_type(schema))] if schema.order is not None else []
        more += inherited_fields(schema)
        time = description.lower - 1
        rows = snapshot(own, location, description.shard, time, schema=schema.version, more=more)
        names = [field.name for field in more]
        found, fields = filled(config, rows, names)
        plan = _Planned(description, found, fields, names)
        return stage(client.blob, description, schema, spec.attempt, lambda _: plan, check=lambda _: None)


@dataclass(frozen=True)
class _Counts:
    """The counts of the action. `columns`: how many rows got a value, by column."""

    rows: int
    rows_digest: str
    columns: Mapping[str, int]
    warnings: tuple[BatchWarning, ...]
    operators: Iterable[str]

    is_discarded = False

    @property
    def counts(self) -> BatchCounts:
        return BatchCounts(insertions=self.rows, retractions=self.rows)

    @property
    def state_rows(self) -> dict[str, StateRows]:
        """Operator state stays as it is."""
        return dict.fromkeys(self.operators, StateRows(written=0, held=1))

    @property
    def stats(self) -> _Counts:
        return self

    def to_json(self) -> dict[str, int]:
        columns = {f"{FILLED_COLUMN}{name}": count for name, count in self.columns.items() if count}
        return {"inserts": 0, "updates": self.rows, "deletes": 0, "output_count": 2 * self.rows, **columns}


class _Planned:
    """Two updates of each row that changes. `rows`, `fields`: as `filled` gives them; `more`: columns of rows that only
    insertions have."""

    def __init__(self, description: BatchDescription, rows: DataFrame, fields: Fields, more: list[str]) -> None:
        self._operators, self._seen = description.operators, (Counting("read"), Counting("written"))
        names = {field.raw: field.column.name for field in fields.values}
        self._columns = {f"{FILLED}{raw}": name for raw, name in names.items() if f"{FILLED}{raw}" in rows.columns}
        bad = {f"{BAD}{raw}": name for raw, name in names.items() if f"{BAD}{raw}" in rows.columns}
        self._watched = (Watched(LEFT), *(Watched(f"column {name}") for name in bad.values()))
        told = [FAULT, *(f"CASE WHEN {IS_CHANGED} THEN {name} END" for name in bad)]
        key = shown_json({f.column.name: f"{WAS}{f.raw}" for f in fields.keys})
        counts = tally({name: f"{IS_CHANGED} AND {name}" for name in self._columns})
        for number, text in enumerate(told):
            counts |= counted(number, text, key)
        cells = [field.raw for field in fields.all]
        before = [*(f"{WAS}{raw} AS {raw}" for raw in cells), "-1L AS diff", f"'{PartKind.RETRACTIONS}' AS part"]
        after = [*cells, "1L AS diff", f"'{PartKind.INSERTIONS}' AS part"]
        pair = ", ".join(f"struct({', '.join(side)})" for side in (before, after))
        (time,) = passed(description.lower)
        flat = (
            self._seen[0]
            .of(rows, counts)
            .where(IS_CHANGED)
            .selectExpr(*more, f"explode(array({pair})) AS update")
            .selectExpr(*more, "update.*", f"{time} AS time")
        )
        digests = {"rows": "count(CASE WHEN diff > 0 THEN 1 END)"} | digest_sums()
        hashed = self._seen[1].of(flat.selectExpr("*", *hashes([*cells, "time", "diff"])), digests)
        self.updates = hashed.selectExpr(
            *[f"{field.raw} AS {quoted(field.column.name)}" for field in fields.all],
            *[f"time AS {TIME}", f"diff AS {DIFF}"],
            *[f"CAST(NULL AS {err_type(name).simpleString()}) AS {name}" for name in ERR_COLUMNS],
            *[f"IF(diff > 0, {name}, NULL) AS {name}" for name in more],
            f"part AS {PART}",
        )

    @property
    def columns(self) -> Sequence[str]:
        return self.updates.columns

    def outcome(self, ran: DataFrame) -> _Counts:
        """The counts of the action, after it."""
        read, written = (each.found(ran) for each in self._seen)
        counts, warnings = split(read, self._watched)
        rows = int(written["rows"] or 0)
        sums = {name: int(value or 0) for name, value in written.items()}
        columns = {name: int(counts[each] or 0) for each, name in self._columns.items()}
        return _Counts(rows, rows_digest(sums, 2 * rows), columns, warnings, self._operators)
