"""The hooks that a backend's author gives the suites: how to create a store, and how to bypass the code under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from persist_core.location.blob import Blob
from persist_core.location.consensus import Consensus, VersionedData


class ConsensusHooks(ABC):
    """The hooks of a consensus backend."""

    @abstractmethod
    def make(self, folder: Path) -> Consensus:
        """A fresh, empty store; `folder` is its own to use."""

    @abstractmethod
    def raw_read(self, consensus: Consensus, key: str) -> list[VersionedData]:
        """All stored versions of `key`, ascending, read without the code under test."""

    @abstractmethod
    def raw_write(self, consensus: Consensus, key: str, version: VersionedData) -> None:
        """Store one more version of `key` without the code under test."""

    @abstractmethod
    def address(self, consensus: Consensus) -> str | None:
        """The URI under which other processes open this store; `None` if they cannot."""

    @abstractmethod
    def reopen(self, consensus: Consensus) -> Consensus:
        """Another object for the same store."""

    @pytest.fixture
    def consensus(self, tmp_path: Path) -> Iterator[Consensus]:
        made = self.make(tmp_path)
        yield made
        made.close()

    def shared_address(self, consensus: Consensus) -> str:
        """`address`, or skip the test where other processes cannot reach the store."""
        address = self.address(consensus)
        if address is None:
            pytest.skip(f"{consensus.uri} belongs to one process")
        return address


class BlobHooks(ABC):
    """The hooks of a blob backend."""

    @abstractmethod
    def make(self, folder: Path) -> Blob:
        """A fresh, empty store; `folder` is its own to use."""

    @abstractmethod
    def reopen(self, blob: Blob) -> Blob:
        """Another object for the same store."""

    @abstractmethod
    def raw_read(self, blob: Blob, key: str) -> bytes | None:
        """The bytes stored under `key`, read without the code under test."""

    @abstractmethod
    def raw_write(self, blob: Blob, key: str, data: bytes) -> None:
        """Store `data` under `key` without the code under test."""

    @abstractmethod
    def address(self, blob: Blob) -> str | None:
        """The URI under which other processes open this store; `None` if they cannot."""

    @pytest.fixture
    def blob(self, tmp_path: Path) -> Iterator[Blob]:
        made = self.make(tmp_path)
        yield made
        made.close()

    def shared_address(self, blob: Blob) -> str:
        """`address`, or skip the test where other processes cannot reach the store."""
        address = self.address(blob)
        if address is None:
            pytest.skip(f"{blob.uri} belongs to one process")
        return address
