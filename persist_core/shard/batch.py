"""What travels through the write protocol: descriptions, parts, manifests, hollow batches.

    mint -> BatchDescription -> write -> BatchManifest (in blob storage) -> append -> HollowBatch (in the state)

Blob keys of a shard (all below `<shard>/`):

    inputs/<sha256>.json                     frozen input of a description, content-addressed
    batches/<attempt>/_persist_part=<kind>/*.parquet  parts, staged by one write attempt; never shared by two
    batches/<attempt>/manifest.json          the manifest of that attempt, written last
    batches/<attempt>/failure.json           why the attempt failed, where it could still say so
    checkpoints/...                          see persist_core.checkpoint
    conflicts/<uuid7>.json                   one record per conflict
    forks/<fork>/<sha256>.json               what a fork of this shard shares with it (protocol.fork_records)
    specs/<attempt>.json                     what the attempt's Spark job is told, until the job has ended
    trials/<attempt>.json                    what a read-only refresh of a view would write, until it was read

All dataclasses here are frozen plain data with `to_json`/`from_json`; times are ints, a closed upper is `None`.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from persist_core.errors import BadBounds, InvalidName, UnknownVersion
from persist_core.frontier import Frontier, check_time, interval
from persist_core.schema import CollectionSchema

MANIFEST_VERSION = 1
RESTORE_VERSION = 2  # of a restore's manifest alone, so that an older release says that it does not know what that is
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_shard_name(name: str) -> str:
    """Return `name` if it can name a shard, else raise `InvalidName`."""
    if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name) or ".." in name:
        raise InvalidName(
            f"shard name {str(name)[:80]!r}: wanted 1 to 128 letters, digits, '.', '_' or '-', starting with a letter"
            " or a digit, without '..'"
        )
    return name


class PartKind(enum.StrEnum):
    """What a part holds. Insertions have diff 1, retractions diff -1, errs either."""

    INSERTIONS = "insertions"
    RETRACTIONS = "retractions"
    ERRS = "errs"


STASH_KIND = "stash"  # the write stage's fourth output; operator state, not a part


@dataclass(frozen=True)
class Part:
    """One Parquet file of a batch. `rows` is `None` where the writer did not count."""

    key: str
    kind: PartKind
    size_bytes: int
    rows: int | None = None


@dataclass(frozen=True)
class StateArtifact:
    """One staged file of operator state: where its bytes are, and their SHA-256 (hex)."""

    operator: str
    partition_id: int
    is_delta: bool
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class SourceFrontier:
    """Progress of one source: opaque JSON that only that source reads (files: segments of the ledger)."""

    source_type: str
    offsets: Mapping[str, Any]


@dataclass(frozen=True)
class BatchCounts:
    """Updates in a batch."""

    insertions: int = 0
    retractions: int = 0
    err_insertions: int = 0
    err_retractions: int = 0

    @property
    def updates(self) -> int:
        """All updates, oks and errs."""
        return self.insertions + self.retractions + self.err_insertions + self.err_retractions


@dataclass(frozen=True)
class Restored:
    """Where a restore took contents, progress and operator state from: a checkpoint, of another shard if it is a fork.

    `watermark`: what the operator state holds from there on is in the shard's contents no more than it was then, though
    its time may be final by now. The next batch takes it in.
    """

    shard: str
    checkpoint_id: str
    watermark: int | None


@dataclass(frozen=True)
class BatchDescription:
    """What one batch will be: minted once, written any number of times, appended at most once.

    `input_key` names the frozen input in blob storage (`None`: no input, a seal). `sources` is the progress after the
    commit. `stash` is the operator state before it: the chain of artifacts, oldest first. Of these, records before
    `stash_frontier` (`None`: before `lower`) have been processed by earlier batches. `writer` says who minted it
    (`dag_id/run_id` or `cli/...`), for people. `is_delta` says how the operator state is to be saved. `bookmark` is
    where the consensus has seen the shard's state last: it saves the append a request, and says nothing.
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
    stash: tuple[StateArtifact, ...] = ()
    is_delta: bool = False
    bookmark: str | None = None
    stash_frontier: int | None = None

    def __post_init__(self) -> None:
        check_shard_name(self.shard)
        check_bounds(self.lower, self.upper)

    @property
    def interval(self) -> str:
        """`[lower, upper)`, for messages."""
        return interval(Frontier(self.lower), Frontier(self.upper))

    def to_json(self) -> dict[str, Any]:
        """Plain data: goes through XCom and argv, so it stays small (file lists are in `input_key`)."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BatchDescription:
        """The inverse of `to_json`."""
        sources = {name: SourceFrontier(**source) for name, source in data["sources"].items()}
        stash = tuple(StateArtifact(**artifact) for artifact in data["stash"])
        return cls(**{**data, "sources": sources, "stash": stash})


@dataclass(frozen=True)
class HollowBatch:
    """A batch as the state holds it: bounds, where its manifest is, counts and bytes."""

    lower: int
    upper: int | None
    manifest_key: str
    counts: BatchCounts
    size_bytes: int


@dataclass(frozen=True)
class BatchManifest:
    """All there is to know about one staged batch. One commit appends exactly one manifest.

    `contents` is the digest that binds the token: bounds, consolidated oks and errs (order-independent), source
    frontier, schema. `is_delta`: the operator state builds on the parent checkpoint's. `stats` is
    `DrainStats.to_json()` of the run that wrote it (empty for other writers). `restored` is set where this is no next
    step but a way back: `sources` and `operator_state` then are all there is, whatever was before.
    """

    shard: str
    lower: int
    upper: int | None
    token: str
    contents: str
    schema: CollectionSchema
    parts: tuple[Part, ...]
    counts: BatchCounts
    checkpoint_id: str
    epoch: int
    parent_id: str | None
    writer: str
    sources: Mapping[str, SourceFrontier] = field(default_factory=dict)
    operator_state: tuple[StateArtifact, ...] = ()
    is_delta: bool = False
    stats: Mapping[str, int] = field(default_factory=dict)
    restored: Restored | None = None

    @property
    def has_stash(self) -> bool:
        """Whether any operator state is left after this batch."""
        return bool(self.operator_state) if self.restored else self.stats.get("stashed", 0) != 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.size_bytes for part in self.parts)

    def hollow(self, manifest_key: str) -> HollowBatch:
        """What the state keeps of it."""
        return HollowBatch(self.lower, self.upper, manifest_key, self.counts, self.size_bytes)

    def encode(self) -> bytes:
        """Canonical JSON with a version."""
        version = MANIFEST_VERSION if self.restored is None else RESTORE_VERSION
        body = asdict(self) | {"version": version, "schema": self.schema.to_json()}
        if self.restored is None:
            del body["restored"]
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> BatchManifest:
        """The inverse of `encode`; an unknown version is refused."""
        body = json.loads(data)
        version = body.pop("version", None)
        if version not in (MANIFEST_VERSION, RESTORE_VERSION):
            raise UnknownVersion(f"batch manifest version {version!r}; this release reads up to {RESTORE_VERSION}")
        return cls(
            **{
                **body,
                "schema": CollectionSchema.from_json(body["schema"]),
                "parts": tuple(Part(**{**part, "kind": PartKind(part["kind"])}) for part in body["parts"]),
                "counts": BatchCounts(**body["counts"]),
                "sources": {name: SourceFrontier(**source) for name, source in body["sources"].items()},
                "operator_state": tuple(StateArtifact(**artifact) for artifact in body["operator_state"]),
                "restored": Restored(**body["restored"]) if body.get("restored") else None,
            }
        )


def check_bounds(lower: int, upper: int | None) -> None:
    """Raise `BadBounds` unless `lower < upper` (a closed upper lies beyond every time)."""
    check_time(lower, what="lower")
    if upper is not None and check_time(upper, what="upper") <= lower:
        raise BadBounds(f"bounds [{lower}, {upper}) are empty or run backwards; wanted lower < upper")


def contents_digest(
    *, lower: int, upper: int | None, rows: str, sources: Mapping[str, SourceFrontier], schema: CollectionSchema
) -> str:
    """The digest that binds a token to contents. `rows` is an order-independent digest of all consolidated updates.

    File names, part sizes and row order do not enter, so that a restaged retry has the same digest.
    """
    body = {
        "lower": lower,
        "upper": upper,
        "rows": rows,
        "sources": {name: asdict(source) for name, source in sources.items()},
        "schema": schema.to_json(),
    }
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def attempt_prefix(shard: str, attempt: str) -> str:
    """Where one write attempt stages: nothing else is ever written below it."""
    return f"{shard}/batches/{attempt}"


def manifest_key(shard: str, attempt: str) -> str:
    """The key of an attempt's manifest."""
    return f"{attempt_prefix(shard, attempt)}/manifest.json"


def spec_key(shard: str, attempt: str) -> str:
    """The key of what an attempt's Spark job is told (`spark_job.spec.JobSpec`). Its starter deletes it.

    Not below `attempt_prefix`: there the job finds nothing but what it staged itself.
    """
    return f"{shard}/specs/{attempt}.json"


def failure_key(shard: str, attempt: str) -> str:
    """The key of an attempt's failure record: `{"kind": ..., "message": ...}`."""
    return f"{attempt_prefix(shard, attempt)}/failure.json"


def trial_key(shard: str, attempt: str) -> str:
    """The key of a trial's report (`oracle.view.Trial`): what a refresh would write. Its reader deletes it."""
    return f"{shard}/trials/{attempt}.json"
