"""The last task of a group: a batch that leaves the DAG while a dag run is active has not gone unseen.

Airflow removes its tasks from the dag run. `tests/e2e/test_groups.py` has a scheduler that does so.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_airflow.announce import AnnounceFailure
from persist_airflow.compat import AirflowException, AirflowFailException, AirflowSkipException
from persist_airflow.group_stages import RetryFailedOperator, WriteGroupOperator
from persist_core.errors import RunFailed
from persist_core.handles.client import PersistClient
from tests.airflow.fruit import end_ms, end_of
from tests.airflow.task_driver import DagRunDriver
from tests.airflow.test_groups import NAMES, TASKS, Orchard, uppers

pytestmark = pytest.mark.airflow_2_11

MINT, WRITE, APPEND, CHECKPOINT, RETRY = (task.partition(".")[2] for task in TASKS)
COMPLETE = "complete"
LOST = "not appended: batch_{} had begun it, and is no longer in the DAG.*`persist run {}` or the next dag run"

LEFT_OUT = "{0}: not begun: no mint of this dag run looked at it.*`persist run {0}` or the next dag run"


@pytest.fixture
def orchard(tmp_path: Path, client: PersistClient, monkeypatch: pytest.MonkeyPatch) -> Orchard:
    """Three collections with input of one day, each in a batch of its own. No Spark starts."""
    made = Orchard(tmp_path / "project", NAMES)
    for operator in (WriteGroupOperator, RetryFailedOperator):
        monkeypatch.setattr(operator, "_submit", lambda _self, _context, items, _arguments: made.submit(client, items))
    divide(made, 1)
    return made


def divide(orchard: Orchard, batch_of: int) -> None:
    (orchard.folder / "persist.yaml").write_text(f"groups: {{orchard: {{batch_of: {batch_of}}}}}\n")


def run_batches(run: DagRunDriver, numbers: range, *tasks: str) -> None:
    """Run these tasks of these batches; one that is skipped ends its batch."""
    for number in numbers:
        for task in tasks:
            try:
                run.run(f"batch_{number}.{task}")
            except AirflowSkipException:
                break


def test_nothing_is_said_of_a_run_that_is_whole(orchard: Orchard, client: PersistClient) -> None:
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 4), MINT, WRITE, APPEND, CHECKPOINT)
    run.run(COMPLETE)
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(0))
    again = DagRunDriver(orchard.dag(), end_of(0), "again")
    run_batches(again, range(1, 4), MINT)
    again.run(COMPLETE)
    assert run.dag.get_task(COMPLETE).trigger_rule == "none_failed", "it runs after tasks that were skipped"


@pytest.mark.parametrize("change", ["batch_of", "file", "group"])
def test_a_batch_that_is_gone_fails_the_run(orchard: Orchard, client: PersistClient, change: str) -> None:
    """The last batch had minted; the others go on."""
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 4), MINT)
    file = orchard.folder / "collections" / "kiwis.yaml"
    if change == "batch_of":
        divide(orchard, 2)
    elif change == "file":
        file.unlink()
    else:
        file.write_text(file.read_text().replace("group: orchard", "group: null"))
    run.dag = orchard.dag()
    assert "batch_3.append_batches" not in run.dag.task_ids
    run_batches(run, range(1, 3), WRITE, APPEND, CHECKPOINT)
    with pytest.raises(AirflowFailException, match=r"1 of 3 collections .*kiwis: " + LOST.format(3, "kiwis")) as failed:
        run.run(COMPLETE)
    assert vars(failed.value)["failed"].keys() == {"kiwis"}
    assert uppers(client) == {**dict.fromkeys(NAMES, end_ms(0)), "kiwis": 0}
    announce = [each for each in run.dag.get_task(COMPLETE).on_failure_callback if isinstance(each, AnnounceFailure)]
    assert {name for each in announce for name in each.notify} >= {"apples", "figs"}


def test_a_batch_between_them_that_was_skipped(orchard: Orchard) -> None:
    """It has returned nothing, and the next one has."""
    first = DagRunDriver(orchard.dag(), end_of(0), "first")
    run_batches(first, range(2, 3), MINT, WRITE, APPEND)
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 4), MINT)
    divide(orchard, 50)
    run.dag = orchard.dag()
    run_batches(run, range(1, 2), WRITE, APPEND, CHECKPOINT)
    with pytest.raises(AirflowFailException, match=r"1 of 3 .*kiwis: " + LOST.format(3, "kiwis")):
        run.run(COMPLETE)


@pytest.mark.parametrize("healed", [True, False])
def test_what_a_batch_has_ended_before_it_goes(orchard: Orchard, *, healed: bool) -> None:
    """Its append and its retry count; a failure that no retry takes up any more does not."""
    orchard.failing["kiwis"] = RunFailed
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 4), MINT, WRITE, APPEND)
    orchard.failing.clear()
    if healed:
        run.run(f"batch_3.{RETRY}")
    divide(orchard, 50)
    run.dag = orchard.dag()
    if healed:
        run.run(COMPLETE)
    else:
        with pytest.raises(AirflowFailException, match=r"1 of 3 .*kiwis: " + LOST.format(3, "kiwis")):
            run.run(COMPLETE)


def test_a_retry_that_was_marked_as_success_is_named(orchard: Orchard, client: PersistClient) -> None:
    """It has committed one of two, and failed. Its result is not there."""
    divide(orchard, 50)
    orchard.failing |= dict.fromkeys(("figs", "kiwis"), RunFailed)
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 2), MINT, WRITE, APPEND)
    del orchard.failing["figs"]
    with pytest.raises(AirflowException, match="kiwis"):
        run.run(f"batch_1.{RETRY}")
    assert uppers(client)["figs"] == end_ms(0)
    with pytest.raises(AirflowFailException, match=r"1 of 3 .*kiwis: not appended: .*retry_failed was marked by hand"):
        run.run(COMPLETE)


def test_a_new_collection_whose_mint_failed_twice_is_named(orchard: Orchard) -> None:
    """It has no shard yet."""
    divide(orchard, 50)
    path = orchard.folder / "collections" / "kiwis.yaml"
    path.write_text(path.read_text().replace("/feed/kiwis/", "/nowhere/"))
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 2), MINT, WRITE, APPEND)
    with pytest.raises(AirflowException, match="kiwis"):
        run.run(f"batch_1.{RETRY}")
    with pytest.raises(AirflowFailException, match=r"1 of 3 .*kiwis: not appended: .*retry_failed was marked by hand"):
        run.run(COMPLETE)


def test_a_collection_whose_mint_failed_in_a_batch_that_is_gone(orchard: Orchard) -> None:
    path = orchard.folder / "collections" / "kiwis.yaml"
    path.write_text(path.read_text().replace("/feed/kiwis/", "/nowhere/"))
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 4), MINT)
    divide(orchard, 2)
    run.dag = orchard.dag()
    run_batches(run, range(1, 3), WRITE, APPEND, CHECKPOINT)
    with pytest.raises(AirflowFailException, match="kiwis: not appended: batch_3"):
        run.run(COMPLETE)


def test_a_collection_that_has_left_the_group(orchard: Orchard) -> None:
    """It was moved on purpose, or its file is wrong: the message has advice for both."""
    divide(orchard, 50)
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(1, 2), MINT)
    path = orchard.folder / "collections" / "figs.yaml"
    path.write_text(path.read_text().replace("group: orchard", "group: null"))
    run.dag = orchard.dag()
    run_batches(run, range(1, 2), WRITE, APPEND)
    with pytest.raises(AirflowFailException, match=r"figs: config: figs: .*left the group.*the DAG that it has now"):
        run.run(f"batch_1.{RETRY}")


def test_a_collection_that_another_batch_has_begun_again(orchard: Orchard, client: PersistClient) -> None:
    """The first batch looked at its files later, and had all of them."""
    run = DagRunDriver(orchard.dag(), end_of(0))
    run_batches(run, range(2, 4), MINT)
    divide(orchard, 50)
    run.dag = orchard.dag()
    run_batches(run, range(1, 2), MINT, WRITE, APPEND, CHECKPOINT)
    run.run(COMPLETE)
    assert uppers(client) == dict.fromkeys(NAMES, end_ms(0))


def test_a_collection_that_no_mint_has_looked_at(orchard: Orchard, client: PersistClient) -> None:
    """It came into a batch whose mint had ended; one that is new since then has lost nothing."""
    before = DagRunDriver(orchard.dag(), end_of(0), "before")
    run_batches(before, range(1, 4), MINT, WRITE, APPEND, CHECKPOINT)
    run = DagRunDriver(orchard.dag(), end_of(1))
    run_batches(run, range(1, 2), MINT)
    divide(orchard, 2)
    run.dag = orchard.dag()
    run_batches(run, range(2, 3), MINT)
    run_batches(run, range(1, 3), WRITE, APPEND, CHECKPOINT)
    assert uppers(client) == {"apples": end_ms(1), "figs": end_ms(0), "kiwis": end_ms(1)}
    orchard.write("bananas")
    run.dag = orchard.dag()
    with pytest.raises(AirflowFailException, match=r"1 of 4 .*" + LEFT_OUT.format("figs")):
        run.run(COMPLETE)
    catching_up = DagRunDriver(run.dag, end_of(1), "by hand")
    run_batches(catching_up, range(1, 3), MINT, WRITE, APPEND)
    run.run(COMPLETE)
