"""What a spark-submit job is told, and how it answers. The meeting point of persist_airflow and persist_spark.

    JobSpec -> argv -> spark-submit -> the job -> <attempt>/manifest.json (exit 0) or <attempt>/failure.json (exit != 0)

    --spec JSON            readable in logs and process lists
    --spec-zlib BASE64     the same, compressed, where it would be too long for one argument (thousands of columns)

The location is not on argv: it is handed over in the environment (`PERSIST_BLOB_URI`, `PERSIST_CONSENSUS_URI`), since
argv is visible to every user of a machine.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.errors import InvalidInput
from persist_core.shard.batch import BatchDescription

SPEC_VERSION = 1
PLAIN_BYTES = 32 << 10  # longer specs are compressed
MAX_ARGUMENT_BYTES = 128 << 10  # what Linux takes as one argument (MAX_ARG_STRLEN), its closing NUL included
_MAX_SPEC_BYTES = 64 << 20  # unpacked
_KINDS: dict[str, type[ShardConfig]] = {
    "collection": CollectionConfig,
    "view": ViewConfig,
}  # a spec's field -> what it holds


@dataclass(frozen=True)
class JobSpec:
    """One write attempt: which description, of which collection or view, under which attempt id (a UUIDv7).

    `trial_as_of` is set where a view is only tried: the job then says what a refresh at that time would write, in
    `batch.trial_key`, and stages nothing.
    """

    description: BatchDescription
    config: ShardConfig
    attempt: str
    trial_as_of: int | None = None

    @property
    def collection(self) -> CollectionConfig:
        """The collection; `InvalidInput` where the spec is another kind's."""
        if isinstance(self.config, CollectionConfig):
            return self.config
        raise InvalidInput(f"job spec of {self.config.name}: found a {_kind_of(self.config)}, wanted a collection")

    def to_argv(self) -> list[str]:
        """Two arguments: see the module's docstring. Raises `InvalidInput` where the spec is too long even packed."""
        body: dict[str, Any] = {
            "version": SPEC_VERSION,
            "description": self.description.to_json(),
            _kind_of(self.config): self.config.model_dump(mode="json"),
            "attempt": self.attempt,
        }
        if self.trial_as_of is not None:
            body["trial_as_of"] = self.trial_as_of
        # Keys are not sorted: the order of a collection's columns is that of its file
        text = json.dumps(body, separators=(",", ":"))
        if len(text) <= PLAIN_BYTES:
            return ["--spec", text]
        packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")
        if len(packed) >= MAX_ARGUMENT_BYTES:
            raise InvalidInput(
                f"{_kind_of(self.config)} {self.config.name}: the job's spec takes {len(packed)} bytes packed; an"
                f" argument holds less than {MAX_ARGUMENT_BYTES}. Split it, or shorten the names of its columns"
            )
        return ["--spec-zlib", packed]

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> JobSpec:
        """The inverse of `to_argv`."""
        if len(argv) != 2 or argv[0] not in ("--spec", "--spec-zlib"):
            raise InvalidInput(f"job arguments: wanted --spec JSON or --spec-zlib TEXT, found {len(argv)} arguments")
        body = json.loads(argv[1] if argv[0] == "--spec" else _unpacked(argv[1]))
        if body.get("version") != SPEC_VERSION:
            raise InvalidInput(f"job spec version {body.get('version')!r}; this release reads {SPEC_VERSION}")
        return cls(
            description=BatchDescription.from_json(body["description"]),
            config=next(model.model_validate(body[kind]) for kind, model in _KINDS.items() if kind in body),
            attempt=body["attempt"],
            trial_as_of=body.get("trial_as_of"),
        )


def _kind_of(config: ShardConfig) -> str:
    return next(kind for kind, model in _KINDS.items() if isinstance(config, model))


def _unpacked(text: str) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), _MAX_SPEC_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise InvalidInput(f"job arguments: --spec-zlib can't be unpacked: {error}") from error
    if not unpacker.eof:
        raise InvalidInput(f"job arguments: --spec-zlib is cut off, or more than {_MAX_SPEC_BYTES} bytes unpacked")
    return data
