"""The checkpoint manifest, version 2: the contents of a checkpoint; and the chains of operator state that they make up.

Readers accept missing optional fields. When they write a manifest again, they keep fields that they do not know, at
every level. They accept a manifest without a digest, as other writers produce it. This project adds the digest
and kind of `sealed`, `shard` (the version that the checkpoint pins), each operator's `is_delta` (its state builds
on the parent's, even if it adds no artifact), `restored_from` (the checkpoint that a restore went back to, whose
watermark it has) and `in_time_from` (as in the manifest of its batch).

    checkpoint 7   stash: delta      order-index: delta (no artifact: unchanged)
    checkpoint 6   stash: snapshot   order-index: delta
    checkpoint 5   stash: delta      order-index: snapshot

The chain of `stash` is 6, 7 and the chain of `order-index` 5, 6, 7: each operator has its own interval between full
snapshots.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from persist_core.contents.batch import SourceFrontier
from persist_core.contents.operator_state import OperatorState, StateArtifact
from persist_core.errors import CorruptArtifact, InvalidInput, UnknownVersion
from persist_core.keys import check_checkpoint_id, offsets_path, state_path
from persist_core.sealed import from_plain, is_sealed, seal, unseal

MANIFEST_VERSION = 2
OFFSETS_VERSION = 1
MAX_CHAIN = 200  # checkpoints from a delta to its full snapshot; `retention.snapshot_every` is at most 100
_MANIFEST = "checkpoint_manifest"
_OFFSETS = "source_offsets"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An object with fields. Fields that this release does not know are kept unchanged."""

    unknown: Mapping[str, Any] = field(default_factory=dict)


EntryT = TypeVar("EntryT", bound=_Entry)


@dataclass(frozen=True)
class PartitionState(_Entry):
    """One artifact of an operator: `path` is relative to the checkpoint's folder, `sha256` hex of its bytes.

    `facts`: what is known of its rows (`StateArtifact.facts`), which the committed digest of the chain binds.
    """

    partition_id: int
    is_delta: bool
    path: str
    size_bytes: int
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_carried(self) -> bool:
        """True if an earlier batch's file stands for it, and the checkpoint has no copy."""
        return self.path.startswith("../")

    def artifact(self, key: str) -> StateArtifact:
        own = {name: getattr(self, name) for name in ("partition_id", "size_bytes", "sha256", "is_carried")}
        return from_plain(StateArtifact, {**self.facts, **own, "key": key}, what=f"artifact {key}")


@dataclass(frozen=True)
class SavedOperator(_Entry):
    """All artifacts of one operator. `is_delta`: they add to the operator's state in the parent checkpoint."""

    partitions: tuple[PartitionState, ...]
    total_bytes: int
    is_delta: bool = False


@dataclass(frozen=True)
class SourceOffsets(_Entry):
    source_type: str
    offsets: Mapping[str, Any]
    epoch: int

    def encode(self) -> bytes:
        """The bytes of the source's offsets file: sealed JSON."""
        return seal(_OFFSETS, OFFSETS_VERSION, _plain(self, keep_unknown=False))

    @classmethod
    def of(cls, source: SourceFrontier, epoch: int) -> SourceOffsets:
        return cls(source.source_type, source.offsets, epoch)


@dataclass(frozen=True)
class ShardPin(_Entry):
    """The state that the checkpoint represents, and the shard's life (`Origin.life`). A closed frontier is `None`."""

    shard: str
    seqno: int
    since: int | None
    upper: int | None
    life: str | None = None


@dataclass(frozen=True)
class CheckpointManifest(_Entry):
    """One checkpoint. The order is by (epoch, id); epochs start at 1 and only increase."""

    checkpoint_id: str
    epoch: int
    timestamp_ms: int
    operators: Mapping[str, SavedOperator] = field(default_factory=dict)
    source_offsets: Mapping[str, SourceOffsets] = field(default_factory=dict)
    parent_id: str | None = None
    watermark: int | None = None
    total_size_bytes: int = 0
    shard: ShardPin | None = None
    restored_from: str | None = None
    in_time_from: int | None = None

    def __post_init__(self) -> None:
        check_checkpoint_id(self.checkpoint_id)
        if isinstance(self.epoch, bool) or not isinstance(self.epoch, int) or self.epoch < 1:
            raise InvalidInput(f"checkpoint {self.checkpoint_id}: epoch {self.epoch!r}; epochs start at 1")
        if self.parent_id is not None:
            check_checkpoint_id(self.parent_id)
        if self.is_delta and self.parent_id is None:
            raise InvalidInput(f"checkpoint {self.checkpoint_id} is a delta without a parent")

    @property
    def is_delta(self) -> bool:
        """True if the state of any operator builds on the parent's."""
        return any(operator.is_delta for operator in self.operators.values())

    @property
    def position(self) -> tuple[int, str]:
        return self.epoch, self.checkpoint_id

    @property
    def artifacts(self) -> tuple[PartitionState, ...]:
        return tuple(part for operator in self.operators.values() for part in operator.partitions)

    @property
    def paths(self) -> dict[str, int]:
        """The sizes in bytes of all objects in its folder but the manifest itself, by path: artifacts and offsets."""
        copies = {artifact.path: artifact.size_bytes for artifact in self.artifacts if not artifact.is_carried}
        return copies | {offsets_path(name): len(each.encode()) for name, each in self.source_offsets.items()}

    @property
    def upper(self) -> int | None:
        """The shard's upper after the checkpoint's commit; `None` if it was closed."""
        return self.shard.upper if self.shard else self.watermark

    @property
    def sources(self) -> dict[str, SourceFrontier]:
        """The progress that it names, as a batch commits it."""
        return {name: SourceFrontier(each.source_type, each.offsets) for name, each in self.source_offsets.items()}

    def facts(self) -> dict[str, Any]:
        """All fields that this release knows, as plain data."""
        return {**_plain(self, keep_unknown=False), "version": MANIFEST_VERSION}

    def differences(self, found: CheckpointManifest) -> list[str]:
        """The differences between `found` and this manifest, one line per field."""
        theirs, ours = found.facts(), self.facts()
        return [f"{name} is {theirs[name]!r}, expected {ours[name]!r}" for name in ours if theirs[name] != ours[name]]

    def encode(self) -> bytes:
        return seal(_MANIFEST, MANIFEST_VERSION, _plain(self, keep_unknown=True))

    @classmethod
    def decode(cls, data: bytes, *, what: str = "checkpoint manifest") -> CheckpointManifest:
        """The inverse of `encode`. Raises `UnknownVersion` or `CorruptArtifact` naming `what`."""
        if is_sealed(data):
            body = unseal(data, kind=_MANIFEST, version=MANIFEST_VERSION, what=what)
        else:
            body = _foreign(data, what)
        try:
            return cls._from_json(body)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise CorruptArtifact(f"{what} is malformed: {error!r}") from error

    @classmethod
    def _from_json(cls, body: dict[str, Any]) -> CheckpointManifest:
        operators = {name: _operator(operator) for name, operator in body.get("operators", {}).items()}
        sources = {
            name: _entry(SourceOffsets, {"offsets": {}, "epoch": body["epoch"], **source})
            for name, source in body.get("source_offsets", {}).items()
        }
        return _entry(
            cls,
            {
                "total_size_bytes": sum(operator.total_bytes for operator in operators.values()),
                **body,
                "operators": operators,
                "source_offsets": sources,
                "shard": _entry(ShardPin, body["shard"]) if body.get("shard") else None,
            },
        )


