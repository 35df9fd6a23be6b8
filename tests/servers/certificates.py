"""Certificates for test servers, from an authority that exists for one test and that only the test trusts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore

from persist_core.clock import SystemClock

VALID = timedelta(days=1)  # before and after now
TRUST_STORE_PASSWORD = "changeit"  # Java's own default: a trust store holds no secret


@dataclass(frozen=True)
class Certificate:
    """Where a server finds its certificate and its key, and a client the authority's certificate; all as PEM."""

    path: Path
    key: Path
    authority: Path


class Authority:
    """Signs servers' certificates. Its files go into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"authority {x509.random_serial_number():x}"[:60])
        basics = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)  # it signs certificates
        builder = self._builder(self._name, self._key.public_key()).add_extension(basics, critical=True)
        builder = builder.add_extension(usage, critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    @cached_property
    def path(self) -> Path:
        """Its own certificate, as PEM: what a client has to trust."""
        return self._write("authority.pem", self._certificate.public_bytes(Encoding.PEM))

    @cached_property
    def java_trust_store(self) -> Path:
        """The certificates for Java, as PKCS#12 with `TRUST_STORE_PASSWORD`."""
        entry = PKCS12Certificate(self._certificate, b"authority")
        store = serialize_java_truststore([entry], BestAvailableEncryption(TRUST_STORE_PASSWORD.encode()))
        return self._write("authority.p12", store)

    def issue(self, *hosts: str) -> Certificate:
        """A certificate for a server of these names and addresses, which are its alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        builder = self._builder(_name(hosts[0]), key.public_key()).add_extension(names, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        private = self._write(f"{hosts[0]}.key", secret)
        private.chmod(0o600)  # PostgreSQL refuses a key that others may read
        return Certificate(self._write(f"{hosts[0]}.pem", signed.public_bytes(Encoding.PEM)), private, self.path)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        own = x509.SubjectKeyIdentifier.from_public_key(key)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - VALID)
            .not_valid_after(now + VALID)
            .add_extension(own, critical=False)  # both: Python 3.13 expects them
            .add_extension(issuer, critical=False)
        )

    def _write(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        return path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
