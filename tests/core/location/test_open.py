"""The store that each URI opens, and which URIs are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from persist_airflow.provider import FORM_FIELDS, PLACEHOLDERS
from persist_core.errors import InvalidUri
from persist_core.location import (
    FileBlob,
    MemBlob,
    PersistLocation,
    SqliteConsensus,
    VersionedData,
    open_blob,
    open_consensus,
    open_location,
)


def test_every_uri_that_the_connection_form_offers_is_opened() -> None:
    for field, opens in (("blob_uri", open_blob), ("consensus_uri", open_consensus)):
        offered = re.findall(r"\b[a-z0-9]+:[^\s,()]+", FORM_FIELDS[field]["description"])
        assert len(offered) >= 3
        for uri in (*offered, PLACEHOLDERS[field]):
            opens(uri).close()


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE:///a/b/", "/a/b"),
        ("file:///a%20b/%2541%23%3F", "/a b/%41#?"),
        ("file:///a b", "/a b"),
        ("file:///caf%C3%A9", "/caf\u00e9"),
    ],
)
def test_file_uris(uri: str, root: str) -> None:
    blob = open_blob(uri)
    assert isinstance(blob, FileBlob)
    assert blob.path_of("k") == Path(root) / "k"
    again = open_blob(blob.uri)
    assert isinstance(again, FileBlob)
    assert again.path_of("k") == blob.path_of("k")
    assert not Path(root).exists()


def test_sqlite_uris_are_read_as_sqlalchemy_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for uri, path in [
        (f"sqlite:///{tmp_path}/x.db", tmp_path / "x.db"),
        ("sqlite:////a/x%20y.db", Path("/a/x y.db")),
        ("sqlite:///x.db", tmp_path / "x.db"),
        ("sqlite:///a/b.db", tmp_path / "a" / "b.db"),
    ]:
        consensus = open_consensus(uri)
        assert isinstance(consensus, SqliteConsensus)
        assert consensus.path == path
        again = open_consensus(consensus.uri)
        assert isinstance(again, SqliteConsensus)
        assert again.path == path


def test_file_keys_are_spark_paths(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path / "a b")
    assert blob.uri_of("s/day=2024-01-01 00%3A00/x") == f"file://{tmp_path}/a b/s/day=2024-01-01 00%3A00/x"


def test_mem_uris_share_by_name_only() -> None:
    open_blob("mem:t-open").set("k", b"x")
    open_consensus("mem:t-open").compare_and_set("k", None, VersionedData(0, b"x"))
    assert open_blob("mem:t-open").get("k") == b"x"
    assert open_consensus("mem:t-open").head("k") == VersionedData(0, b"x")
    assert open_blob("mem:t-other").get("k") is None
    private = open_blob("mem:")
    private.set("k", b"x")
    assert open_blob("mem:").get("k") is None
    assert MemBlob("x").uri == "mem:x"


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "no scheme; expected one of file:, mem:, s3:"),
        ("/a/b", "no scheme; expected one of file:, mem:, s3:"),
        ("a/b", "no scheme"),
        ("ftp://h/a", "unknown scheme 'ftp'; expected one of file:, mem:, s3:"),
        ("sqlite:////x.db", "unknown scheme 'sqlite'; expected one of file:, mem:, s3:"),
        ("file:///a?mode=rw&x=", "unknown query parameter mode, x; file: takes none"),
        ("file:///a?", "unknown query parameter (none)"),
        ("file:///a?b=%zz", "unknown query parameter b"),
        ("mem:?a=1", "unknown query parameter a; mem: takes none"),
        ("file:///a#b", "write '#' as %23"),
        ("file:///a%2", "'%' that starts no escape; write it as %25"),
        ("file:///a%zz", "'%' that starts no escape"),
        ("file:///%ff", "not UTF-8"),
        ("file:///a%00b", "control character"),
        ("file:///a\nb", "control character"),
        ("file:///a ", "ends with white space; remove it"),
        ("file:///a%20[1]/b:c", "with ':' and one of *?[]{}\\ Spark cannot read it"),
        ("file://host/a", "absolute folder on this machine"),
        ("file://a", "absolute folder"),
        ("file:a", "absolute folder"),
        ("file:", "absolute folder"),
        ("file:////host/a", "absolute folder"),
        ("file:///", "root of the file system cannot be a location"),
        ("file:///a/../b", "'..' is not allowed"),
        ("file:///a/%2e%2e/b", "'..' is not allowed"),
        ("mem:a/b", "expected mem: or mem:name"),
        ("mem://a", "expected mem: or mem:name"),
    ],
)
def test_blob_uris_that_are_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        open_blob(uri)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("file:///a", "unknown scheme 'file'; expected one of mem:, postgres:, postgresql:, s3:, sqlite:"),
        ("postgresql://u:hunter2@h/db?sslmod=require&x=1", "unknown query parameter sslmod, x; postgresql: takes appl"),
        ("postgresql://u:hunter2@h/db?schema=a&schema=b", "query parameter schema is given more than once"),
        ("postgresql://u:hunter2@h/db?client_encoding=latin1", "unknown query parameter client_encoding"),
        ("postgresql://u:hunter2@h/db?replication=true", "unknown query parameter replication"),
        ("postgresql://u:hunter2@h/db?target_session_attrs=any", "expected primary or read-write: a standby lags"),
        ("postgresql://u:hunter2@h/db?schema=a.b", "schema is 'a.b'; expected 1 to 50 of A-Z"),
        ("postgresql://u:hunter2@h/db?table=1a", "table is '1a'; expected 1 to 50"),
        ("postgresql://u:hunter2@h/db?schema=", "schema is ''; expected 1 to 50"),
        ("postgresql://u:hunter2@h/db?table=" + "t" * 51, "expected 1 to 50"),
        ("postgresql://u:hunter2@h/db?statement_timeout_ms=99", "expected an integer in [100, 3600000]"),
        ("postgresql://u:hunter2@h/db?statement_timeout_ms=1e3", "expected an integer in [100, 3600000]"),
        ("postgresql://u:hunter2@h/db?connect_timeout=%zz", "'%' that starts no escape"),
        ("postgresql://u:hunter2@h/db#x", "fragment"),
        ("sqlite:////a.db\n", "ends with white space"),
        ("postgresql://u:p@hunter2@h/db", "in a user name, password or parameter write @ as %40"),
        ("postgresql://u:8/hunter2@h/db", "write @ as %40, / as %2F"),
        ("postgresql://u:8?hunter2=1@h/db", "write @ as %40, / as %2F, ? as %3F"),
        ("postgresql:u:hunter2@h/db", "expected postgresql://user:password@host:port/database"),
        ("postgresql://u:hunter2@[h/db", "libpq cannot parse it"),
        ("sqlite:///a.db?timeout=3", "unknown query parameter timeout; sqlite: takes none"),
        ("sqlite:a.db", "expected sqlite:////absolute/file.db or sqlite:///relative/file.db"),
        ("sqlite://a.db", "expected sqlite:////absolute"),
        ("sqlite://", "expected sqlite:////absolute"),
        ("sqlite:///", "expected a database file"),
        ("sqlite:////a/", "expected a database file"),
        ("sqlite:///:memory:", "expected a database file; for a store in memory use mem:"),
    ],
)
def test_consensus_uris_that_are_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        open_consensus(uri)
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(InvalidUri, match="is a file"):
        open_blob(f"file://{tmp_path}/x")


def test_open_location(tmp_path: Path) -> None:
    location = PersistLocation(f"file://{tmp_path}/b", f"sqlite:///{tmp_path}/c.db")
    with open_location(location) as opened:
        opened.blob.set("k", b"x")
        opened.consensus.compare_and_set("k", None, VersionedData(0, b"x"))
    with open_location(location) as opened:
        assert opened.blob.get("k") == b"x"
        assert opened.consensus.head("k") == VersionedData(0, b"x")


@pytest.mark.parametrize(("blob", "consensus"), [("nope:", "mem:"), ("mem:", "nope:")])
def test_open_location_refuses_either_half(blob: str, consensus: str) -> None:
    with pytest.raises(InvalidUri, match="nope"):
        open_location(PersistLocation(blob, consensus))
