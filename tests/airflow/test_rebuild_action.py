"""The actions `rebuild` and `fill` of `persist_actions`, and the asset events of actions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from persist_airflow import shard_actions
from persist_airflow.actions import ShardActionOperator
from persist_airflow.compat import AirflowFailException
from persist_core.config.collection import CollectionConfig
from persist_core.contents.stats import LEFT, BatchWarning
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fill import Filled, Wishes
from persist_core.maintenance.rebuild import Contents, Rebuilt, Request
from persist_core.protocol.difference import Differences
from tests.airflow.test_actions import SHARD, context, fill
from tests.core.world import SCHEMA

pytestmark = pytest.mark.airflow_2_11

FRUIT = "source: {path: 'in/*.json', format: json}\nkey: id\ncolumns: {id: bigint, name: string}\ndelete: none\n"


def test_a_rebuild_gets_what_the_conf_asks(
    client: PersistClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    (tmp_path / "fruit.yaml").write_text(FRUIT)
    asked: list[Request] = []

    def rebuild(client: PersistClient, config: CollectionConfig, request: Request, **rest: Any) -> Rebuilt:
        asked.append(request)
        one_row = Differences(1, 0, 0, 0, 0, {}, SCHEMA.arrow().empty_table())
        found = Rebuilt(config.name, 1, "fruit~rebuild", Contents(3, 0), Contents(4, 0), (), one_row, "")
        rest["report"](found)
        return replace(found, commit=client.state(SHARD).newest_commit, kept="fruit~g3")

    monkeypatch.setattr(shard_actions, "rebuild", rebuild)
    operator = ShardActionOperator(task_id="shard_action", shard=SHARD, collections=tmp_path)
    conf = {"action": "rebuild", "shard": SHARD}
    done: Any = operator.execute(context("alice", **conf))
    assert (done["status"], done["generation"], done["kept"]) == ("swapped", 1, "fruit~g3")
    assert "samples" not in json.dumps(done), "they are whole rows"
    operator.execute(context("alice", **conf, swap_back=True, confirm=SHARD, dry_run=True, take_back_gone=True))
    assert (asked[0].back_to, asked[0].is_confirmed, asked[0].max_changed) == (None, False, ("10 %",))
    assert (asked[1].back_to, asked[1].is_confirmed, asked[1].is_dry_run, asked[1].takes_back_gone) == (-1, *[True] * 3)
    with pytest.raises(AirflowFailException, match="confirm is 'x'"):
        operator.execute(context("alice", **conf, confirm="x"))


def test_a_fill_gets_what_the_conf_asks(client: PersistClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client)
    (tmp_path / "fruit.yaml").write_text(FRUIT)
    asked: list[Wishes] = []

    def fill_columns(client: PersistClient, config: CollectionConfig, wishes: Wishes, **rest: Any) -> Filled:
        asked.append(wishes)
        left = BatchWarning(LEFT, 1, ('{"id":7}: column x is "secret"',))
        found = Filled(config.name, 4, 5, {"name": 4}, (left,))
        rest["report"](found)
        return replace(found, commit=client.state(SHARD).newest_commit)

    monkeypatch.setattr(shard_actions, "fill", fill_columns)
    operator = ShardActionOperator(task_id="shard_action", shard=SHARD, collections=tmp_path)
    conf = {"action": "fill", "shard": SHARD}
    done: Any = operator.execute(context("alice", **conf))
    assert [asset.uri for asset in operator.outlets] == ["persist://persist_default/fruit"]
    assert (done["status"], done["changed"], done["columns"]) == ("filled", 4, {"name": 4})
    assert done["warnings"] == [f"{LEFT}: 1"]
    assert "secret" not in json.dumps(done), "it is from a row"
    operator.execute(context("alice", **conf, dry_run=True, confirm=SHARD))
    assert asked == [Wishes(max_changed=("10 %",)), Wishes(is_dry_run=True, is_confirmed=True, max_changed=("10 %",))]


def test_only_a_commit_updates_the_asset_of_the_shard(client: PersistClient) -> None:
    first, *_ = fill(client)
    for is_dry_run in (True, False):
        operator = ShardActionOperator(task_id="shard_action", shard=SHARD)
        asked = context(action="restore", shard=SHARD, checkpoint_id=first, dry_run=is_dry_run)
        events = asked["outlet_events"]
        done: Any = operator.execute(asked)
        assert [asset.uri for asset in operator.outlets] == [] if is_dry_run else ["persist://persist_default/fruit"]
        assert [event.extra["upper"] for event in events.values()] == [] if is_dry_run else [done["upper"]]
