"""The record of alerts with damage: it is replaced, unless a newer release has written it."""

from __future__ import annotations

import pytest

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.record import RECORD_KEY
from persist_core.errors import CorruptArtifact, Corruption, UnknownVersion
from persist_core.handles.client import PersistClient
from persist_core.location.consensus import VersionedData
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from tests.core.alerts.test_board import client, look
from tests.servers.s3 import S3Server
from tests.servers.s3_raw import consensus_settings, raw_names

__all__ = ["client"]  # a fixture


def test_a_damaged_record_is_replaced_and_alerts_are_sent_again(client: PersistClient) -> None:
    look(client, 3)
    head = client.location.consensus.head(RECORD_KEY)
    assert head is not None
    damaged = VersionedData(head.seqno + 1, head.data.replace(b"fruit", b"fruid"))
    client.location.consensus.compare_and_set(RECORD_KEY, head.seqno, damaged)
    with pytest.raises(CorruptArtifact, match="the record of alerts"):
        WatchBoard(client).read()
    assert look(client, 3) == ["warn"]
    assert list(WatchBoard(client).read().shards) == ["fruit"]


def test_a_record_that_the_store_can_not_read_is_erased(versitygw: S3Server) -> None:
    uri = versitygw.new_uri("p")
    with open_location(PersistLocation(uri, uri)) as opened:
        client = PersistClient(opened)
        board = WatchBoard(client)
        board.record_check("fruit", 1, "part: lost")
        (entry,) = raw_names(versitygw, opened.consensus, RECORD_KEY)
        versitygw.raw.put_object(Bucket=consensus_settings(opened.consensus).bucket, Key=entry, Body=b"persist")
    with open_location(PersistLocation(uri, uri)) as opened:
        board = WatchBoard(PersistClient(opened))
        assert list(opened.consensus.list_keys()) == [RECORD_KEY]
        with pytest.raises(Corruption, match="expected the header"):
            board.read()
        board.record_check("fruit", 2, "part: lost")
        found = board.read().of("fruit").check
        assert found is not None
        assert found.findings == 2


def test_a_record_of_a_newer_release_is_not_erased(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    look(client, 3)
    before = client.location.consensus.head(RECORD_KEY)

    def newer(_: str) -> VersionedData:
        raise UnknownVersion("found version 2; upgrade airflow-persist")

    with monkeypatch.context() as patch:
        patch.setattr(client.location.consensus, "head", newer)
        with pytest.raises(UnknownVersion, match="upgrade"):
            WatchBoard(client).record_check("fruit", 2, "part: lost")
    assert client.location.consensus.head(RECORD_KEY) == before
