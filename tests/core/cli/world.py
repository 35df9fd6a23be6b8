"""The world of tests of the command line: a location, a collection, and a stand-in for `spark-submit`."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.launch import write_batch
from persist_core.spark_job.process import SparkProcess
from tests.one_run import run_one
from tests.servers.backends import blob_uri_beside

UNTIL = 1_000
STAND_IN = Path(__file__).with_name("stand_in_spark_submit.py")


class World:
    """A location, a collection with its drop folder, and a stand-in for Spark."""

    def __init__(self, folder: Path, consensus_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.drops = folder / "in"
        self.drops.mkdir()
        self.notes = folder / "notes"
        self.location = PersistLocation(blob_uri_beside(consensus_uri, folder / "blobs"), consensus_uri)
        self.client = PersistClient(open_location(self.location))
        home = folder / "spark" / "bin"
        home.mkdir(parents=True)
        script = home / "spark-submit"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "$@"\n')
        script.chmod(0o755)
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("SPARK_HOME", str(folder / "spark"))
        monkeypatch.setenv("STAND_IN_NOTES", str(self.notes))
        for name, value in self.location.to_env().items():
            monkeypatch.setenv(name, value)
        self.spark_will("stage")

    def spark_will(self, do: str, kind: str = "") -> None:
        self._monkeypatch.setenv("STAND_IN", do)
        self._monkeypatch.setenv("STAND_IN_KIND", kind)

    def drop(self, name: str, *ids: int) -> None:
        (self.drops / name).write_text("".join(f"{i}\n" for i in ids))

    def write_config(self, **fields: Any) -> Path:
        source = {"path": "in/*.txt", "format": "json"}
        body = {"source": source, "key": "id", "columns": {"id": "bigint"}, "delete": "none"}
        path = self.folder / "orders.yaml"
        path.write_text(json.dumps({**body, **fields}))
        return path

    def config(self, **fields: Any) -> CollectionConfig:
        return load_collection(self.write_config(**fields))

    def run(self, config: CollectionConfig, until: int | None = UNTIL, **settings: Any) -> Any:
        spark = SparkProcess(self.location, "local[1]", **settings)
        said: list[str] = []
        write = functools.partial(write_batch, self.client, spark, config)
        return run_one(self.client, config, until=until, write=write, say=said.append)

    def ids(self, as_of: int | None = None) -> list[int]:
        return sorted(self.client.open_reader("orders").snapshot(as_of)["id"].to_pylist())

    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []


@pytest.fixture
def world(tmp_path: Path, consensus_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """See `World`."""
    made = World(tmp_path, consensus_uri, monkeypatch)
    yield made
    made.client.location.close()
