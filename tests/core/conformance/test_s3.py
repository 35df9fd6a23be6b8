"""The suites of both contracts over real S3-speaking servers."""

from __future__ import annotations

import pytest

from persist_core.location import Blob
from tests.servers.s3 import S3Server
from tests.servers.s3_raw import S3BlobHooks, S3ConsensusHooks
from tests.suites.blob_conformance import HOSTILE_KEYS, BlobConformance, sizes
from tests.suites.consensus_conformance import ConsensusConformance
from tests.suites.race_conformance import keys


class TestS3BlobOnVersitygw(S3BlobHooks, BlobConformance):
    key_may_be_prefix = False  # the gateway keeps objects as files

    @pytest.fixture(autouse=True)
    def _server(self, versitygw: S3Server) -> None:
        self.server = versitygw


class TestS3ConsensusOnVersitygw(S3ConsensusHooks, ConsensusConformance):
    @pytest.fixture(autouse=True)
    def _server(self, versitygw: S3Server) -> None:
        self.server = versitygw


class TestS3BlobOnMinio(S3BlobHooks, BlobConformance):
    @pytest.fixture(autouse=True)
    def _server(self, minio: S3Server) -> None:
        self.server = minio

    def test_a_key_that_begins_another(self, blob: Blob) -> None:
        """MinIO accepts both and hides the lower one from listings: a defect, and no key of ours begins another."""
        blob.set("a/b", b"below")
        blob.set("a", b"above")
        assert blob.get("a/b") == b"below"
        assert blob.get("a") == b"above"
        assert set(sizes(blob, "")) <= {"a", "a/b"}

    # MinIO refuses to list a prefix that ends in a segment `.` or `..`, though keys may begin so. None of ours does.

    def test_listing_is_by_string_prefix(self, blob: Blob) -> None:
        for key in HOSTILE_KEYS:
            blob.set(key, b"x")
        for prefix in ("", "a", "b/", "b/a", "cafe", "no/such", "...", " "):
            assert keys(blob, prefix) == [key for key in HOSTILE_KEYS if key.startswith(prefix)], prefix

    @pytest.mark.parametrize("prefix", ["/", "/a", "../", "../a", "a//", "./", "a/../", "a\x00", "\ud800"], ids=ascii)
    def test_a_prefix_that_no_key_has(self, blob: Blob, prefix: str) -> None:
        super().test_a_prefix_that_no_key_has(blob, prefix)


class TestS3ConsensusOnMinio(S3ConsensusHooks, ConsensusConformance):
    @pytest.fixture(autouse=True)
    def _server(self, minio: S3Server) -> None:
        self.server = minio
