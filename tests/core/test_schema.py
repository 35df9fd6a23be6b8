"""Schemas: what a column may be, and which schemas fit each other."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import InvalidName, SchemaMismatch
from persist_core.schema import CollectionSchema, Column, arrow_type, order_type, show_order
from persist_core.sealed import from_plain


def check_compatible(current: CollectionSchema, wanted: CollectionSchema) -> None:
    SchemaVersions().with_batch_of(SchemaVersions().placed(current), seqno=1, lower=0).placed(wanted)


KEY = (Column("id", "bigint", nullable=False),)


@pytest.mark.parametrize(
    "name", ["", "a\x00b", "a\nb", "x" * 256, "_persist_time", "_PERSIST_x", "_per\u017fist_x", ".x"]
)
def test_bad_column_names(name: str) -> None:
    with pytest.raises(InvalidName):
        Column(name, "int")


@pytest.mark.parametrize("name", ["a b", "select", "x; drop table y", "ünï", "__op", "a.b", "`q`", '"'])
def test_hostile_but_legal_column_names(name: str) -> None:
    assert CollectionSchema(KEY, (Column(name, "string"),)).arrow().names == ["id", name]


@pytest.mark.parametrize(
    "type_name", ["", "varchar", "decimal", "decimal(0,0)", "decimal(39,2)", "decimal(5,6)", "INT"]
)
def test_bad_types(type_name: str) -> None:
    with pytest.raises(InvalidName, match="unknown column type"):
        Column("a", type_name)


def test_types() -> None:
    assert arrow_type("decimal(38,10)") == pa.decimal128(38, 10)
    assert arrow_type("timestamp") == pa.timestamp("us", tz="UTC")


def test_key_rules() -> None:
    with pytest.raises(InvalidName, match="cannot be keys"):
        CollectionSchema((Column("f", "double", nullable=False),))
    with pytest.raises(InvalidName, match="cannot be nullable"):
        CollectionSchema((Column("f", "int"),))
    with pytest.raises(InvalidName, match="named twice"):
        CollectionSchema(KEY, (Column("ID", "string"),))


def test_json_round_trip() -> None:
    schema = CollectionSchema(KEY, (Column("d", "decimal(10,2)"), Column("j", "json", nullable=False)))
    assert from_plain(CollectionSchema, schema.to_json(), what="it") == schema


ORDERED = CollectionSchema(
    KEY,
    (Column("a", "int"),),
    order=(Column("lsn", "bigint"), Column("at", "timestamp")),
    position=(Column("partition", "int"), Column("offset", "bigint")),
)


def test_an_order_is_part_of_the_schema() -> None:
    by_position = CollectionSchema(KEY, order=(), position=ORDERED.position)
    for schema in (ORDERED, by_position):
        assert from_plain(CollectionSchema, schema.to_json(), what="it") == schema
        check_compatible(schema, schema)
    assert show_order(ORDERED) == "sequence (lsn: bigint, at: timestamp, position)"
    assert [show_order(by_position), show_order(CollectionSchema(KEY))] == ["sequence (position)", "log"]
    assert [field.name for field in order_type(ORDERED)] == ["by0", "by1", "partition", "offset"]
    with pytest.raises(InvalidName, match="without a key has no order"):
        CollectionSchema((), (Column("a", "int"),), order=())


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (replace(ORDERED, order=None), "asks for log order"),
        (replace(ORDERED, order=()), r"asks for sequence \(position\) order"),
        (replace(ORDERED, order=(Column("lsn", "string"),)), r"asks for sequence \(lsn: string, position\) order"),
    ],
)
def test_another_order_is_refused_with_the_remedy(wanted: CollectionSchema, asked: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"is in sequence .*{asked}.*persist rebuild"):
        check_compatible(ORDERED, wanted)
    with pytest.raises(SchemaMismatch, match="asks for sequence"):
        check_compatible(wanted, ORDERED)


def test_a_mismatch_shows_both_sides() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        check_compatible(CollectionSchema(KEY, (Column("a", "int"),)), CollectionSchema(KEY, (Column("a", "string"),)))
    assert "a: int" in str(caught.value)
    assert "!= a: string" in str(caught.value)
