"""How tests spread over two processes or more, since many of them wait for a server or a scheduler.

tests with the shared Spark session    all in one process, first: Spark starts once, and they take longest; with three
                                       processes in two of them, or all others would end before
tests on the shared Spark cluster      all in one process
tests on the Spark Connect server      all in one process
tests with one Airflow of `make up`    all in one process
tests that take some ten seconds each  one by one
all others                             file by file, so that what a module sets up is set up once

The longest begin first: what begins last decides by how much one process ends before the other.
"""

from __future__ import annotations

from typing import Any

_SPARK = ("tests/spark/", "tests/e2e/test_git_history.py", "tests/e2e/test_debezium.py", "tests/test_readme.py")
_CLUSTER = ("tests/spark/test_cluster_", "tests/spark/test_s3_cluster.py", "tests/e2e/test_spark_on_s3.py")
_CONNECT = (
    "tests/test_examples.py",
    "tests/test_first_week.py",
    "tests/core/cli/test_feed.py",
    "tests/airflow/test_compiled_code.py",
    "tests/airflow/test_spark_connect.py",
)
_UP = "tests/e2e/test_up.py"
# In this order. Tests of the first file make the archive of Spark's classes, which others use.
_ALONE = (
    "tests/e2e/test_airflow_scheduler.py",
    "tests/e2e/test_late_feed.py",
    "tests/e2e/test_groups.py",
    "tests/e2e/test_feeds_on_s3.py",
    "tests/airflow/test_kills.py",
    "tests/airflow/test_dag_runs.py",
    "tests/sim/",
)


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process, one after the other."""
    file = nodeid.partition("::")[0]
    if file.startswith(_CLUSTER):
        return "cluster"
    if file.startswith(_SPARK):
        return "spark" if _processes < 3 else f"spark {'1st' if file.rpartition('/')[2] < 'test_r' else '2nd'} half"
    if file.startswith(_CONNECT):
        return "connect"
    return nodeid if file.startswith(_ALONE) else file


_processes = 2
_seconds: dict[str, float] = {}


def count(nodeid: str, seconds: float) -> None:
    """Add the time of a test, of its set-up, or of what follows it."""
    group = group_of(nodeid)
    _seconds[group] = _seconds.get(group, 0.0) + seconds


def longest(groups: int = 15) -> list[str]:
    """The groups that took longest, and all together."""
    ranked = sorted(_seconds.items(), key=lambda item: -item[1])[:groups]
    return [f"{seconds:6.0f} s  {group}" for group, seconds in [*ranked, ("together", sum(_seconds.values()))]]


def rank_of(nodeid: str) -> int:
    """Tests of a lower rank begin earlier."""
    group = group_of(nodeid)
    shared = ("spark", "spark 1st half", "spark 2nd half", "cluster", _UP, "connect")
    if group in shared:
        return shared.index(group)
    return len(shared) + next((rank for rank, path in enumerate(_ALONE) if nodeid.startswith(path)), len(_ALONE))


def begin(processes: int) -> None:
    """Tell how many processes there are: to the one that spreads the tests, and to each of the others."""
    global _processes
    _processes = processes


def scheduler(config: Any, log: Any) -> Any:
    """xdist's scheduler by groups. Its own option for that, `loadgroup`, does nothing on pytest 9."""
    from xdist.scheduler import LoadScopeScheduling

    begin(int(config.option.numprocesses))
    groups: Any = LoadScopeScheduling(config, log)
    groups._split_scope = group_of
    return groups
