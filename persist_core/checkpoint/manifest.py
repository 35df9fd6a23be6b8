"""The checkpoint manifest, version 2: what a checkpoint is made of.

Readers accept missing optional fields, and keep fields they don't know when they write a manifest again. This
project's additions are `shard` (the version that the checkpoint pins) and `is_delta` (its state builds on the parent).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from persist_core.batch import SourceFrontier
from persist_core.checkpoint.layout import check_checkpoint_id
from persist_core.errors import Corruption, InvalidInput, UnknownVersion

MANIFEST_VERSION = 2


@dataclass(frozen=True)
class PartitionState:
    """One artifact of an operator: `path` is relative to the checkpoint's folder, `sha256` hex of its bytes."""

    partition_id: int
    is_delta: bool
    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class OperatorState:
    """All artifacts of one operator."""

    partitions: tuple[PartitionState, ...]
    total_bytes: int


@dataclass(frozen=True)
class SourceOffsets:
    """One source's progress, as of the checkpoint."""

    source_type: str
    offsets: Mapping[str, Any]
    epoch: int

    @classmethod
    def of(cls, source: SourceFrontier, epoch: int) -> SourceOffsets:
        """From the progress that a batch commits."""
        return cls(source.source_type, source.offsets, epoch)


@dataclass(frozen=True)
class ShardPin:
    """What of the shard the checkpoint stands for. A closed frontier is `None`."""

    shard: str
    seqno: int
    since: int | None
    upper: int | None


@dataclass(frozen=True)
class CheckpointManifest:
    """One checkpoint. Order is by (epoch, id); epochs start at 1 and only grow."""

    checkpoint_id: str
    epoch: int
    timestamp_ms: int
    operators: Mapping[str, OperatorState] = field(default_factory=dict)
    source_offsets: Mapping[str, SourceOffsets] = field(default_factory=dict)
    parent_id: str | None = None
    watermark: int | None = None
    total_size_bytes: int = 0
    shard: ShardPin | None = None
    is_delta: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_checkpoint_id(self.checkpoint_id)
        if isinstance(self.epoch, bool) or not isinstance(self.epoch, int) or self.epoch < 1:
            raise InvalidInput(f"checkpoint {self.checkpoint_id}: epoch {self.epoch!r}; epochs start at 1")
        if self.parent_id is not None:
            check_checkpoint_id(self.parent_id)
        if self.is_delta and self.parent_id is None:
            raise InvalidInput(f"checkpoint {self.checkpoint_id} is a delta without a parent")

    @property
    def position(self) -> tuple[int, str]:
        """What checkpoints are ordered by."""
        return self.epoch, self.checkpoint_id

    @property
    def artifacts(self) -> tuple[PartitionState, ...]:
        """Artifacts of all operators."""
        return tuple(part for operator in self.operators.values() for part in operator.partitions)

    def facts(self) -> dict[str, Any]:
        """All fields but those that this release doesn't know."""
        body = asdict(self)
        del body["unknown"]
        return body | {"version": MANIFEST_VERSION}

    def encode(self) -> bytes:
        """Readable, canonical JSON."""
        return json.dumps({**self.unknown, **self.facts()}, sort_keys=True, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, what: str = "checkpoint manifest") -> CheckpointManifest:
        """The inverse of `encode`. Raises `UnknownVersion` or `Corruption` naming `what`."""
        try:
            body = json.loads(data)
            version = body.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Corruption(f"{what} can't be read: {error!r}") from error
        if version != MANIFEST_VERSION:
            raise UnknownVersion(f"{what} has version {version!r}; this release reads {MANIFEST_VERSION}")
        try:
            return cls._from_json(body)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise Corruption(f"{what} is malformed: {error}") from error

    @classmethod
    def _from_json(cls, body: dict[str, Any]) -> CheckpointManifest:
        operators = {
            name: OperatorState(
                tuple(PartitionState(**part) for part in operator["partitions"]), operator["total_bytes"]
            )
            for name, operator in body.pop("operators", {}).items()
        }
        sources = {name: SourceOffsets(**source) for name, source in body.pop("source_offsets", {}).items()}
        pin = body.pop("shard", None)
        known = {name: body.pop(name) for name in _PLAIN_FIELDS if name in body}
        return cls(
            operators=operators,
            source_offsets=sources,
            shard=ShardPin(**pin) if pin else None,
            unknown=body,
            **known,
        )


_PLAIN_FIELDS = ("checkpoint_id", "epoch", "timestamp_ms", "parent_id", "watermark", "total_size_bytes", "is_delta")
