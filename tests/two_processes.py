"""How `make test` spreads the tests over two processes, since many of them wait for a server or a scheduler.

tests with the shared Spark session   all in one process, first: Spark starts once, and they take longest
tests with a scheduler, simulations   one by one, after them: some take minutes
all others                            file by file, so that what a module sets up is set up once
"""

from __future__ import annotations

from typing import Any

_SPARK = ("tests/spark/", "tests/e2e/test_git_history.py", "tests/test_readme.py")
_OWN_SPARK = "tests/spark/test_s3_cluster.py"
_ALONE = ("tests/e2e/test_airflow_scheduler.py", "tests/e2e/test_view_chain.py", "tests/sim/")


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process, one after the other."""
    file = nodeid.partition("::")[0]
    if file.startswith(_SPARK) and file != _OWN_SPARK:
        return "spark"
    return nodeid if file.startswith(_ALONE) else file


def rank_of(nodeid: str) -> int:
    """Tests of a lower rank begin earlier."""
    group = group_of(nodeid)
    return 0 if group == "spark" else 1 if group == nodeid else 2


def scheduler(config: Any, log: Any) -> Any:
    """xdist's scheduler by groups. Its own option for that, `loadgroup`, does nothing on pytest 9."""
    from xdist.scheduler import LoadScopeScheduling

    groups: Any = LoadScopeScheduling(config, log)
    groups._split_scope = group_of
    return groups