def path_of(folder: str, operator: str, artifact: StateArtifact, *, is_delta: bool) -> str:
    """Where a checkpoint has an artifact, relative to its folder: a copy there, or the file that is carried over."""
    if artifact.is_carried:
        return posixpath.relpath(artifact.key, folder)
    return state_path(operator, artifact.partition_id, is_delta=is_delta)


def _foreign(data: bytes, what: str) -> dict[str, Any]:
    """The body of a manifest from another writer, which has no digest."""
    try:
        body: dict[str, Any] = json.loads(data)
        version = body.pop("version")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptArtifact(f"{what} cannot be read: {error!r}") from error
    if "kind" in body or "sha256" in body:  # only this project writes these, and always both
        raise CorruptArtifact(f"{what} is damaged: its digest cannot be found")
    if version != MANIFEST_VERSION:
        raise UnknownVersion(f"{what} has version {version!r}; this release reads {MANIFEST_VERSION}")
    return body


def _operator(body: Mapping[str, Any]) -> SavedOperator:
    partitions = tuple(_entry(PartitionState, {"is_delta": False, **part}) for part in body["partitions"])
    total_bytes = sum(part.size_bytes for part in partitions)
    is_delta = any(part.is_delta for part in partitions)
    return _entry(SavedOperator, {"total_bytes": total_bytes, "is_delta": is_delta, **body, "partitions": partitions})


def _entry(kind: type[EntryT], body: Mapping[str, Any]) -> EntryT:
    """Build one of the dataclasses above; values without a field go into `unknown`."""
    names = {f.name for f in fields(kind)} - {"unknown"}
    known = {name: value for name, value in body.items() if name in names}
    known["unknown"] = {name: value for name, value in body.items() if name not in names}
    return kind(**known)


def _plain(value: Any, *, keep_unknown: bool) -> Any:
    """The inverse of `_entry`, recursively."""
    if isinstance(value, _Entry):
        known = {
            f.name: _plain(getattr(value, f.name), keep_unknown=keep_unknown)
            for f in fields(value)
            if f.name != "unknown"
        }
        return {**value.unknown, **known} if keep_unknown else known
    if isinstance(value, Mapping):
        return {name: _plain(entry, keep_unknown=keep_unknown) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry, keep_unknown=keep_unknown) for entry in value]
    return value


@dataclass(frozen=True)
class Link:
    """One checkpoint in a chain, by its batch manifest: its artifacts are the staged ones."""

    checkpoint_id: str
    parent_id: str | None
    operators: Mapping[str, OperatorState]
    stash_rows: int | None = None


LinkT = TypeVar("LinkT", Link, CheckpointManifest)


def walk(newest: LinkT, load: Callable[[str], LinkT]) -> Iterator[tuple[LinkT, frozenset[str]]]:
    """The checkpoints that make up the state of `newest`, newest first, each with the operators that need it.

    `load` gives a checkpoint by its id. Raises `CorruptArtifact` for a chain without a full snapshot.
    """
    link, needed = newest, frozenset(newest.operators)
    for _ in range(MAX_CHAIN):
        absent = sorted(needed - link.operators.keys())
        if absent:
            raise CorruptArtifact(
                f"checkpoint {link.checkpoint_id} has no state of {', '.join(absent)}, which the deltas of checkpoint"
                f" {newest.checkpoint_id} build on"
            )
        yield link, needed
        needed = frozenset(name for name in needed if link.operators[name].is_delta)
        if not needed:
            return
        if link.parent_id is None:
            break
        link = load(link.parent_id)
    raise CorruptArtifact(
        f"checkpoint {newest.checkpoint_id}: found no full snapshot of {', '.join(sorted(needed))} in the chain of its"
        f" parents, which ends at checkpoint {link.checkpoint_id}; expected one within {MAX_CHAIN} checkpoints"
    )
