"""Which location is configured, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persist_core.errors import ConfigError, InvalidUri
from persist_core.location import PersistLocation, SqliteConsensus, location_from, open_consensus, open_location
from persist_core.location.s3.uri import S3Settings

BLOB, CONSENSUS = "file:///blobs", "sqlite:////consensus.db"


def test_a_location_prints_redacted_and_hands_over_whole() -> None:
    location = PersistLocation("s3://b/p?token=t0p", "postgresql://u:t0p@h/db")
    assert "t0p" not in repr(location) + str(location)
    assert repr(location) == ("PersistLocation(blob_uri='s3://b/p?token=***', consensus_uri='postgresql://***@h/db')")
    assert location.to_env() == {"PERSIST_BLOB_URI": location.blob_uri, "PERSIST_CONSENSUS_URI": location.consensus_uri}
    assert location == PersistLocation(location.blob_uri, location.consensus_uri)


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


def test_a_named_config_file_goes_over_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`persist drop --config test.toml` drops nothing elsewhere, also where the environment names a location."""
    monkeypatch.setenv("PERSIST_BLOB_URI", "mem:env")
    monkeypatch.setenv("PERSIST_CONSENSUS_URI", "mem:env")
    write_config(home / "named.toml", "named")
    assert location_from(config_file=home / "named.toml") == PersistLocation("mem:named", "mem:named")
    (home / "named.toml").write_text("")
    for name, says in (("named", r"named\.toml: no location; expected blob_uri and"), ("absent", "no such file")):
        with pytest.raises(ConfigError, match=says):
            location_from(config_file=home / f"{name}.toml")


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
        (b"blob_url = 'x'\n", "unknown key blob_url; expected blob_uri, consensus_uri and"),
        (b"[location]\nblob_uri = 'x'\n", "unknown key location"),
        (b"blob_uri = 3\nconsensus_uri = 'mem:'\n", "blob_uri: found int; expected a URI"),
        (b"blob_uri = ''\nconsensus_uri = 'mem:'\n", "blob_uri: found"),
        (b"connections = 3\n", "connections: expected a table of URIs"),
        (b"[connections]\nvendor = 3\n", "connections: expected a table of URIs"),
        (
            b"blob_uri = 'mem:'\nconsensus_uri = 'mem:'\n[connections]\na-b = 's3://x'\nA_b = 's3://y'\nc = ''\n",
            "connections: A_b, a-b differ only in case or in signs",
        ),
        (b"blob_uri = \n", "cannot be read as TOML"),
        (b"blob_uri = '\xff'\n", "cannot be read as TOML"),
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


def test_connections_come_from_the_file_and_the_environment(home: Path) -> None:
    """The environment's go over the file's; they reach a job with the location, and show nowhere."""
    text = (
        "[connections]\nvendor = 's3://a?profile=x'\n'other-one' = 's3://bbb?secret_access_key=hush&access_key_id=me'\n"
    )
    (home / "work/persist.toml").write_text(f"blob_uri = 'mem:'\nconsensus_uri = 'mem:'\n{text}")
    found = location_from(env={"PERSIST_CONNECTION_VENDOR": "s3://c"})
    other = "s3://bbb?secret_access_key=hush&access_key_id=me"
    assert found.connections == {"PERSIST_CONNECTION_VENDOR": "s3://c", "PERSIST_CONNECTION_OTHER_ONE": other}
    assert found.to_env()["PERSIST_CONNECTION_OTHER_ONE"] == other
    assert location_from(env={**found.to_env()}) == found
    assert hash(found) == hash(location_from("mem:", "mem:"))
    with open_location(found) as opened:
        assert "hush" not in f"{found} {found!r} {opened!r}"
        assert opened.feed_settings("s3://bbb/x", "other-one").secret_access_key == "hush"


def test_a_source_is_read_as_the_locations_blobs_by_default() -> None:
    """From their server, in their region, with their credentials; the key is for what is written."""
    keys: dict[str, Any] = {"access_key_id": "me", "secret_access_key": "hush"}
    server = {"endpoint": "http://127.0.0.1:9000", "region": "eu-west-1"}
    for uri, expected in {
        "s3://lake/p?access_key_id=me&secret_access_key=hush": keys,
        "s3://lake/p?profile=team": {"profile": "team"},
        "s3://lake?endpoint=http://127.0.0.1:9000&region=eu-west-1&path_style=false": {**server, "path_style": False},
        "s3://lake?endpoint=http://127.0.0.1:9000&region=eu-west-1&access_key_id=me&secret_access_key=hush&kms_key=k":
            {**server, **keys},
        "file:///blobs": {},
        "mem:": {},
    }.items():  # fmt: skip
        with open_location(PersistLocation(uri, "mem:")) as opened:
            assert opened.feed_settings("s3://vendor/feed", None) == S3Settings("vendor", "feed", **expected), uri
    given = {"AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "eu-north-1"}
    with open_location(PersistLocation("s3://lake?profile=team", "mem:"), given) as opened:
        team = S3Settings("vendor", region="eu-north-1", profile="team")
        assert opened.feed_settings("s3://vendor", None) == team, "as the location itself"
