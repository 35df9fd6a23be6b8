"""TLS to real servers whose certificates a private authority has signed: which are trusted, and what the error says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from persist_airflow.embedded.postgres import own
from persist_core.clock import SystemClock
from persist_core.errors import Determinate
from persist_core.location import Blob, CaSResult, Consensus, VersionedData, open_blob, open_consensus
from persist_core.location.finding import Examinable, Finding
from persist_core.location.s3.probe import RACERS
from tests import real_parts
from tests.core.location.s3_wire import Wire
from tests.servers import s3
from tests.servers.certificates import Authority
from tests.servers.lifeline import ServerFolder
from tests.servers.postgres import PASSWORD, PostgresServer, start_postgres
from tests.servers.tls_door import TlsDoor

HOST = "127.0.0.1"  # the one that the certificates name
ALIAS = "localhost"  # the same machine, by a name that they do not
ZERO, ONE = VersionedData(0, b"zero"), VersionedData(1, b"one")


@pytest.fixture(scope="module")
def authority() -> Iterator[Authority]:
    """The authority that has signed the servers' certificates. In a folder that PostgreSQL's user can read."""
    folder = ServerFolder("certificates")
    yield Authority(folder.path)
    folder.remove()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which has signed nothing."""
    return Authority(tmp_path_factory.mktemp("stranger"))


def diagnosis(store: Blob | Consensus, check: str) -> Finding:
    assert isinstance(store, Examinable)
    return next(finding for finding in store.diagnose(SystemClock()) if finding.check == check)


# PostgreSQL


@dataclass(frozen=True)
class TlsPostgres:
    """A PostgreSQL, and the port where TLS is spoken."""

    server: PostgresServer
    port: int

    def uri(self, root: Path, host: str = HOST) -> str:
        uri = self.server.uri(port=self.port, sslmode="verify-full", sslrootcert=str(root))
        return uri.replace(f"@{HOST}", f"@{host}")


@pytest.fixture(scope="module", params=["server", "door"])
def tls_postgres(request: pytest.FixtureRequest, authority: Authority) -> Iterator[TlsPostgres]:
    """The system's server with `ssl = on`; the wheel's, which has no TLS, behind a door that has."""
    certificate = authority.issue(HOST)
    if request.param == "door":
        server: PostgresServer = request.getfixturevalue("postgres")
        with TlsDoor(server.port, certificate) as door:
            yield TlsPostgres(server, door.port)
        return
    own(certificate.key)
    server = start_postgres(ssl="on", ssl_cert_file=str(certificate.path), ssl_key_file=str(certificate.key))
    real_parts.used("PostgreSQL with TLS", server.version)
    yield TlsPostgres(server, server.port)
    server.remove()


def test_postgresql_by_a_name_and_an_authority_that_are_right(tls_postgres: TlsPostgres, authority: Authority) -> None:
    with closing(open_consensus(tls_postgres.uri(authority.path))) as consensus:
        assert consensus.compare_and_set("k", None, ZERO) is CaSResult.COMMITTED
        assert consensus.compare_and_set("k", 0, ONE) is CaSResult.COMMITTED
        assert consensus.head("k") == ONE
        assert diagnosis(consensus, "encryption").found.startswith("TLS")


@pytest.mark.parametrize(
    ("root", "host", "says"),
    [
        ("stranger", HOST, "certificate verify failed"),
        (None, HOST, "root certificate file .* does not exist"),
        ("authority", ALIAS, f"certificate for .* does not match host name .{ALIAS}"),
    ],
)
def test_postgresql_that_can_not_be_trusted_is_told_nothing(
    tls_postgres: TlsPostgres, request: pytest.FixtureRequest, root: str | None, host: str, says: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = request.getfixturevalue(root).path if root else tmp_path / "none.pem"
    with closing(open_consensus(tls_postgres.uri(path, host))) as consensus:
        for call in (lambda: consensus.head("k"), lambda: consensus.compare_and_set("k", 0, ONE)):
            with pytest.raises(Determinate, match=rf"no connection.*{says}.*sslrootcert=FILE") as caught:
                call()
            for secret in (PASSWORD, quote(PASSWORD, safe="")):
                assert secret not in str(caught.value)
    assert PASSWORD not in tls_postgres.server.log()


# S3


@pytest.fixture(scope="module")
def tls_versitygw(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    yield from s3.running("versitygw", tmp_path_factory.mktemp("s3"), authority.issue(HOST))


def test_s3_by_a_name_and_an_authority_that_are_right(
    tls_versitygw: s3.S3Server, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe before the first commit is included."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.path))
    uri = tls_versitygw.new_uri("persist")
    assert "endpoint=https://" in uri
    with closing(open_consensus(uri)) as consensus, closing(open_blob(uri)) as blob:
        assert consensus.compare_and_set("k", None, ZERO) is CaSResult.COMMITTED
        assert consensus.head("k") == ZERO
        blob.set("part", b"v")
        assert blob.get("part") == b"v"
        assert diagnosis(blob, "transport").found.startswith("https")


@pytest.mark.parametrize(
    ("root", "host", "says"),
    [
        ("stranger", HOST, "CERTIFICATE_VERIFY_FAILED"),
        (None, HOST, "CERTIFICATE_VERIFY_FAILED"),
        ("authority", ALIAS, f"hostname .{ALIAS}. doesn't match"),
    ],
)
def test_s3_that_can_not_be_trusted_is_told_nothing(
    tls_versitygw: s3.S3Server, request: pytest.FixtureRequest, root: str | None, host: str, says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    if root:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(request.getfixturevalue(root).path))
    secrets = "access_key_id=AKIAHIDDEN&secret_access_key=s3cr3t"
    uri = f"{tls_versitygw.new_uri('persist').replace(f'//{HOST}', f'//{host}')}&{secrets}"
    with closing(open_consensus(uri)) as consensus, closing(open_blob(uri)) as blob:
        wire = Wire(consensus)
        for call in (
            lambda: consensus.head("k"),
            lambda: consensus.compare_and_set("k", None, ZERO),
            lambda: blob.get("part"),
            lambda: blob.set("part", b"v"),
        ):
            with pytest.raises(Determinate, match=rf"{says}.*AWS_CA_BUNDLE") as caught:
                call()
            assert "AKIAHIDDEN" not in str(caught.value)
            assert "s3cr3t" not in str(caught.value)
    counts = wire.take_counts()
    assert (counts["ListObjectsV2"], counts["PutObject"]) == (1, RACERS), "asking again is useless"
