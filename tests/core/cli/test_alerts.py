"""`persist alerts`, `persist ack` and what `persist fsck` and `persist drop` do with alerts, on real locations."""

from __future__ import annotations

import pytest

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.health import healths
from persist_core.config.thresholds import DEFAULTS, Threshold
from persist_core.errors import Determinate
from persist_core.inspection.inspector import Inspector
from tests.core.cli.test_cli import Persist
from tests.core.cli.test_cli import persist as persist  # the fixture
from tests.servers.backends import on_each_consensus

RULES = {"orders": {**DEFAULTS, "freshness": Threshold(fail=3_600_000)}}


@on_each_consensus
def test_alerts_are_listed_acknowledged_and_forgotten(persist: Persist) -> None:
    assert persist("alerts").out == "no open alerts\n"
    part = persist.client.manifest(persist.client.state("orders").batches[0]).parts[0].key
    persist.client.blob.delete(part)
    assert persist("fsck", "orders").code == 4
    WatchBoard(persist.client).turn(RULES, lambda: healths(Inspector(persist.client), RULES))
    found = persist("alerts", "--json").json
    assert {each["alert"]: each["level"] for each in found} == {"freshness": "fail", "fsck": "fail", "errors": "warn"}
    assert all(each["unsent"] == 1 and each["acknowledged_by"] is None for each in found)
    (body,) = persist("ack", "orders", "fsck", "--reason", "the disk is being copied", "--json").json
    assert (body["reason"], "@" in body["acknowledged_by"], body["unsent"]) == ("the disk is being copied", True, 0)
    shown = persist("alerts", "orders").out
    assert "the disk is being copied" in shown
    assert "2026-01-0" in shown, "since when the data is late"
    wrong = persist("ack", "orders", "stash_age", "--reason", "x")
    assert (wrong.code, "no open alert 'stash_age'; open: errors, freshness, fsck" in wrong.err) == (2, True)
    assert persist("alerts", "../x").code == 2
    assert [body["shard"] for body in persist("shards", "--json").json] == ["orders"]
    assert persist("drop", "orders", "--yes").code == 0
    assert persist("alerts", "--json").json == []


def test_a_result_that_cannot_be_kept_is_a_warning(persist: Persist, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Determinate("permission denied")

    monkeypatch.setattr("persist_core.maintenance.fsck.remember", refuse)
    done = persist("fsck", "orders")
    assert (done.code, "not kept for alerts: permission denied" in done.out) == (0, True)
