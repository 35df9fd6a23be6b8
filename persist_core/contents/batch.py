"""The data of the write protocol: descriptions, parts, manifests, hollow batches; the model and its encoding.

    mint -> BatchDescription -> write -> BatchManifest (in blob storage) -> append -> HollowBatch (in the state)

All dataclasses are frozen plain data; times are ints, a closed upper is `None`. `keys` says where each is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from persist_core.contents.derived import Restored, Run
from persist_core.contents.err_groups import ErrGroup
from persist_core.contents.key_range import Key, KeyRange
from persist_core.contents.operator_state import OperatorState, StateArtifact, chain_digest
from persist_core.contents.part_lists import PartList, UnreadParts, split
from persist_core.contents.stats import BatchWarning
from persist_core.errors import BadBounds, CorruptArtifact, InvalidInput
from persist_core.keys import check_key_name
from persist_core.schema import CollectionSchema
from persist_core.sealed import from_plain, seal, sealed_digest, unseal
from persist_core.time_text import MAX_TIME, check_time, show_interval

MANIFEST_VERSION = 1
_MANIFEST = "batch_manifest"


class PartKind(enum.StrEnum):
    """The kinds of parts. Insertions have diff 1, retractions diff -1, errs either.

    History is in runs only, and holds what the newest contents do not need: docs/storage.md, section 1.
    """

    INSERTIONS = "insertions"
    RETRACTIONS = "retractions"
    ERRS = "errs"
    HISTORY = "history"


STASH_OPERATOR = "upsert-stash"  # the operator whose state the stash is
ORDER_INDEX_OPERATOR = "order-index"  # in `sequence` order: the orders of deleted keys
LATE_OPERATOR = "late-records"  # in `sequence` order: the records that lost to an order seen before


@dataclass(frozen=True)
class Part:
    """One Parquet file of a batch. `sha256` is of its bytes; `rows` is `None` if the writer did not count. `schema` is
    the version in which it was written: in a run, a file that was carried over may have an older one than the run.
    No update in it is later than `last_time`; `None` if the writer did not look. No key in it is before `first_key` or
    after `last_key` (`contents.key_range`); `None` if there is no such bound. Rows may lack values if it `inherits`.
    `index`: the bytes of page indexes and footer, which end the file, and their SHA-256; `None` if not known.
    """

    key: str
    kind: PartKind
    size_bytes: int
    sha256: str
    schema: CollectionSchema = field(repr=False)
    rows: int | None = None
    last_time: int | None = None
    first_key: Key | None = None
    last_key: Key | None = None
    inherits: bool = False
    index: tuple[int, str] | None = None

    @property
    def keys(self) -> KeyRange:
        return KeyRange(self.first_key, self.last_key)


@dataclass(frozen=True)
class SourceFrontier:
    """Progress of one source: opaque JSON that only that source reads (files: segments of the ledger)."""

    source_type: str
    offsets: Mapping[str, Any]


@dataclass(frozen=True)
class BatchCounts:
    """Rows of a batch by what they are; only runs have history."""

    insertions: int = 0
    retractions: int = 0
    err_insertions: int = 0
    err_retractions: int = 0
    history: int = 0

    @property
    def rows(self) -> int:
        """Rows that a read of the newest contents opens."""
        return self.insertions + self.retractions + self.err_insertions + self.err_retractions

    @property
    def updates(self) -> int:
        """Updates, oks and errs: exact for a raw batch, an upper bound for a run, whose history has two a row."""
        return self.rows + 2 * self.history


@dataclass(frozen=True)
class BatchDescription:
    """A batch before it is written: minted once, written any number of times, appended at most once.

    `input_key` names the frozen input in blob storage (`None`: no input, a seal). `sources` is the progress after the
    commit. `operators` is the operator state before it: the chain of artifacts of each operator, oldest first. Of the
    stash, records before `stash_frontier` (`None`: before `lower`) have been processed by earlier batches; `stash_rows`
    are not (`None`: not known), if one is counted for each slot and time. `writer`
    says who minted it (`dag_id/run_id` or `cli/...`), for people. `saves_deltas`: operators that have a chain add to
    it; without it they save their state in full. `era`: the shard's when it was minted; `None` for a writer that names
    nothing that was staged before its batch. `is_change`: it takes in no input, and changes what was there before.
    `in_time_from` (`None`: `lower`): changes have moved the upper from there to `lower`, so input of these times is not
    late.
    """

    shard: str
    lower: int
    upper: int | None
    token: str
    checkpoint_id: str
    epoch: int
    parent_id: str | None
    writer: str
    input_key: str | None = None
    input_files: int = 0
    input_bytes: int = 0
    sources: Mapping[str, SourceFrontier] = field(default_factory=dict)
    operators: Mapping[str, tuple[StateArtifact, ...]] = field(default_factory=dict)
    saves_deltas: bool = False
    stash_frontier: int | None = None
    stash_rows: int | None = None
    era: int | None = None
    is_change: bool = False
    in_time_from: int | None = None

    def __post_init__(self) -> None:
        check_key_name(self.shard)
        check_bounds(self.lower, self.upper)

    @property
    def interval(self) -> str:
        """From lower to upper, for messages."""
        return show_interval(self.lower, self.upper)

    @property
    def read_operators(self) -> dict[str, str]:
        """The digest of each operator's chain that the batch starts from, by operator."""
        return {name: chain_digest(chain) for name, chain in self.operators.items()}

    def saves_delta(self, operator: str) -> bool:
        """True if the operator is to save what it adds to its chain; else its full state."""
        return self.saves_deltas and operator in self.operators

    def to_json(self) -> dict[str, Any]:
        """Plain data: goes through XCom, so it stays small (file lists are in `input_key`)."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchDescription:
        return from_plain(cls, data, what="a description")


@dataclass(frozen=True)
class HollowBatch:
    """A batch as the state holds it: bounds, where its manifest is and its digest, counts and bytes of its parts.

    An empty batch may stand for several that were appended one after the other. Its manifest is then the newest one's.
    `upper` is lower than the manifest's for a run that a fork shares up to its checkpoint: what is later is not there.
    `run_changed_at` is a run's `Run.changed_at`, or the `changed_at` of a batch from which keys were erased.
    `is_partial`: a run of a merge that has more steps to do.
    """

    lower: int
    upper: int | None
    manifest_key: str
    manifest_sha256: str
    counts: BatchCounts
    size_bytes: int
    run_changed_at: int | None = None
    is_partial: bool = False

    @property
    def last_time(self) -> int:
        return last_time(self.upper)

    @property
    def changed_at(self) -> int | None:
        """No change in it is later; `None` if nothing changed."""
        if self.run_changed_at is not None:
            return min(self.run_changed_at, self.last_time)
        return self.last_time if self.counts.updates else None

    @property
    def is_empty(self) -> bool:
        """True if nothing changed in it. A run may hold no rows and not be empty."""
        return self.changed_at is None

    def is_of(self, manifest: BatchManifest) -> bool:
        """True if the state may describe the manifest like this.

        The bounds of an empty batch may differ, and a fork may share less of a run.
        """
        hollow = manifest.hollow(self.manifest_key)
        if hollow.is_empty:
            return self == replace(hollow, lower=self.lower, upper=self.upper)
        is_clipped = manifest.run is not None and self.last_time < hollow.last_time
        return self == (replace(hollow, upper=self.upper) if is_clipped else hollow)


@dataclass(frozen=True)
class BatchManifest:
    """Everything about one staged batch. One commit appends exactly one manifest; a merge puts one in place.

    `parts` are `UnreadParts` if there are many and only the manifest itself was read: they are in `lists`.
    `contents_digest` binds the token: bounds, consolidated oks and errs (order-independent), source frontier, schema.
    `operators` is the operator state after the batch; `read_operators` are the digests of the chains it started from.
    `stats`: `DrainStats.to_json()` of its run (empty for other writers); `warnings`: what that says of rows;
    `err_groups`: the most frequent errs that it inserts. `restored` is set if the batch goes back to a checkpoint:
    `sources` and `operators` then replace all before. `run` is set if it was merged: no commit then, no operator state,
    and its other facts are its newest input's. What it names was staged in era `era` or later, or was named by then.
    `in_time_from`: of a change, the end of the newest commit before it that took in input.
    """

    shard: str
    lower: int
    upper: int | None
    token: str
    contents_digest: str
    schema: CollectionSchema
    parts: Sequence[Part]
    counts: BatchCounts
    checkpoint_id: str
    epoch: int
    parent_id: str | None
    writer: str
    sources: Mapping[str, SourceFrontier] = field(default_factory=dict)
    operators: Mapping[str, OperatorState] = field(default_factory=dict)
    read_operators: Mapping[str, str] = field(default_factory=dict)
    stats: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[BatchWarning, ...] = ()
    err_groups: tuple[ErrGroup, ...] = ()
    restored: Restored | None = None
    run: Run | None = None
    changed_at: int | None = None  # of a batch from which keys were erased, as of a run
    era: int = 0
    is_change: bool = False
    in_time_from: int | None = None

    @property
    def last_time(self) -> int:
        return last_time(self.upper)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.outline)

    @property
    def outline(self) -> Sequence[Part | PartList]:
        """Its parts; or its lists of parts, which say the same of all of theirs together, if only these are known."""
        return self.parts.lists if isinstance(self.parts, UnreadParts) else self.parts

    @property
    def schemas(self) -> Mapping[int, CollectionSchema]:
        """The schemas that it and its parts are written in, by version."""
        if isinstance(self.parts, UnreadParts):
            return self.parts.schemas
        return {schema.version: schema for schema in (self.schema, *(part.schema for part in self.parts))}

    @cached_property
    def lists(self) -> tuple[PartList, ...]:
        """The lists in which its parts are stored beside it; none for few parts."""
        parts = self.parts
        return parts.lists if isinstance(parts, UnreadParts) else tuple(each for each, _ in self.split)

    @cached_property
    def split(self) -> Sequence[tuple[PartList, bytes]]:
        """Its lists, and their bytes: to be stored before itself. None if they were not read."""
        return () if isinstance(self.parts, UnreadParts) else tuple(split(map(_part_json, self.parts)))

    @cached_property
    def sha256(self) -> str:
        """The digest that its stored bytes carry. The commit binds it."""
        return sealed_digest(self.encode())

    def operators_after(self) -> dict[str, str]:
        """The digest of each operator's chain after this batch. `InvalidInput` for a delta of a chain it did not read.

        A restore reads no chain and replaces them all, so its operator state is always full.
        """
        if self.run is not None:
            raise InvalidInput(f"{show_interval(self.lower, self.upper)} is a run, which is never appended")
        after = {}
        for name, state in self.operators.items():
            if state.is_delta and (name not in self.read_operators or self.restored):
                raise InvalidInput(f"operator {name} saved a delta, but the batch read no state of it to start from")
            before = self.read_operators[name] if state.is_delta else ""
            after[name] = chain_digest(state.artifacts, after=before)
        return after

    def hollow(self, manifest_key: str) -> HollowBatch:
        """The state's record of it."""
        changed_at = self.run.changed_at if self.run else self.changed_at
        return HollowBatch(
            self.lower,
            self.upper,
            manifest_key,
            self.sha256,
            self.counts,
            self.size_bytes,
            changed_at,
            is_partial=self.run is not None and self.run.merged_to is not None,
        )

    def encode(self) -> bytes:
        """Sealed JSON: equal manifests give equal bytes."""
        body = {
            **asdict(replace(self, parts=())),
            "schema": self.schema.version,
            "schemas": [schema.to_json() for _, schema in sorted(self.schemas.items())],
            "parts": [] if self.lists else [_part_json(part) for part in self.parts],
            "lists": [asdict(each) for each in self.lists],
        }
        return seal(_MANIFEST, MANIFEST_VERSION, body)

    @classmethod
    def decode(cls, data: bytes, *, what: str = "a batch manifest") -> BatchManifest:
        """The inverse of `encode`. Raises `CorruptArtifact` or `UnknownVersion` naming `what`."""
        body = unseal(data, kind=_MANIFEST, version=MANIFEST_VERSION, what=what)
        with _well_formed(what):
            found = from_plain(tuple[CollectionSchema, ...], body.pop("schemas"), what=what)
            schemas = {schema.version: schema for schema in found}
            lists = from_plain(tuple[PartList, ...], body.pop("lists"), what=what)
            facts = {name: from_plain(kind, body[name], what=what) for name, kind in _FACTS.items()}
            parts = UnreadParts(lists, schemas) if lists else _parts(body["parts"], schemas)
            manifest = cls(**{**body, **facts, "schema": schemas[body["schema"]], "parts": parts})
        vars(manifest)["sha256"] = sealed_digest(data)  # of the stored bytes, not of a new encoding
        return manifest

    def with_lists(self, lists: Sequence[tuple[PartList, bytes, str]]) -> BatchManifest:
        """The manifest with the parts of these of its lists, of each its bytes and its name for errors."""
        parts: list[Part] = []
        for each, data, what in lists:
            found = each.read(data, what=what)
            with _well_formed(what):
                parts += _parts(found, self.schemas)
        whole = replace(self, parts=tuple(parts))
        vars(whole).update(sha256=self.sha256, lists=self.lists)
        return whole


