"""The schemas that a shard has had: which column is which, whatever its name was when a file was written.

    version 1, from seqno 0    id 1: bigint    name 2: string    age 3: int
    version 2, from seqno 7    id 1: bigint    title 2: string                 age 4: bigint    next id: 5

Here `title` is `name`, renamed; and the second `age` is another column than the first, which is gone. A definition in a
file knows names only: `SchemaVersions.placed` is the one place where a name finds its id. Files, manifests and operator
state name the version in which they were written, and a read finds a column by its id.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from persist_core.errors import CorruptArtifact, SchemaMismatch
from persist_core.schema import CollectionSchema, check_compatible


@dataclass(frozen=True)
class SchemaVersion:
    """One of a shard's schemas, whose columns have ids. It holds from version `seqno` of the state on."""

    schema: CollectionSchema
    seqno: int


@dataclass(frozen=True)
class SchemaVersions:
    """All schemas of a shard, oldest first; the version of the first is 1. No column ever gets an id below `next_id`
    again."""

    versions: tuple[SchemaVersion, ...] = ()
    next_id: int = 1

    @property
    def newest(self) -> CollectionSchema | None:
        """The schema that readers see; `None` if nothing was committed yet."""
        return self.versions[-1].schema if self.versions else None

    def of(self, version: int, *, what: str) -> CollectionSchema:
        """The schema in which `what` was written. Raises `CorruptArtifact` if the shard never had this version."""
        if not 1 <= version <= len(self.versions):
            raise CorruptArtifact(
                f"{what} names schema version {version}; the shard has versions 1 to {len(self.versions)}. Run `persist"
                " fsck`"
            )
        return self.versions[version - 1].schema

    def placed(self, wanted: CollectionSchema) -> CollectionSchema:
        """`wanted` as a schema of the shard: the newest if they are equal, else the next, with ids for new columns.

        Raises `SchemaMismatch` if the shard may not go from its newest schema to `wanted`.
        """
        newest = self.newest
        if newest is not None:
            check_compatible(newest, wanted)
            # What is stored may still say of values that they were inherited.
            inheriting = {column.name for column in newest.values if column.inherits}
            values = tuple(replace(c, inherits=c.inherits or c.name in inheriting) for c in wanted.values)
            wanted = replace(wanted, values=values)
            if newest == wanted:
                return newest
        known = {column.name: column.id for column in newest.columns} if newest else {}
        added = itertools.count(self.next_id)
        key, values = (
            tuple(replace(column, id=known.get(column.name) or next(added)) for column in columns)
            for columns in (wanted.key, wanted.values)
        )
        return replace(wanted, key=key, values=values, version=len(self.versions) + 1)

    def with_batch_of(self, schema: CollectionSchema, *, seqno: int) -> SchemaVersions:
        """The schemas after a batch of `schema` was appended by version `seqno` of the state.

        Raises `SchemaMismatch` if its ids are not those that `placed` gives, or it does not fit the newest schema.
        """
        placed = self.placed(schema)
        if placed.to_json() != schema.to_json():
            raise SchemaMismatch(
                f"the batch was written in schema version {schema.version}, and the shard is at {len(self.versions)};"
                " its columns have other ids. Mint a description and write the batch from it"
            )
        return self.with_version(placed, seqno=seqno) if placed.version > len(self.versions) else self

    def with_version(self, schema: CollectionSchema, *, seqno: int) -> SchemaVersions:
        """These and one more, whose columns have ids."""
        next_id = max([self.next_id, *(column.id + 1 for column in schema.columns if column.id is not None)])
        return SchemaVersions((*self.versions, SchemaVersion(schema, seqno)), next_id)

    def in_fork(self, seqno: int) -> SchemaVersions:
        """These, for a fork that begins with version `seqno` of its state: it reads the files of all versions."""
        return replace(self, versions=tuple(replace(each, seqno=seqno) for each in self.versions))

    def to_json(self) -> dict[str, Any]:
        """Plain data for the codec."""
        versions = [{"schema": each.schema.to_json(), "seqno": each.seqno} for each in self.versions]
        return {"versions": versions, "next_id": self.next_id}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SchemaVersions:
        """The inverse of `to_json`."""
        versions = [
            SchemaVersion(CollectionSchema.from_json(each["schema"]), each["seqno"]) for each in data["versions"]
        ]
        return cls(tuple(versions), data["next_id"])
