"""The job of `persist fill`: each row that gets values from its `rest` is retracted, and inserted as it is then.

    rows, with the orders that made them ──filled──> rows that change ──> two updates each ──> stage
                                             └─ rows that are left as they are: counted, with samples

Orders and what rows have inherited stay. Only a batch is staged: it changes nothing that a reader sees.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from persist_core.contents.batch import BatchCounts, BatchDescription, BatchManifest, PartKind
from persist_core.contents.stats import FILLED_COLUMN, LEFT
from persist_core.handles.client import PersistClient
from persist_core.keys import PART
from persist_core.location.open import OpenLocation
from persist_core.protocol.stages import check_not_outdated, outdated_first
from persist_core.schema import DIFF, TIME
from persist_core.spark_job.spec import JobSpec
from persist_spark import progress
from persist_spark.counted import Counting, digest_sums, hashes, rows_digest, tally
from persist_spark.decode.filled import BAD, FAULT, FILLED, IS_CHANGED, WAS, filled
from persist_spark.decode.records import Fields
from persist_spark.decode.row_checks import check_texts
from persist_spark.decode.times import check_zone
from persist_spark.frame import beside_fields, no_err, passed, quoted, shown_json
from persist_spark.read.damage import named_damage
from persist_spark.read.frames import snapshot
from persist_spark.session import OUR_PLANS, listing, own_session, stage_settings, use
from persist_spark.stage import Planned, StateRows, Written, stage
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
        more = beside_fields(schema)
        time = description.lower - 1
        rows = snapshot(own, location, description.shard, time, schema=schema.version, more=more)
        names = [field.name for field in more]
        found, fields = filled(config, rows, names)
        plan = _planned(description, found, fields, names)
        return stage(client.blob, description, schema, spec.attempt, lambda _: plan, check=lambda _: None)


def _planned(description: BatchDescription, rows: DataFrame, fields: Fields, more: list[str]) -> Planned[Written]:
    """Two updates of each row that changes. `rows`, `fields`: as `filled` gives them; `more`: columns of rows that only
    insertions have."""
    reading, writing = Counting("read"), Counting("written")
    names = {field.raw: field.column.name for field in fields.values}
    columns = {f"{FILLED}{raw}": name for raw, name in names.items() if f"{FILLED}{raw}" in rows.columns}
    bad = {f"{BAD}{raw}": name for raw, name in names.items() if f"{BAD}{raw}" in rows.columns}
    watched = (Watched(LEFT), *(Watched(f"column {name}") for name in bad.values()))
    told = [FAULT, *(f"CASE WHEN {IS_CHANGED} THEN {name} END" for name in bad)]
    key = shown_json({f.column.name: f"{WAS}{f.raw}" for f in fields.keys})
    counts = tally({name: f"{IS_CHANGED} AND {name}" for name in columns})
    for number, text in enumerate(told):
        counts |= counted(number, text, key)
    cells = [field.raw for field in fields.all]
    before = [*(f"{WAS}{raw} AS {raw}" for raw in cells), "-1L AS diff", f"'{PartKind.RETRACTIONS}' AS part"]
    after = [*cells, "1L AS diff", f"'{PartKind.INSERTIONS}' AS part"]
    pair = ", ".join(f"struct({', '.join(side)})" for side in (before, after))
    (time,) = passed(description.lower)
    changed = reading.of(rows, counts).where(IS_CHANGED).selectExpr(*more, f"explode(array({pair})) AS update")
    flat = changed.selectExpr(*more, "update.*", f"{time} AS time")
    digests = {"rows": "count(CASE WHEN diff > 0 THEN 1 END)"} | digest_sums()
    hashed = writing.of(flat.selectExpr("*", *hashes([*cells, "time", "diff"])), digests)
    updates = hashed.selectExpr(
        *[f"{field.raw} AS {quoted(field.column.name)}" for field in fields.all],
        *[f"time AS {TIME}", f"diff AS {DIFF}"],
        *no_err(),
        *[f"IF(diff > 0, {name}, NULL) AS {name}" for name in more],
        f"part AS {PART}",
    )

    def outcome(ran: DataFrame) -> Written:
        read, warnings = split(reading.found(ran), watched)
        written = {name: int(value or 0) for name, value in writing.found(ran).items()}
        count = written["rows"]
        got = {f"{FILLED_COLUMN}{name}": read[each] for each, name in columns.items() if read[each]}
        return Written(
            counts=BatchCounts(insertions=count, retractions=count),
            state_rows=dict.fromkeys(description.operators, StateRows(written=0, held=1)),  # it stays as it is
            rows_digest=rows_digest(written, 2 * count),
            report={"inserts": 0, "updates": count, "deletes": 0, "output_count": 2 * count, **got},
            warnings=warnings,
        )

    return Planned(updates, updates.columns, outcome)
