"""Fields of actions as templates render them: texts in place of booleans, numbers and `None`."""

from __future__ import annotations

from typing import Any

import pytest

from persist_airflow import shard_actions
from persist_airflow.actions import ShardActionOperator
from persist_airflow.compat import AirflowFailException
from persist_airflow.operators import asks_for
from persist_core.handles.client import PersistClient
from tests.airflow.test_actions import DAG, SHARD, context, fill, rows
from tests.core.world import SCHEMA
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11


def restore(client: PersistClient, **fields: Any) -> Any:
    """The report of a `restore` of the first checkpoint, with these fields."""
    first, *_ = fill(client)
    operator = ShardActionOperator(
        task_id="t", shard=SHARD, action="restore", fields={"checkpoint_id": first, **fields}
    )
    return operator.execute(context(shard=SHARD))


@pytest.mark.parametrize(
    ("fields", "status", "left"),
    [
        ({"dry_run": "False", "max_updates": "100", "new_shard": "None"}, "restored", [0]),
        ({"dry_run": "", "max_updates": "", "new_shard": ""}, "restored", [0]),
        ({"dry_run": "true", "max_updates": 100}, "dry_run", [0, 1, 2]),
    ],
)
def test_texts_stand_for_their_values(
    client: PersistClient, fields: dict[str, Any], status: str, left: list[int]
) -> None:
    assert restore(client, **fields)["status"] == status
    assert (rows(client), client.shards()) == (left, [SHARD])


@pytest.mark.parametrize("field", [{"dry_run": "no"}, {"dry_run": 1}, {"max_updates": "1e3"}, {"max_updates": True}])
def test_other_texts_are_refused(client: PersistClient, field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(AirflowFailException, match=f"{name} is .*; expected (true or false|a whole number)"):
        restore(client, **field)
    assert rows(client) == [0, 1, 2]


@pytest.mark.parametrize("found", ["true", 1, "None"])
def test_a_conf_that_is_neither_true_nor_false_fails(found: Any) -> None:
    with pytest.raises(AirflowFailException, match=r"read_only is .*; expected true or false"):
        asks_for(context(read_only=found), "read_only")
    assert asks_for(context(read_only=True), "read_only")
    assert not asks_for(context(), "read_only")


def test_a_second_try_of_a_restore_undoes_no_later_commit(client: PersistClient) -> None:
    first, *_ = fill(client)
    operator = ShardActionOperator(task_id="t", shard=SHARD, action="restore", fields={"checkpoint_id": first})
    tries = context(shard=SHARD)
    assert operator.execute(tries)["status"] == "restored"
    commit(client, SHARD, SCHEMA, 10, [((7, "new"), 9, 1)], writer="persist_upsert__fruit/scheduled")
    again = operator.execute(tries)
    assert (again["status"], rows(client)) == ("up_to_date", [0, 7])
    other: Any = {**tries, "run_id": "manual__2"}
    assert (operator.execute(other)["status"], rows(client)) == ("restored", [0]), "another dag run asks for it again"


def test_a_second_try_of_a_recreation_keeps_its_run(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client)
    started: list[str] = []
    monkeypatch.setattr(ShardActionOperator, "start", lambda *given: started.append(given[2]["dag_id"]))
    monkeypatch.setattr(shard_actions, "is_dag_paused", lambda *_: False)
    fields = {"confirm": SHARD, "dag_id": DAG}
    operator = ShardActionOperator(task_id="t", shard=SHARD, action="recreate", fields=fields)
    tries = context(shard=SHARD)
    assert operator.execute(tries)["status"] == "emptied"
    commit(client, SHARD, SCHEMA, 1, [((5, "x"), 0, 1)], writer=f"{DAG}/{operator.run_id(tries)}")
    assert (operator.execute(tries)["status"], rows(client)) == ("up_to_date", [5])
    other: Any = {**tries, "run_id": "manual__2"}
    assert operator.execute(other)["status"] == "emptied"
    assert started == [DAG] * 3
