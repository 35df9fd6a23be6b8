"""Late records of far dates and times are printed exactly, and so are their orders."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from persist_core.checkpoint.publish import publish_missing
from persist_core.config.collection import FILE_POSITION
from persist_core.contents.batch import LATE_OPERATOR, BatchDescription
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.contents.parts import PARQUET, errs_schema, late_schema, updates_schema
from persist_core.contents.schema_versions import SchemaVersions
from persist_core.handles.client import PersistClient
from persist_core.inspection.late import late_records
from persist_core.keys import part_key
from persist_core.location.mem import MemBlob, MemConsensus
from persist_core.location.open import OpenLocation
from persist_core.schema import ACTED, BEATEN_BY, INHERITED, OP, ORDER, TIME, CollectionSchema, Column
from persist_core.shard.state import Committed
from tests.virtual import ManualClock, SeededIds

SCHEMA = SchemaVersions().placed(
    CollectionSchema(
        key=(Column("born", "date", nullable=False), Column("at", "timestamp", nullable=False)),
        values=(Column("note", "string", inherits=True),),
        order=(Column("seen", "timestamp"),),
        position=FILE_POSITION,
    )
)
FAR = 2**63 - 1
KEYS = [(0, 0), (-719_529, FAR), (2**31 - 1, -62_167_219_200_000_001)]


def late_table() -> pa.Table:
    lost, won = ({"by0": seen, "file": "f", "block": 0, "row": 0} for seen in (FAR - 1, FAR))
    gave = [{"id": SCHEMA.values[0].id, "known": True, "ord": lost}]
    rows = [
        {"born": born, "at": at, OP: "u", TIME: 1, ORDER: lost, BEATEN_BY: won, ACTED: acted, INHERITED: gave}
        for acted, (born, at) in enumerate(KEYS)
    ]
    return pa.Table.from_pylist(rows, late_schema(SCHEMA))


def test_far_keys_and_orders_are_printed() -> None:
    clock = ManualClock(1_700_000_000_000)
    client = PersistClient(OpenLocation(MemBlob(), MemConsensus()), clock, SeededIds(1, clock))
    client.ensure_shard("s")
    ids = [client.ids.uuid7() for _ in range(3)]
    description = BatchDescription(
        shard="s", lower=0, upper=1, token=ids[0], checkpoint_id=ids[1], epoch=1, parent_id=None, writer="test"
    )
    data, key = PARQUET.encode(late_table()), part_key("s", ids[2], LATE_OPERATOR, 0)
    client.blob.set(key, data)
    artifact = StateArtifact(0, key, len(data), hashlib.sha256(data).hexdigest(), schema_version=1)
    tables = (columns(SCHEMA).empty_table() for columns in (updates_schema, errs_schema))
    writer, operators = client.open_writer("s"), {LATE_OPERATOR: OperatorState(False, (artifact,))}
    staged = writer.stage(description, SCHEMA, ids[2], *tables, operators=operators)
    assert isinstance(writer.compare_and_append(client.staged_manifest(staged), staged), Committed)
    publish_missing(client, client.state("s"))
    found = late_records(client, "s")
    assert [each.key for each in found] == [
        {"born": "+5881580-07-11", "at": "-0001-12-31T23:59:59.999999Z"},
        {"born": "-0001-12-31", "at": "+294247-01-10T04:00:54.775807Z"},
        {"born": "1970-01-01", "at": "1970-01-01T00:00:00.000000Z"},
    ]
    assert {(each.order["seen"], each.beaten_by["seen"], each.gave) for each in found} == {
        ("+294247-01-10T04:00:54.775806Z", "+294247-01-10T04:00:54.775807Z", ("note",))
    }
