"""Batches whose input Spark can't read as it is, as a separate driver for `spark-submit`.

input_job.py FOLDER BLOB_URI...    ->  the last line of output: by location, what the batch holds and what is left
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import zstandard
from pyspark.sql import SparkSession

from persist_core.config.collection import CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_spark.decode import files
from tests.spark.test_write_job import DAY_MS, Collection

MIB = 1 << 20


def run(spark: SparkSession, folder: Path, uri: str) -> dict[str, Any]:
    """One batch: a record that is too long, zstd that is taken for foreign, a name with a colon."""
    things = Collection(folder)
    things.location = open_location(PersistLocation(uri, f"sqlite:///{folder}/consensus.db"))
    things.client = PersistClient(things.location)
    body = things.config.model_dump(mode="json")
    body["source"]["path"], body["limits"] = "in/*", {"max_record_bytes": MIB, "max_errors": 1}
    things.config = CollectionConfig.model_validate(body)
    lines = [json.dumps({"id": n, "name": f"{n}" * (2 * MIB if n == 2 else 1), "at": 5}).encode() for n in range(5)]
    (things.folder / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines[:3])))
    (things.folder / "in" / "b.jsonl.zst").write_bytes(zstandard.compress(lines[3]))
    (things.folder / "in" / "c:d.jsonl").write_bytes(lines[4])
    with mock.patch.object(files, "READS_ZSTD_TEXT", new=False):
        stats = things.run(spark, DAY_MS)
    left = [entry.key for entry in things.location.blob.list_keys_and_metadata("things/jobs/")]
    return {"names": things.names(), "errors": stats["errors"], "left": left}


def main(folder: str, *uris: str) -> None:
    """One session, one location after the other."""
    spark = SparkSession.builder.appName("input").getOrCreate()
    found = []
    for number, uri in enumerate(uris):
        here = Path(folder, str(number))
        here.mkdir()
        found.append(run(spark, here, uri))
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
