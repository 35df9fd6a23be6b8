"""The effect of a net change on rows, for people: rows added, removed and changed, by column, with samples.

Delta, as `net_of` gives it ──sum by value──> pairs of the same key ──> Differences
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist_core.contents.parts import ERR_IDENTITY
from persist_core.contents.row_versions import equal_or_null, same_as_before, sum_diffs
from persist_core.protocol.delta import Delta
from persist_core.schema import DIFF, RESERVED_PREFIX, CollectionSchema

KIND = f"{RESERVED_PREFIX}kind"  # of a difference: added, removed, before or after


@dataclass(frozen=True)
class Differences:
    """The rows that differ, oks and errs. `columns`: in how many changed rows each value column differs.

    `rows` has each row with its `KIND`: one that changed is there twice, as `before` and `after`, in the order of keys.
    """

    added: int
    removed: int
    changed: int
    errs_added: int
    errs_removed: int
    columns: Mapping[str, int]
    rows: pa.Table

    @property
    def total(self) -> int:
        return self.added + self.removed + self.changed + max(self.errs_added, self.errs_removed)


def differences(delta: Delta, schema: CollectionSchema) -> Differences:
    """Sum up a net change of a shard with this schema."""
    names = [column.name for column in schema.columns]
    oks = sum_diffs(delta.oks, names).select([*names, DIFF])
    oks = oks.sort_by([*((name, "ascending") for name in schema.key_names or names), (DIFF, "ascending")])
    errs = sum_diffs(delta.errs, list(ERR_IDENTITY))
    after = _after_its_before(oks, schema.key_names)
    before = pa.concat_arrays([after.slice(1), pa.array([False])]) if len(oks) else after
    inserted = pc.greater(oks[DIFF], 0).combine_chunks()
    new, old = oks.filter(after), oks.filter(before)
    columns = {
        column.name: len(new) - (pc.sum(equal_or_null(old[column.name], new[column.name])).as_py() or 0)
        for column in schema.values
    }
    kind = pc.if_else(after, "after", pc.if_else(before, "before", pc.if_else(inserted, "added", "removed")))
    alone = pc.invert(pc.or_(after, before))
    copies = pc.abs(oks[DIFF]).combine_chunks()  # of a view's rows there may be several
    return Differences(
        added=pc.sum(copies.filter(pc.and_(alone, inserted))).as_py() or 0,
        removed=pc.sum(copies.filter(pc.and_(alone, pc.invert(inserted)))).as_py() or 0,
        changed=len(new),
        errs_added=_count(pc.greater(errs[DIFF], 0)),
        errs_removed=_count(pc.less(errs[DIFF], 0)),
        columns={name: count for name, count in columns.items() if count},
        rows=oks.drop_columns([DIFF]).add_column(0, KIND, kind),
    )


def _after_its_before(oks: pa.Table, keys: Sequence[str]) -> pa.Array:
    """True for an insertion that follows the retraction of its key."""
    if not keys or not len(oks):
        return pa.array([False] * len(oks), pa.bool_())
    return pc.and_(same_as_before(oks.select(list(keys))), pc.greater(oks[DIFF], 0).combine_chunks())


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0