_FACTS: Mapping[str, Any] = {  # of a manifest, with types that JSON does not have
    "counts": BatchCounts,
    "sources": dict[str, SourceFrontier],
    "operators": dict[str, OperatorState],
    "warnings": tuple[BatchWarning, ...],
    "err_groups": tuple[ErrGroup, ...],
    "restored": Restored | None,
    "run": Run | None,
}


@contextmanager
def _well_formed(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifact(f"{what} is malformed: {error!r}; run `persist fsck`") from error


def _part_json(part: Part) -> dict[str, Any]:
    return {**vars(part), "schema": part.schema.version}


def _parts(found: Sequence[Mapping[str, Any]], schemas: Mapping[int, CollectionSchema]) -> tuple[Part, ...]:
    return tuple(_part(each, schemas) for each in found)


def _part(body: Mapping[str, Any], schemas: Mapping[int, CollectionSchema]) -> Part:
    pairs = {name: None if body[name] is None else tuple(body[name]) for name in ("first_key", "last_key", "index")}
    return Part(**{**body, **pairs, "kind": PartKind(body["kind"]), "schema": schemas[body["schema"]]})


def last_time(upper: int | None) -> int:
    """The latest time before `upper`."""
    return MAX_TIME if upper is None else upper - 1


def check_bounds(lower: int, upper: int | None) -> None:
    """Raise `BadBounds` unless `lower < upper` (a closed upper lies beyond every time)."""
    check_time(lower, what="lower")
    if upper is not None and check_time(upper, what="upper") <= lower:
        raise BadBounds(f"bounds {show_interval(lower, upper)} are empty or run backwards; expected lower < upper")
