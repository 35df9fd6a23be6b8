"""The spec of a Spark job, and how the job gets it. The meeting point of persist_airflow and persist_spark.

    JobSpec --stored--> jobs/<lower>/<attempt>/spec.json --argv: key and SHA-256--> the job --load_spec--> JobSpec

The spec is a blob because one command line argument holds 128 kB on Linux, and a long chain of operator state needs
more. The location is not on argv: it is in the environment (`spark_job.handover`), because every user of a machine can
read argv.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.errors import CorruptArtifact, InvalidInput, StorageError
from persist_core.keys import dry_run_key, job_key, manifest_key
from persist_core.location.blob import Blob
from persist_core.sealed import seal, sealed_digest, unseal

SPEC_VERSION = 1
_SEAL = "job_spec"
KEY_OPTION, DIGEST_OPTION = "--spec-key", "--spec-sha256"
SPEC, RECORDS = "spec.json", "records.jsonl"
SMALL_INPUT_BYTES = 64 << 20  # up to here the JVM's start-up costs more than its better compiler would win


class MergeInputs(BaseModel):
    """The input of a merge job: neighbors of the shard `name`, by the digests of their manifests, oldest first; and how
    many bytes a step of it may rewrite."""

    model_config = ConfigDict(frozen=True)

    name: str
    inputs: tuple[str, ...]
    budget_bytes: int


# field -> what it holds
_KINDS: dict[str, type[ShardConfig] | type[MergeInputs]] = {
    "collection": CollectionConfig,
    "view": ViewConfig,
    "compact": MergeInputs,
}


@dataclass(frozen=True)
class JobSpec:
    """One item of a job, and one attempt: which description, of which collection or view, under which id (a UUIDv7).

    Of a merge, the description says the bounds and the bytes of its inputs.

    `dry_run_as_of` is set for a read-only refresh of a view: the job reports what a refresh at that time would write,
    in `keys.dry_run_key`, and stages nothing. `is_sample`: the job also leaves what it has decoded, as lines of JSON
    under `key_of(RECORDS)` (`persist preview`).
    """

    description: BatchDescription
    config: ShardConfig | MergeInputs
    attempt: str
    dry_run_as_of: int | None = None
    is_sample: bool = False

    @property
    def key(self) -> str:
        """The key of the spec while its job runs."""
        return self.key_of(SPEC)

    @property
    def answer_key(self) -> str:
        """The key of the job's answer: the manifest, or the report of a dry run."""
        key = manifest_key if self.dry_run_as_of is None else dry_run_key
        return key(self.description.shard, self.attempt)

    def key_of(self, name: str) -> str:
        """The key of what the job, or its starter, stores as `name`."""
        return job_key(self.description.shard, self.description.lower, self.attempt, name)

    @property
    def collection(self) -> CollectionConfig:
        """The collection. Raises `InvalidInput` if the spec is a view's."""
        if isinstance(self.config, CollectionConfig):
            return self.config
        raise InvalidInput(f"job spec of {self.config.name}: found a {_kind_of(self.config)}, expected a collection")

    @property
    def spark_conf(self) -> Mapping[str, str]:
        """Spark settings that the shard's file asks for. A merge has none: it does not know the file."""
        return {} if isinstance(self.config, MergeInputs) else self.config.spark_conf

    @property
    def input_uris(self) -> tuple[str, ...]:
        """The places at which the job reads files."""
        return () if isinstance(self.config, MergeInputs) else self.config.input_uris

    def encode(self) -> bytes:
        """Sealed JSON. Keys are not sorted: the order of a collection's columns is the order in its file."""
        body: dict[str, Any] = {
            "description": self.description.to_json(),
            _kind_of(self.config): self.config.model_dump(mode="json"),
            "attempt": self.attempt,
            "dry_run_as_of": self.dry_run_as_of,
            "is_sample": self.is_sample,
        }
        return seal(_SEAL, SPEC_VERSION, body, sort_keys=False)

    @classmethod
    def decode(cls, data: bytes, what: str = "a job's spec") -> JobSpec:
        """The inverse of `encode`. Raises `CorruptArtifact`, `UnknownVersion`; `what` names the bytes."""
        body = unseal(data, kind=_SEAL, version=SPEC_VERSION, what=what)
        return cls(
            description=BatchDescription.from_json(body["description"]),
            config=next(model.model_validate(body[kind]) for kind, model in _KINDS.items() if kind in body),
            attempt=body["attempt"],
            dry_run_as_of=body["dry_run_as_of"],
            is_sample=body["is_sample"],
        )


@contextmanager
def stored(blob: Blob, spec: JobSpec) -> Iterator[list[str]]:
    """Store the spec while the body runs its job; the job's arguments.

    The spec is deleted afterwards: the description and the collection's file hold the same, and a long chain of
    operator state makes it large. A killed starter leaves it behind, which `spark_job.deaths` takes for a death.
    """
    data = spec.encode()
    blob.set(spec.key, data)
    try:
        yield [KEY_OPTION, spec.key, DIGEST_OPTION, sealed_digest(data)]
    finally:
        with suppress(StorageError):  # the answer counts; a spec that stays is garbage
            blob.delete(spec.key)


def load_spec(blob: Blob, argv: Sequence[str]) -> JobSpec:
    """The spec that the arguments of `stored` name.

    Raises `InvalidInput` for other arguments, `CorruptArtifact` if the spec is missing or its digest differs.
    """
    if len(argv) != 4 or (argv[0], argv[2]) != (KEY_OPTION, DIGEST_OPTION):
        raise InvalidInput(
            f"job arguments: found {len(argv)} arguments; expected {KEY_OPTION} KEY {DIGEST_OPTION} HEX. The write task"
            " and `persist run` start this job; it is not meant to be started by hand"
        )
    key, expected = argv[1], argv[3]
    data = blob.get(key)
    if data is None:
        raise CorruptArtifact(f"job spec {key}: not found in {blob.uri}; run the write task again")
    found = sealed_digest(data)
    if found != expected:
        raise CorruptArtifact(f"job spec {key}: found sha256 {found}, expected {expected}; run the write task again")
    return JobSpec.decode(data, what=key)


def _kind_of(config: ShardConfig | MergeInputs) -> str:
    return next(kind for kind, model in _KINDS.items() if isinstance(config, model))
