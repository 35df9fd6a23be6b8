"""`persist copy` on the command line: the commands of the documents, as they stand there, and what it prints."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persist_core.cli.main import run_command
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.core.world import SCHEMA
from tests.plain_commit import commit
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server

DOCS = Path(__file__).parents[3] / "docs"
SHARDS = ("customers", "orders", "orders_by_status")


def commands_of(document: str, heading: str) -> list[str]:
    """Lines of consoles in a section, and the command of its DAG."""
    section = (DOCS / document).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(?:console|python)\n(.*?)```", section, re.DOTALL)
    return [
        line
        for block in blocks
        for line in re.findall(r"^(?:persist|export) .*$|(?<=bash_command=\").*(?=\")", block, re.MULTILINE)
    ]


class Places:
    """The locations that the documents name, as real ones."""

    def __init__(self, folder: Path, gateway: S3Server, server: PostgresServer) -> None:
        self.uris = {
            "s3://backup/tables": gateway.new_uri("backup"),
            "s3://tables/prod": gateway.new_uri("prod"),
            "s3://new/tables": gateway.new_uri("new"),
            "postgresql://persist@db/persist": server.uri(schema=server.new_schema()),
            "postgresql://persist@db/new": server.uri(schema=server.new_schema()),
            "file:///srv/test/blobs": f"file://{folder}/test/blobs",
            "sqlite:////srv/test/consensus.db": f"sqlite:///{folder}/test/consensus.db",
        }
        (folder / "test").mkdir()

    def run(self, line: str, environment: pytest.MonkeyPatch) -> int:
        """A line of a document; the exit code."""
        first, *words = (self.uris.get(word, word) for word in shlex.split(line))
        if first != "export":
            return run_command(words)
        for word in words:
            name, _, uri = word.partition("=")
            environment.setenv(name, self.uris[uri])
        return 0

    def client(self, blob: str, consensus: str) -> PersistClient:
        """One that the documents name."""
        return PersistClient(open_location(PersistLocation(self.uris[blob], self.uris[consensus])))


@pytest.fixture
def places(tmp_path: Path, versitygw: S3Server, postgres: PostgresServer) -> Places:
    return Places(tmp_path, versitygw, postgres)


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PersistClient]:
    """A folder and SQLite, which the environment names."""
    location = PersistLocation(f"file://{tmp_path}/blobs", f"sqlite:///{tmp_path}/consensus.db")
    for name, value in location.to_env().items():
        monkeypatch.setenv(name, value)
    with open_location(location) as opened:
        client = PersistClient(opened)
        for shard in SHARDS:
            grow(client, shard)
        yield client


def grow(client: PersistClient, shard: str) -> None:
    upper = client.ensure_shard(shard).upper.time or 0
    commit(client, shard, SCHEMA, upper + 10, [((upper, shard), upper, 1)])


def rows(client: PersistClient) -> dict[str, Any]:
    return {shard: sorted(map(repr, client.open_reader(shard).snapshot().to_pylist())) for shard in SHARDS}


def test_outgrow_the_laptop(laptop: PersistClient, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, move = commands_of("deploy.md", "Moving a location")
    assert places.run(copy, monkeypatch) == 0
    grow(laptop, "orders")
    assert places.run(move, monkeypatch) == 0
    new = places.client("s3://tables/prod", "postgresql://persist@db/persist")
    assert rows(new) == rows(laptop)
    for shard in SHARDS:
        grow(new, shard)
        with pytest.raises(Exception, match="was moved to blob s3://"):
            grow(laptop, shard)
    new.location.close()


def test_back_up_every_night_and_restore_after_a_loss(
    laptop: PersistClient, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, nightly, export, restore, fsck = commands_of("deploy.md", "Backup and restore")
    assert first == nightly
    for line in (first, nightly, nightly):
        assert places.run(line, monkeypatch) == 0
        lost = rows(laptop)
        grow(laptop, "customers")
    for line in (export, restore, fsck):
        assert places.run(line, monkeypatch) == 0
    new = places.client("s3://new/tables", "postgresql://persist@db/new")
    assert rows(new) == lost
    grow(new, "customers")
    new.location.close()
    monkeypatch.setenv("PERSIST_BLOB_URI", places.uris["s3://new/tables"])
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", places.uris["postgresql://persist@db/new"])
    assert places.run(nightly, monkeypatch) == 0, "the new location goes on into the same backup"


def test_data_for_a_test(laptop: PersistClient, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    backup, test = commands_of("operations.md", "Copies of a location")
    for line in (backup, test, test):
        assert places.run(line, monkeypatch) == 0
    copy = places.client("file:///srv/test/blobs", "sqlite:////srv/test/consensus.db")
    assert copy.shards() == ["orders", "orders_by_status"]
    assert copy.open_reader("orders").snapshot() == laptop.open_reader("orders").snapshot()
    copy.location.close()


@pytest.mark.parametrize("damaged", SHARDS)
def test_a_damaged_state_stops_only_the_copy_of_its_shard(
    damaged: str, laptop: PersistClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "consensus.db")) as database, database:
        database.execute("UPDATE consensus SET data = x'00' WHERE key = ?", (damaged,))
    to = ["--to-blob-uri", f"file://{tmp_path}/b", "--to-consensus-uri", f"sqlite:///{tmp_path}/b.db"]
    assert run_command(["copy", *to, "--json"]) == 4
    printed = capsys.readouterr()
    assert {json.loads(line)["shard"] for line in printed.out.splitlines()} == {*SHARDS} - {damaged}
    assert f"the state of shard {damaged} is damaged" in printed.err
    assert laptop.shards() == sorted(SHARDS)


def test_it_prints_what_it_did_and_goes_on_after_a_refusal(
    laptop: PersistClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ["--to-blob-uri", f"file://{tmp_path}/b", "--to-consensus-uri", f"sqlite:///{tmp_path}/b.db"]
    assert run_command(["copy", *to, "--json"]) == 0
    done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {each["shard"] for each in done} == set(SHARDS)
    assert all(each["is_new"] and each["objects"] == 2 for each in done)
    with open_location(PersistLocation(to[1], to[3])) as opened:
        grow(PersistClient(opened), "customers")
    for shard in SHARDS:
        grow(laptop, shard)
    assert run_command(["copy", *to]) == 2
    printed = capsys.readouterr()
    assert "has commits or erasures that the shard to be copied does not have" in printed.err
    assert re.search(r"orders_by_status .* copied .* 2 ", printed.out)
    assert run_command(["copy", *to, "nothing"]) == 3
    assert run_command(["copy", "--to-blob-uri", f"file://{tmp_path}/blobs", *to[2:], "orders"]) == 2
    assert "are one blob store, or lie in one another" in capsys.readouterr().err
