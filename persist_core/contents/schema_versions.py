"""The schemas that a shard has had: which column is which, whatever its name was when a file was written.

    version 1, from seqno 0    id 1: bigint    name 2: string    age 3: int
    version 2, from seqno 7    id 1: bigint    title 2: string                 age 4: bigint    next id: 5

Here `title` is `name`, renamed; and the second `age` is another column than the first, which is gone. A definition in a
file knows names only: `SchemaVersions.placed` is the one place where a name finds its id. Files, manifests and operator
state name the version in which they were written, and a read finds a column by its id.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

from persist_core.contents.evolution import evolved
from persist_core.errors import CorruptArtifact, InvalidInput, SchemaMismatch
from persist_core.schema import CollectionSchema
from persist_core.time_text import UTC_ZONE


@dataclass(frozen=True)
class SchemaVersion:
    """One of a shard's schemas, whose columns have ids. It holds from version `seqno` of the state on; its first
    batch is from time `lower` on."""

    schema: CollectionSchema
    seqno: int
    lower: int


@dataclass(frozen=True)
class SchemaVersions:
    """All schemas of a shard, oldest first; the version of the first is 1. No column ever gets an id below `next_id`
    again."""

    versions: tuple[SchemaVersion, ...] = ()
    next_id: int = 1

    @property
    def newest(self) -> CollectionSchema | None:
        """The schema that readers see; `None` before the first commit."""
        return self.versions[-1].schema if self.versions else None

    @property
    def zone(self) -> str:
        """The time zone in which the shard's times are read and shown; UTC for a view."""
        return (self.newest and self.newest.zone) or UTC_ZONE

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
        return evolved([each.schema for each in self.versions], self.next_id, wanted)

    def with_batch_of(self, schema: CollectionSchema, *, seqno: int, lower: int) -> SchemaVersions:
        """The schemas after a batch of `schema`, from `lower` on, was appended by version `seqno` of the state.

        Raises `SchemaMismatch` if `placed` gives other ids, or it does not fit the newest schema.
        """
        count = len(self.versions)
        placed = self.placed(schema) if schema.version in (count, count + 1) else None
        if placed is None or placed.to_json() != schema.to_json():
            raise SchemaMismatch(
                f"the batch was written in schema version {schema.version}, and the shard is at {count}; its columns"
                " have other ids. Mint a description and write the batch from it"
            )
        return self.with_version(placed, seqno=seqno, lower=lower) if placed.version > count else self

    def with_version(self, schema: CollectionSchema, *, seqno: int, lower: int) -> SchemaVersions:
        """These and one more, whose columns have ids."""
        next_id = max([self.next_id, *(column.id + 1 for column in schema.columns if column.id is not None)])
        return SchemaVersions((*self.versions, SchemaVersion(schema, seqno, lower)), next_id)

    def in_fork(self, seqno: int, upper: int | None) -> SchemaVersions:
        """These, for a fork that begins with version `seqno` of its state at `upper`: it reads the files of all."""
        return replace(
            self,
            versions=tuple(
                replace(each, seqno=seqno, lower=each.lower if upper is None else min(each.lower, upper))
                for each in self.versions
            ),
        )

    def readable_before(self, version: int) -> int | None:
        """The time at which a column of `version` was first dropped: rows as of then lack it. `None`: it has all."""
        ids = _ids(self.versions[version - 1])
        return next((each.lower for each in self.versions[version:] if not ids <= _ids(each)), None)

    def borders(self) -> tuple[int, ...]:
        """Times at which columns were dropped. A merge across one loses what the history before it still shows."""
        return tuple(new.lower for old, new in itertools.pairwise(self.versions) if not _ids(old) <= _ids(new))

    def shown_in(self, version: int) -> SchemaVersions:
        """These as if the shard were still at `version`, its columns as wide as they have become since.

        Raises `InvalidInput` for a version that the shard never had.
        """
        if not 1 <= version <= len(self.versions):
            raise InvalidInput(
                f"schema version {version}: expected 1 to {len(self.versions)}; `persist schema` lists them"
            )
        widest = {column.id: column.type for each in self.versions for column in each.schema.columns}
        schema = self.versions[version - 1].schema
        key, values = (
            tuple(replace(column, type=widest[column.id]) for column in columns)
            for columns in (schema.key, schema.values)
        )
        shown = replace(self.versions[version - 1], schema=replace(schema, key=key, values=values))
        return replace(self, versions=(*self.versions[: version - 1], shown))

    def to_json(self) -> dict[str, Any]:
        versions = [{**vars(each), "schema": each.schema.to_json()} for each in self.versions]
        return {"versions": versions, "next_id": self.next_id}


def _ids(version: SchemaVersion) -> set[int | None]:
    return {column.id for column in version.schema.columns}
