"""The shared parts of every test session: one seed, Hypothesis' profiles, and a closing list of the real parts it used.

PERSIST_SEED=123      replays a session's random choices; without it CI takes a fixed seed, others a fresh one
PERSIST_DRAW=...      which slow tests run (tests/sampling.py); without it CI takes the commit, others the seed
PERSIST_PROFILE=...   how hard Hypothesis tries: `dev` (default), `ci` (default where CI is set), `nightly`
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from persist_core.spark_job.installation import spark_home
from persist_core.spark_job.jars import with_s3a_jars
from tests import real_parts, two_processes
from tests.local_spark import local_spark
from tests.sampling import leave_out
from tests.servers import s3
from tests.servers.backends import consensus_uri
from tests.servers.postgres import own_postgres, pgbouncer, postgres
from tests.servers.postgres_store import one_thread, other_client, postgres_store
from tests.servers.spark_cluster import spark_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.servers.spark_connect import ConnectServer

# The servers' fixtures.
__all__ = [
    "consensus_uri",
    "one_thread",
    "other_client",
    "own_postgres",
    "pgbouncer",
    "postgres",
    "postgres_store",
    "spark_cluster",
]

CI_SEED = 20261121  # a fixed seed: CI must not fail by chance on an unrelated change; nightly runs use new ones
_EXAMPLES = {"dev": 50, "ci": 50, "nightly": 2_000}


def _choose_seed(profile: str) -> int:
    given = os.environ.get("PERSIST_SEED")
    if given is not None:
        try:
            return int(given)
        except ValueError:
            raise pytest.UsageError(f"PERSIST_SEED={given!r}: wanted an integer, as a session printed it") from None
    return CI_SEED if profile == "ci" else random.SystemRandom().getrandbits(32)


def _choose_draw(profile: str, seed: int) -> str:
    """The text by which this session draws its slow tests: in CI the commit, if there is a repository."""
    if given := os.environ.get("PERSIST_DRAW"):
        return given
    if profile != "ci" or shutil.which("git") is None:
        return str(seed)
    commit = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(commit, capture_output=True, text=True, check=False).stdout.strip() or str(seed)


def _choices() -> str:
    return " ".join(f"{name}={os.environ[name]}" for name in ("PERSIST_SEED", "PERSIST_DRAW"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the profile and hand the seed to Hypothesis, before its own plugin configures itself."""
    profile = os.environ.get("PERSIST_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
    if profile not in _EXAMPLES:
        raise pytest.UsageError(f"PERSIST_PROFILE={profile!r}: wanted one of {', '.join(_EXAMPLES)}")
    for name, examples in _EXAMPLES.items():
        settings.register_profile(
            name,
            max_examples=examples,
            deadline=None,  # the machine's load is not a property of the code
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=True,
            database=settings().database if name == "dev" else None,
        )
    settings.load_profile(profile)
    s3.own_environment()
    seed = _choose_seed(profile)
    os.environ["PERSIST_SEED"] = str(seed)  # child processes (jobs, schedulers) use the same seed
    os.environ["PERSIST_DRAW"] = _choose_draw(profile, seed)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Spark before 4.3 leaves the socket of each `collect` to the garbage collector; we cannot correct that."""
    if importlib.util.find_spec("pyspark") is None:
        return
    release = tuple(int(part) for part in importlib.metadata.version("pyspark").split(".")[:2])
    if release < (4, 3):
        for rule in (
            "ignore:unclosed <socket:ResourceWarning",
            "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
        ):
            session.config.addinivalue_line("filterwarnings", rule)


def pytest_report_header() -> str:
    """The line that makes a failure repeatable."""
    return f"seed: {_choices()}, profile: {settings.get_current_profile_name()}"


@pytest.hookimpl(trylast=True)  # after the choice by `-k` and `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Some slow tests are left out. Tests that run in two processes begin with the longest."""
    leave_out(items)
    if hasattr(config, "workerinput"):
        two_processes.begin(int(config.workerinput["workercount"]))
        items.sort(key=lambda item: two_processes.rank_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests stay together in one process."""
    return two_processes.scheduler(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Where the time goes."""
    two_processes.count(report.nodeid, report.duration)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process among several sends its real parts to the one that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["real_parts"] = real_parts.facts()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The other end of that; a process that crashed sends nothing."""
    real_parts.take(getattr(node, "workeroutput", {}).get("real_parts", {"used": {}, "missing": {}}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Print the real parts of this session, and after a failure how to repeat its random choices."""
    if hasattr(terminalreporter.config, "workerinput"):
        return
    terminalreporter.section("real parts")
    for line in real_parts.lines():
        terminalreporter.write_line(line)
    terminalreporter.section("time by group")
    for line in two_processes.longest():
        terminalreporter.write_line(line)
    if exitstatus:
        terminalreporter.write_line(f"replay the same random choices: {_choices()}")


@pytest.fixture(scope="session")
def persist_seed() -> int:
    """The session's seed, for tests that draw without Hypothesis."""
    return int(os.environ["PERSIST_SEED"])


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """A real S3-speaking server; its credentials are in the environment."""
    yield from s3.running("versitygw", tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3Server]:
    """A second one, if `make minio` has built it."""
    yield from s3.running("minio", tmp_path_factory.mktemp("s3"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small Spark session for all tests that need one."""
    session = local_spark("persist-tests", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_server() -> Iterator[ConnectServer]:
    """One Spark Connect server for all tests that need one. It can use S3, if the jars are there."""
    pytest.importorskip("pyspark.sql.connect.client", reason="needs Spark Connect", exc_type=ImportError)
    pytest.importorskip("airflow", reason="the server starts as the embedded Airflow's does")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    from tests.servers.spark_connect import running

    yield from running(with_s3a_jars({}, ["s3:"], os.environ, spark_home(os.environ)))
