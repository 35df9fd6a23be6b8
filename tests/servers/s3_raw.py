"""S3 locations for the conformance suites: one bucket per test, read and written without our code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from persist_core.location import Blob, Consensus, S3Blob, S3Consensus, VersionedData, open_blob, open_consensus
from tests.servers.s3 import S3Server
from tests.suites.conformance_hooks import BlobHooks, ConsensusHooks


class S3BlobHooks(BlobHooks):
    """Set `server` before the first fixture asks for a blob."""

    server: S3Server

    def make(self, folder: Path) -> Blob:
        assert folder.is_dir()
        # No prefix: the longest key is as long as a name may be.
        return open_blob(self.server.new_uri())

    def reopen(self, blob: Blob) -> Blob:
        return open_blob(blob.uri)

    def raw_read(self, blob: Blob, key: str) -> bytes | None:
        client = self.server.raw
        try:
            data: bytes = client.get_object(Bucket=_bucket(blob), Key=key)["Body"].read()
        except client.exceptions.NoSuchKey:
            return None
        return data

    def raw_write(self, blob: Blob, key: str, data: bytes) -> None:
        self.server.raw.put_object(Bucket=_bucket(blob), Key=key, Body=data)

    def address(self, blob: Blob) -> str | None:
        return blob.uri


class S3ConsensusHooks(ConsensusHooks):
    """Set `server` before the first fixture asks for a consensus."""

    server: S3Server

    def make(self, folder: Path) -> Consensus:
        assert folder.is_dir()
        return open_consensus(self.server.new_uri("some prefix/%41"))

    def reopen(self, consensus: Consensus) -> Consensus:
        return open_consensus(consensus.uri)

    def raw_read(self, consensus: Consensus, key: str) -> list[VersionedData]:
        return [VersionedData(header["seqno"], data) for header, data in raw_log(self.server, consensus, key)]

    def raw_write(self, consensus: Consensus, key: str, version: VersionedData) -> None:
        log = raw_log(self.server, consensus, key)
        newest, _ = log[-1] if log else ({"number": 0, "first": 0, "truncated": 0, "position": -1}, b"")
        header = {
            "id": f"raw-{version.seqno}",
            "key": key,
            "seqno": version.seqno,
            "number": newest["number"] + 1,
            "first": newest["first"],
            "truncated": newest["truncated"],
            "restates": False,
            "sha256": hashlib.sha256(version.data).hexdigest(),
        }
        position = newest["position"] + 1
        name = f"{raw_folder(consensus, key)}{2**63 - 1 - position:016x}-{position}"
        text = json.dumps(header)
        digest = hashlib.sha256(f"{position} {text}".encode()).hexdigest()
        body = f"persist-consensus-1 {digest} {text}\n".encode() + version.data
        self.server.raw.put_object(Bucket=_bucket(consensus), Key=name, Body=body)

    def address(self, consensus: Consensus) -> str | None:
        return consensus.uri


def raw_folder(consensus: Consensus, key: str) -> str:
    """Where the log of `key` is, with a slash at the end."""
    prefix = consensus_settings(consensus).prefix
    is_plain = key.isascii() and key[:1] not in ".-" and all(c.isalnum() or c in "_.-" for c in key) and len(key) <= 104
    folder = key if is_plain else "=" + hashlib.sha256(key.encode()).hexdigest()
    return f"{prefix}/_consensus/{folder}/".lstrip("/")


def raw_names(server: S3Server, consensus: Consensus, key: str) -> list[str]:
    """The names of all objects of a key's log, newest first."""
    pages = server.raw.get_paginator("list_objects_v2").paginate(
        Bucket=_bucket(consensus), Prefix=raw_folder(consensus, key)
    )
    return [found["Key"] for page in pages for found in page.get("Contents", ())]


def raw_log(server: S3Server, consensus: Consensus, key: str) -> list[tuple[dict[str, Any], bytes]]:
    """The entries that count and make a version, oldest first: header (with its position) and data."""
    log = []
    for name in raw_names(server, consensus, key):
        body: bytes = server.raw.get_object(Bucket=_bucket(consensus), Key=name)["Body"].read()
        line, _, data = body.partition(b"\n")
        header = json.loads(line.split(b" ", 2)[2])
        log.append(({**header, "position": int(name.rpartition("-")[2])}, data))
    if not log:
        return []
    first = log[0][0]["first"]
    return [(header, data) for header, data in reversed(log) if header["position"] >= first and not header["restates"]]


def consensus_settings(consensus: Consensus) -> Any:
    """The settings behind a consensus object."""
    assert isinstance(consensus, S3Consensus)
    return consensus._settings


def _bucket(store: Blob | Consensus) -> str:
    assert isinstance(store, (S3Blob, S3Consensus))
    return store._settings.bucket
