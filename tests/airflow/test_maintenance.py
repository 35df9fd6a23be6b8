"""The DAG `persist_maintenance`: which shards it picks, what it does to them, and what a broken shard changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from persist_airflow.compat import AirflowFailException
from persist_airflow.factory import build_dags
from persist_airflow.failures import PersistStepFailed
from persist_airflow.maintenance import (
    ListShardsToMaintainOperator,
    MaintainShardOperator,
    build_maintenance_dag,
)
from persist_airflow.watch import announced_as
from persist_core.alerts.health import MAX_UNREAD
from persist_core.compaction.due import debt_of
from persist_core.config.project import MaintenanceConfig, ProjectConfig
from persist_core.errors import ConfigError, Determinate, OutdatedDescription
from persist_core.handles.client import PersistClient
from persist_core.location.settings import PersistLocation
from persist_core.spark_job.answer import record_failure
from persist_core.spark_job.launch import Ended
from persist_core.spark_job.spec import JobSpec, MergeInputs
from tests.airflow.airflow_process import run
from tests.airflow.fruit import NAME, Fruit
from tests.core.world import SCHEMA
from tests.plain_commit import commit

pytestmark = pytest.mark.airflow_2_11

DAG_FILE = """
# airflow DAG
from pathlib import Path
from persist_airflow.maintenance import build_maintenance_dag
dag = build_maintenance_dag(Path(__file__).parent / "persist.yaml")
"""
DRIVER = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
dag = importlib.import_module("maintenance_dag").dag
runs = []
for location in (None, sys.argv[2]):
    if location:
        os.environ |= {"PERSIST_BLOB_URI": f"file://{location}/blob", "PERSIST_CONSENSUS_URI": f"sqlite:///{location}/c.db"}
    run = dag.test()
    named = {f"{ti.task_id}[{ti.rendered_map_index or ti.map_index}]": str(ti.state) for ti in run.get_task_instances()}
    runs.append([str(run.state), named])
print(json.dumps(runs))
"""


def fill(client: PersistClient, shard: str, commits: int) -> None:
    for number in range(commits):
        commit(client, shard, SCHEMA, number + 1, [((number, "x"), number, 1)])


def lose_a_part(client: PersistClient, shard: str) -> None:
    manifest = client.manifest(client.state(shard).batches[1])
    client.blob.delete(manifest.parts[0].key)


def rows(client: PersistClient, shard: str) -> int:
    return int(client.open_reader(shard).snapshot().num_rows)


@pytest.mark.parametrize("group", ["", "group: orchard\n"])
def test_the_checkpoint_task_has_the_projects_times(fruit: Fruit, client: PersistClient, group: str) -> None:
    """Else it would delete files that `persist_maintenance` still keeps."""
    del client  # it is there so that the location is in the environment
    file = fruit.dags / "collections" / f"{NAME}.yaml"
    file.write_text(file.read_text() + group)
    (fruit.dags / "persist.yaml").write_text("maintenance: {grace_hours: 240, intent_hours: 720}\n")
    dag: Any = next(iter(build_dags(fruit.dags / "collections").values()))
    (task,) = (each for each in dag.tasks if each.task_id.endswith("checkpoint_manifest"))
    assert getattr(task, "batch", task).maintenance == MaintenanceConfig(grace_hours=240, intent_hours=720)
    (fruit.dags / "persist.yaml").write_text("maintenance: {grace_hour: 240}\n")
    found = announced_as(fruit.dags)["maintenance"]
    assert found is not None
    assert found.grace_hours > 240, "a mistake in the file deletes nothing that it may keep"


@pytest.mark.family("tasks")
def test_each_shard_with_debt_has_a_task_of_its_own(
    tmp_path: Path, migrated: Path, location: PersistLocation, client: PersistClient
) -> None:
    for shard, commits in (("busy", 12), ("broken", 14), ("quiet", 2), ("other", 9)):
        fill(client, shard, commits)
    lose_a_part(client, "broken")
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "maintenance_dag.py").write_text(DAG_FILE)
    (dags / "persist.yaml").write_text('maintenance: {schedule: "15 * * * *"}\n')
    out = run(dags, migrated, location, "-c", DRIVER, str(dags), str(tmp_path / "empty"))
    (state, tasks), nothing_to_do = json.loads(out.splitlines()[-1])
    assert (state, tasks) == (
        "failed",
        {
            "list_shards[-1]": "success",
            "maintain_shard[broken]": "failed",
            "maintain_shard[busy]": "success",
            "maintain_shard[other]": "success",
        },
    )
    assert "corrupt_artifact" in out
    for shard, commits in (("busy", 12), ("other", 9)):
        assert not debt_of(client.state(shard), now_ms=client.clock.now_ms()), shard
        assert len(client.state(shard).batches) < 3
        assert rows(client, shard) == commits
    assert len(client.state("broken").batches) == 14
    assert len(client.state("quiet").batches) == 2
    assert nothing_to_do == ["success", {"list_shards[-1]": "success", "maintain_shard[-1]": "skipped"}]


