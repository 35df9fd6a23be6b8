"""`s3:` URIs: their settings, the ones that are refused, and their printable form."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_core.errors import InvalidUri
from persist_core.location import S3Blob, S3Consensus, S3Settings, open_blob, open_consensus, redact_uri, s3_settings
from persist_core.location.s3 import client


@pytest.mark.parametrize(
    ("uri", "settings"),
    [
        ("s3://bucket", S3Settings("bucket")),
        ("S3://bucket/", S3Settings("bucket")),
        ("s3://bucket/a/b%20c/", S3Settings("bucket", "a/b c")),
        ("s3://b.c-d/p?region=eu-west-1", S3Settings("b.c-d", "p", region="eu-west-1")),
        (
            "s3://bucket/p?endpoint=http://127.0.0.1:9000&path_style=false",
            S3Settings("bucket", "p", endpoint="http://127.0.0.1:9000", path_style=False),
        ),
        ("s3://bucket?endpoint=https%3A%2F%2Fhost", S3Settings("bucket", endpoint="https://host")),
        ("s3://bucket?kms_key=arn:aws:kms:r:1:key/2", S3Settings("bucket", kms_key="arn:aws:kms:r:1:key/2")),
        ("s3://bucket?profile=me", S3Settings("bucket", profile="me")),
        (
            "s3://bucket?access_key_id=A&secret_access_key=x+y/z%3D&session_token=t",
            S3Settings("bucket", access_key_id="A", secret_access_key="x+y/z=", session_token="t"),
        ),
    ],
)
def test_what_a_uri_says(uri: str, settings: S3Settings) -> None:
    assert s3_settings(uri) == settings
    blob, consensus = open_blob(uri), open_consensus(uri)
    assert isinstance(blob, S3Blob)
    assert isinstance(consensus, S3Consensus)
    assert blob.uri == consensus.uri == settings.uri
    again = s3_settings(blob.uri)
    assert again is not None
    assert (again.bucket, again.prefix, again.endpoint) == (settings.bucket, settings.prefix, settings.endpoint)
    assert again.kms_key == settings.kms_key


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3:bucket", "expected s3://bucket/prefix"),
        ("s3://", "expected a bucket's name"),
        ("s3://B/p", "expected a bucket's name"),
        ("s3://a..b/p", "expected a bucket's name"),
        ("s3://AKIA:hunter2@bucket/p", "put credentials into the environment"),
        ("s3://bucket--use1-az4--x-s3/p", "directory bucket"),
        ("s3://bucket/a//b", "empty, '.' or '..' segment"),
        ("s3://bucket/a/%2e%2e/b", "empty, '.' or '..' segment"),
        ("s3://bucket/" + "p" * 513, "longer than 512 bytes"),
        ("s3://bucket?endpont=x", "unknown query parameter endpont; s3: takes access_key_id, endpoint, kms_key, path"),
        ("s3://bucket?", "unknown query parameter (none)"),
        ("s3://bucket?region=a&region=b", "region is given more than once"),
        ("s3://bucket?region=", "region is empty"),
        ("s3://bucket?region=a%0Ab", "has a control character"),
        ("s3://bucket?path_style=yes", "path_style is 'yes'; expected true or false"),
        ("s3://bucket?endpoint=host:9000", "expected endpoint=http://host:port"),
        ("s3://bucket?endpoint=http://u:hunter2@h", "without user"),
        ("s3://bucket?endpoint=http://h/path", "without user, path or query"),
        ("s3://bucket?endpoint=http://h:99999", "expected endpoint=http://host:port"),
        ("s3://bucket?access_key_id=A", "go together"),
        ("s3://bucket?secret_access_key=hunter2", "go together"),
        ("s3://bucket?session_token=hunter2", "give all three"),
        ("s3://bucket?profile=p&access_key_id=A&secret_access_key=hunter2", "give one of them"),
    ],
)
def test_what_is_refused(uri: str, says: str) -> None:
    for opener in (open_blob, open_consensus, s3_settings):
        with pytest.raises(InvalidUri) as caught:
            opener(uri)
        assert says in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_other_schemes_are_not_ours() -> None:
    assert s3_settings("file:///a") is None
    assert s3_settings("postgresql://s3:x@h/db") is None


def test_credentials_are_not_shown() -> None:
    uri = "s3://bucket/p?access_key_id=AKIA1&secret_access_key=s3cr3t&session_token=t0k3n&region=r"
    settings = s3_settings(uri)
    assert settings is not None
    assert settings.uri == "s3://bucket/p?region=r"
    for text in (repr(settings), redact_uri(uri), settings.uri):
        assert not any(secret in text for secret in ("AKIA1", "s3cr3t", "t0k3n"))


def test_an_own_environment_gives_missing_credentials() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "S", "AWS_DEFAULT_REGION": "r"}
    taken = s3_settings("s3://bucket", environment)
    assert taken == S3Settings("bucket", region="r", access_key_id="E", secret_access_key="S")
    own = s3_settings("s3://bucket?access_key_id=A&secret_access_key=x&region=q", environment)
    assert own == S3Settings("bucket", region="q", access_key_id="A", secret_access_key="x")
    profile = s3_settings("s3://bucket?profile=p", environment)
    assert profile == S3Settings("bucket", region="r", profile="p")
    assert s3_settings("s3://bucket", {}) == S3Settings("bucket")


def test_keys_that_were_renewed_in_their_file_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setattr(client, "_sessions", {})
    for key in ("OLD", "NEW"):
        file.write_text(f"[team]\naws_access_key_id = {key}\naws_secret_access_key = hush\naws_session_token = t\n")
        blob = open_blob("s3://bucket?profile=team&region=r")
        assert isinstance(blob, S3Blob)
        assert blob._client.api._request_signer._credentials.access_key == key
        assert client.own_credentials(S3Settings("bucket", profile="team")).access_key == key
        blob.close()
