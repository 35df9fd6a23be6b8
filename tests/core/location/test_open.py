"""URIs, redaction, and where a location comes from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist_core.errors import ConfigError, InvalidUri
from persist_core.location import (
    FileBlob,
    MemBlob,
    PersistLocation,
    SqliteConsensus,
    VersionedData,
    location_from,
    open_blob,
    open_consensus,
    open_location,
    redact_uri,
)
from persist_core.location.mem import forget_mem

BLOB, CONSENSUS = "file:///blobs", "sqlite:////consensus.db"


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
    forget_mem("t-open")
    assert open_blob("mem:t-open").get("k") is None
    assert open_consensus("mem:t-open").head("k") is None
    assert MemBlob("x").uri == "mem:x"


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "no scheme; wanted one of file:, mem:, s3:"),
        ("/a/b", "no scheme; wanted one of file:, mem:, s3:"),
        ("a/b", "no scheme"),
        ("ftp://h/a", "unknown scheme 'ftp'; wanted one of file:, mem:, s3:"),
        ("sqlite:////x.db", "unknown scheme 'sqlite'; wanted one of file:, mem:, s3:"),
        ("file:///a?mode=rw&x=", "unknown query parameter mode, x; file: takes none"),
        ("file:///a?", "unknown query parameter (none)"),
        ("file:///a?b=%zz", "unknown query parameter b"),
        ("mem:?a=1", "unknown query parameter a; mem: takes none"),
        ("file:///a#b", "write '#' as %23"),
        ("file:///a%2", "bare '%'; write it as %25"),
        ("file:///a%zz", "bare '%'"),
        ("file:///%ff", "not UTF-8"),
        ("file:///a%00b", "control character"),
        ("file:///a\nb", "control character"),
        ("file://host/a", "absolute folder on this machine"),
        ("file://a", "absolute folder"),
        ("file:a", "absolute folder"),
        ("file:", "absolute folder"),
        ("file:////host/a", "absolute folder"),
        ("file:///", "root can't be a location"),
        ("file:///a/../b", "'..' is not allowed"),
        ("file:///a/%2e%2e/b", "'..' is not allowed"),
        ("mem:a/b", "wanted mem: or mem:name"),
        ("mem://a", "wanted mem: or mem:name"),
    ],
)
def test_blob_uris_that_are_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        open_blob(uri)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("file:///a", "unknown scheme 'file'; wanted one of mem:, postgres:, postgresql:, s3:, sqlite:"),
        ("postgresql://u:hunter2@h/db?sslmod=require&x=1", "unknown query parameter sslmod, x; postgresql: takes appl"),
        ("postgresql://u:hunter2@h/db?schema=a&schema=b", "query parameter schema is given more than once"),
        ("postgresql://u:hunter2@h/db?client_encoding=latin1", "unknown query parameter client_encoding"),
        ("postgresql://u:hunter2@h/db?replication=true", "unknown query parameter replication"),
        ("postgresql://u:hunter2@h/db?target_session_attrs=any", "wanted primary or read-write: a standby shows"),
        ("postgresql://u:hunter2@h/db?schema=a.b", "schema is 'a.b'; wanted 1 to 50 of A-Z"),
        ("postgresql://u:hunter2@h/db?table=1a", "table is '1a'; wanted 1 to 50"),
        ("postgresql://u:hunter2@h/db?schema=", "schema is ''; wanted 1 to 50"),
        ("postgresql://u:hunter2@h/db?table=" + "t" * 51, "wanted 1 to 50"),
        ("postgresql://u:hunter2@h/db?statement_timeout_ms=99", "wanted an integer in [100, 3600000]"),
        ("postgresql://u:hunter2@h/db?statement_timeout_ms=1e3", "wanted an integer in [100, 3600000]"),
        ("postgresql://u:hunter2@h/db?connect_timeout=%zz", "bare '%'"),
        ("postgresql://u:hunter2@h/db#x", "fragment"),
        ("postgresql://u:p@hunter2@h/db", "in a user name, password or parameter write @ as %40"),
        ("postgresql://u:8/hunter2@h/db", "write @ as %40, / as %2F"),
        ("postgresql://u:8?hunter2=1@h/db", "write @ as %40, / as %2F, ? as %3F"),
        ("postgresql:u:hunter2@h/db", "wanted postgresql://user:password@host:port/database"),
        ("postgresql://u:hunter2@[h/db", "libpq can't read it"),
        ("sqlite:///a.db?timeout=3", "unknown query parameter timeout; sqlite: takes none"),
        ("sqlite:a.db", "wanted sqlite:////absolute/file.db or sqlite:///relative/file.db"),
        ("sqlite://a.db", "wanted sqlite:////absolute"),
        ("sqlite://", "wanted sqlite:////absolute"),
        ("sqlite:///", "wanted a database file"),
        ("sqlite:////a/", "wanted a database file"),
        ("sqlite:///:memory:", "wanted a database file; for a store in memory use mem:"),
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


# redaction


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://user:pw@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql://user@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p@ss@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p/w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p?w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:p#w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:8/w@host/db", "postgresql://***@host/db"),
        ("postgresql://u:8@a/b@host/db?password=x", "postgresql://***@host/db?password=***"),
        ("postgresql:u:pw@host/db", "postgresql:***@host/db"),
        ("Postgres:/u:pw@host/db", "Postgres:/***@host/db"),
        ("s3://host:9000/pre@fix", "s3://***@fix"),
        ("//u:pw@host", "//***@host"),
        ("s3://bucket/pre@fix", "s3://bucket/pre@fix"),
        ("s3://b/p?endpoint=h&secret_access_key=x&Password=y&token=", "s3://b/p?endpoint=h&secret_access_key=***&Password=***&token="),
        ("postgresql://host:5432/db?sslmode=require", "postgresql://host:5432/db?sslmode=require"),
        ("file:///home/me@work/x", "file:///home/me@work/x"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("mem:x", "mem:x"),
        ("", ""),
    ],
)  # fmt: skip
def test_redacted_uris(uri: str, shown: str) -> None:
    assert redact_uri(uri) == shown


@given(
    password=st.text("Q1:/?#@&=\\% \n\u00e9", min_size=1).map(lambda text: f"{text}Q"),
    scheme=st.sampled_from(["postgresql", "s3", "x+y", ""]),
    user=st.sampled_from(["me", ""]),
)
def test_a_password_is_never_shown_whatever_it_holds(password: str, scheme: str, user: str) -> None:
    uri = f"{scheme}:" * bool(scheme) + f"//{user}:{password}@host/db"
    assert redact_uri(uri).endswith("***@host/db")
    assert "Q" not in redact_uri(uri)
    location = PersistLocation(uri, uri)
    assert "Q" not in f"{location!r} {location}"
    try:
        with closing(open_consensus(uri)) as consensus:
            shown = f"{consensus!r} {consensus.uri}"
    except InvalidUri as error:
        shown = str(error)
    assert "Q" not in shown


def test_a_location_prints_redacted_and_hands_over_whole() -> None:
    location = PersistLocation("s3://b/p?token=t0p", "postgresql://u:t0p@h/db")
    assert "t0p" not in repr(location) + str(location)
    assert repr(location) == ("PersistLocation(blob_uri='s3://b/p?token=***', consensus_uri='postgresql://***@h/db')")
    assert location.to_env() == {"PERSIST_BLOB_URI": location.blob_uri, "PERSIST_CONSENSUS_URI": location.consensus_uri}
    assert location == PersistLocation(location.blob_uri, location.consensus_uri)


# open_location


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


# location_from


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PERSIST_BLOB_URI", raising=False)
    monkeypatch.delenv("PERSIST_CONSENSUS_URI", raising=False)
    return tmp_path


def write_config(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"blob_uri = 'mem:{name}'\nconsensus_uri = 'mem:{name}'\n")


def test_nothing_configured(home: Path) -> None:
    assert home.is_dir()
    with pytest.raises(ConfigError) as caught:
        location_from()
    for wanted in ("PERSIST_BLOB_URI", "PERSIST_CONSENSUS_URI", "persist.toml", "blob_uri"):
        assert wanted in str(caught.value)


def test_the_nearest_setting_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home / "home/.config/persist/config.toml", "home")
    assert location_from() == PersistLocation("mem:home", "mem:home")
    write_config(home / "work/persist.toml", "work")
    assert location_from() == PersistLocation("mem:work", "mem:work")
    write_config(home / "named.toml", "named")
    assert location_from(config_file=home / "named.toml") == PersistLocation("mem:named", "mem:named")
    monkeypatch.setenv("PERSIST_BLOB_URI", "mem:env")
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", "mem:env2")
    assert location_from() == PersistLocation("mem:env", "mem:env2")
    assert location_from(env={"HOME": str(home / "home")}) == PersistLocation("mem:work", "mem:work")
    assert location_from("mem:a", "mem:b") == PersistLocation("mem:a", "mem:b")


def test_an_empty_variable_is_none(home: Path) -> None:
    write_config(home / "work/persist.toml", "work")
    env = {"PERSIST_BLOB_URI": "", "PERSIST_CONSENSUS_URI": ""}
    assert location_from(env=env) == PersistLocation("mem:work", "mem:work")


@pytest.mark.parametrize(
    ("arguments", "env", "config", "says"),
    [
        ((BLOB, None), {}, "", "blob_uri is given but consensus_uri is not"),
        ((None, CONSENSUS), {}, "", "consensus_uri is given but blob_uri is not"),
        ((None, None), {"PERSIST_BLOB_URI": BLOB}, "", "PERSIST_BLOB_URI is given but PERSIST_CONSENSUS_URI is not"),
        ((None, None), {"PERSIST_CONSENSUS_URI": CONSENSUS}, "", "PERSIST_CONSENSUS_URI is given but PERSIST_BLOB_URI"),
        ((None, None), {}, f"blob_uri = '{BLOB}'", "persist.toml: blob_uri is given but consensus_uri is not"),
    ],
)
def test_half_a_location_is_refused(
    home: Path, arguments: tuple[str | None, str | None], env: dict[str, str], config: str, says: str
) -> None:
    write_config(home / "home/.config/persist/config.toml", "home")  # must not be mixed in
    if config:
        (home / "work/persist.toml").write_text(config)
    with pytest.raises(ConfigError, match="a location is a pair") as caught:
        location_from(*arguments, env=env | {"HOME": str(home / "home")})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"blob_url = 'x'\n", "unknown key blob_url; wanted blob_uri and consensus_uri"),
        (b"[location]\nblob_uri = 'x'\n", "unknown key location"),
        (b"blob_uri = 3\nconsensus_uri = 'mem:'\n", "blob_uri: found int; wanted a URI"),
        (b"blob_uri = ''\nconsensus_uri = 'mem:'\n", "blob_uri: found"),
        (b"blob_uri = \n", "can't be read as TOML"),
        (b"blob_uri = '\xff'\n", "can't be read as TOML"),
    ],
)
def test_config_files_that_are_refused(home: Path, body: bytes, says: str) -> None:
    (home / "work/persist.toml").write_bytes(body)
    with pytest.raises(ConfigError) as caught:
        location_from()
    assert says in str(caught.value)
    assert "persist.toml" in str(caught.value)


def test_a_named_config_file_must_exist(home: Path) -> None:
    write_config(home / "work/persist.toml", "work")
    with pytest.raises(ConfigError, match="no such file"):
        location_from(config_file=home / "absent.toml")


def test_relative_databases_become_absolute(home: Path) -> None:
    found = location_from("mem:", "sqlite:///c d.db")
    assert found.consensus_uri == f"sqlite:///{home}/work/c%20d.db"
    (home / "sub").mkdir()
    (home / "sub/x.toml").write_text("blob_uri = 'mem:'\nconsensus_uri = 'sqlite:///state/c.db'\n")
    found = location_from(config_file=Path("../sub/x.toml"))
    consensus = open_consensus(found.consensus_uri)
    assert isinstance(consensus, SqliteConsensus)
    assert consensus.path.resolve() == home / "sub/state/c.db"
    with pytest.raises(InvalidUri, match="relative"):
        location_from("mem:", "sqlite:x.db")
