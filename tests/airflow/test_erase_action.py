"""The action `erase` of the DAG `persist_actions`."""

from __future__ import annotations

import pytest

from persist_airflow import shard_actions
from persist_airflow.compat import AirflowFailException
from persist_core.handles.client import PersistClient
from persist_core.maintenance.actions import Done
from tests.airflow.test_actions import SHARD, act, fill, rows

pytestmark = pytest.mark.airflow_2_11


def test_an_erasure_needs_the_name_and_a_reason(client: PersistClient) -> None:
    fill(client)
    with pytest.raises(AirflowFailException, match="action erase needs reason, confirm"):
        act(action="erase", shard=SHARD, key="1")
    asked = {"action": "erase", "shard": SHARD, "key": "1", "reason": "asked", "confirm": SHARD}
    assert (act(**asked, dry_run=True)["status"], rows(client)) == ("dry_run", [0, 1, 2])
    done = act(**asked, verify=True)
    assert (done["status"], done["holding"], done["is_clean"]) == ("erased", [], True)
    assert rows(client) == [0, 2]
    assert client.state(SHARD).commits[-1].writer == "persist_actions/manual__1"
    assert act(**{**asked, "key": '["0", "2"]'})["status"] == "erased"
    assert rows(client) == []
    with pytest.raises(AirflowFailException, match="expected a JSON array of texts"):
        act(**{**asked, "key": "[1]"})


def test_all_objects_that_hold_a_key_are_counted(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client)
    holding = [f"object {number}" for number in range(shard_actions.MAX_LISTED + 5)]
    done = Done({"shard": SHARD, "status": "up_to_date", "holding": holding, "is_clean": False}, ())
    monkeypatch.setattr(shard_actions, "erase", lambda *_, **__: done)
    with pytest.raises(AirflowFailException, match=f"^{len(holding)} objects still hold a key"):
        act(action="erase", shard=SHARD, key="1", reason="asked", confirm=SHARD, verify=True)
