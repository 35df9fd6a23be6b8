"""What a spark-submit job is told, and how it answers. The meeting point of persist_airflow and persist_spark.

    JobSpec -> argv -> spark-submit -> the job -> <attempt>/manifest.json (exit 0) or <attempt>/failure.json (exit != 0)

The location is not on argv: it is handed over in the environment (`PERSIST_BLOB_URI`, `PERSIST_CONSENSUS_URI`), since
argv is visible to every user of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from persist_core.batch import BatchDescription
from persist_core.config import CollectionConfig
from persist_core.errors import InvalidInput

SPEC_VERSION = 1


@dataclass(frozen=True)
class JobSpec:
    """One write attempt: which description, of which collection, under which attempt id (a UUIDv7)."""

    description: BatchDescription
    collection: CollectionConfig
    attempt: str

    def to_argv(self) -> list[str]:
        """`["--spec", <json>]`."""
        body: dict[str, Any] = {
            "version": SPEC_VERSION,
            "description": self.description.to_json(),
            "collection": self.collection.model_dump(mode="json"),
            "attempt": self.attempt,
        }
        # Keys are not sorted: the order of a collection's columns is that of its file
        return ["--spec", json.dumps(body, separators=(",", ":"))]

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> JobSpec:
        """The inverse of `to_argv`."""
        if len(argv) != 2 or argv[0] != "--spec":
            raise InvalidInput(f"job arguments: wanted --spec JSON, found {len(argv)} arguments")
        body = json.loads(argv[1])
        if body.get("version") != SPEC_VERSION:
            raise InvalidInput(f"job spec version {body.get('version')!r}; this release reads {SPEC_VERSION}")
        return cls(
            description=BatchDescription.from_json(body["description"]),
            collection=CollectionConfig.model_validate(body["collection"]),
            attempt=body["attempt"],
        )