def execute(operator: Any) -> Any:
    return operator.execute({"ti": SimpleNamespace(xcom_push=lambda **_: None)})


def test_the_largest_debt_comes_first_and_the_rest_waits(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard, commits in (("small", 9), ("large", 11), ("middle", 10), ("none", 2)):
        fill(client, shard, commits)
    assert execute(ListShardsToMaintainOperator(task_id="list")) == ["large", "middle", "small"]
    assert execute(ListShardsToMaintainOperator(task_id="list", max_shards=2)) == ["large", "middle"]
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "1")
    assert execute(ListShardsToMaintainOperator(task_id="list")) == ["large"], "Airflow maps no longer list"


@pytest.mark.parametrize("failing", [1, MAX_UNREAD, MAX_UNREAD + 1])
def test_a_store_that_fails_for_one_shard_stops_no_other(
    client: PersistClient, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A store that fails for many of them is down."""
    names = [f"shard{number}" for number in range(MAX_UNREAD + 3)]
    for shard in names:
        fill(client, shard, 9)
    broken, real = names[1 : 1 + failing], PersistClient.state

    def state(self: PersistClient, shard: str) -> Any:
        if shard in broken:
            raise Determinate("the store is away")
        return real(self, shard)

    monkeypatch.setattr(PersistClient, "state", state)
    if failing > MAX_UNREAD:
        with pytest.raises(PersistStepFailed, match="the store is away"):
            execute(ListShardsToMaintainOperator(task_id="list"))
        return
    found = execute(ListShardsToMaintainOperator(task_id="list"))
    assert found[:failing] == broken
    assert sorted(found) == names


def test_a_task_says_what_it_did_and_what_is_still_due(client: PersistClient) -> None:
    fill(client, "fruit", 12)
    done = execute(MaintainShardOperator(task_id="maintain", shard="fruit", max_merges=0))
    assert done["summary"].endswith(". Still due: a merge of 12 batches, 12 rows")
    assert done["owed"]["merge"] == {"batches": 12, "rows": 12}
    done = execute(MaintainShardOperator(task_id="maintain", shard="fruit"))
    assert done["summary"].startswith("fruit: merged 12 rows: 12 batches before, 1 after")
    json.dumps(done)
    fill(client, "lost", 12)
    lose_a_part(client, "lost")
    with pytest.raises(AirflowFailException, match="corrupt_artifact"):
        execute(MaintainShardOperator(task_id="maintain", shard="lost"))


def test_a_large_merge_is_a_spark_job(client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, "fruit", 12)
    specs: list[JobSpec] = []

    def start(_self: Any, _context: Any, items: Sequence[JobSpec], _arguments: Sequence[str]) -> Ended:
        specs.extend(items)
        record_failure(client.blob, items[0], OutdatedDescription.kind, "another merge was faster")
        return Ended("")

    monkeypatch.setattr(MaintainShardOperator, "_start", start)
    done = execute(MaintainShardOperator(task_id="maintain", shard="fruit", max_rows=11, max_merges=1))
    assert (done["merges"], done["lost_merges"], done["owed"]["merge"]["rows"]) == (0, 1, 12)
    ((inputs, bounds),) = [(spec.config, spec.description) for spec in specs]
    assert isinstance(inputs, MergeInputs)
    assert (len(inputs.inputs), bounds.lower, bounds.upper) == (12, 0, 12)


def test_the_configuration_reaches_the_tasks(tmp_path: Path) -> None:
    settings = MaintenanceConfig(pool="slow", max_tasks=3, max_rows=7, max_merges=2, max_shards=5, max_merge_bytes=9)
    dag: Any = build_maintenance_dag(ProjectConfig(maintenance=settings), default_args={"retries": 4})
    listing, mapped = dag.get_task("list_shards"), dag.get_task("maintain_shard")
    assert (dag.max_active_runs, dag.catchup, listing.max_shards) == (1, False, 5)
    assert (mapped.pool, mapped.max_active_tis_per_dag, mapped.priority_weight, mapped.retries) == ("slow", 3, 0, 4)
    assert {name: mapped.partial_kwargs[name] for name in ("max_rows", "max_merges", "max_merge_bytes")} == {
        "max_rows": 7,
        "max_merges": 2,
        "max_merge_bytes": 9,
    }
    wrong = tmp_path / "persist.yaml"
    wrong.write_text("maintenance: {scheduel: '@daily'}\n")
    with pytest.raises(ConfigError, match=r"persist.yaml: maintenance.scheduel: found an unknown field.*'schedule'"):
        build_maintenance_dag(wrong)
