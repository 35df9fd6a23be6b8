"""The common start of many tests: the schemas of small tables."""

from __future__ import annotations

from persist_core.schema import CollectionSchema, Column

_ID = Column("id", "bigint", nullable=False)
KEYS = CollectionSchema(key=(_ID,))
"""Rows that are an id and nothing else."""
SCHEMA = CollectionSchema(key=(_ID,), values=(Column("name", "string"),))
"""Rows with an id and a name."""
