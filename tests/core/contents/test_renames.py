"""Columns keep their ids whatever they are named, for random changes of a file."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from persist_core.contents.schema_versions import SchemaVersions
from persist_core.errors import SchemaMismatch
from persist_core.schema import CollectionSchema, Column
from tests.sampling import is_long

KEY = (Column("id", "bigint", nullable=False),)
SEEDS = 20_000 if is_long() else 500


def test_random_renames_find_their_columns() -> None:
    """Many in one run, to names that other columns leave, or have left; the same file again changes nothing.

    Refused are exchanges, and a declaration that an earlier one makes ambiguous.
    """
    done = 0
    for seed in range(SEEDS):
        done += renames(Random(f"renames {seed}"))
    assert done > SEEDS, "most are accepted"


def renames(chance: Random) -> int:
    """One history; returns how many of its files were accepted."""
    found, stays = SchemaVersions(), chance.random() < 0.5
    # A rebuild begins with a file whose renames are done.
    columns = [Column(name, "string", renamed_from=chance.choice([None, None, "d", "e"])) for name in "abc"]
    ids = dict[str, int | None]()
    for step in range(6):
        names = {column.name: column.name for column in columns}
        leaving = chance.sample(sorted(names), min(len(names), chance.randrange(3) if step else 0))
        dropped = {name for name in leaving if chance.random() < 0.2}
        free = set("abcde") - names.keys() | set(leaving)
        renamed = dict[str, str]()
        for old in sorted(set(leaving) - dropped):
            new = chance.choice(sorted(free - dropped - {old}) or [old])
            renamed |= {old: new}
            free.discard(new)
        if len(set(renamed.values()) | names.keys() - set(leaving)) < len(names) - len(dropped):
            continue
        columns = [
            replace(each, name=renamed.get(each.name, each.name), renamed_from=each.name if each.name in renamed else
                    each.renamed_from if stays else None)
            for each in columns if each.name not in dropped
        ]  # fmt: skip
        expected = {renamed.get(name, name): number for name, number in ids.items() if name not in dropped}
        if free - dropped and chance.random() < 0.3:
            columns.insert(0, Column(min(free - dropped), "string"))
        wanted = CollectionSchema(KEY, tuple(columns), dropped=tuple(sorted(dropped)))
        try:
            placed = found.placed(wanted)
        except SchemaMismatch:
            gone = {each.renamed_from for each in columns} - {None} - {each.name for each in columns}
            both = "|and the shard has both" if gone else ""
            with pytest.raises(SchemaMismatch, match=r"exchange their names|are `renamed_from` one: " + both):
                raise
            return step
        before, ids = set(ids.values()), {column.name: column.id for column in placed.values}
        added = ids.keys() - expected.keys()
        assert {name: ids[name] for name in expected} == expected or not step, (wanted, found)
        assert not {ids[name] for name in added} & before, (wanted, found)
        if placed.version > len(found.versions):
            found = found.with_version(placed, seqno=step, lower=step)
        assert found.placed(wanted) is found.newest
    return 6
