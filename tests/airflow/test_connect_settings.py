"""Settings of a Spark Connect server change no result: its jobs and its readers, as in `tests.spark.platform_work`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sampling import is_long
from tests.servers.spark_connect import ConnectServer, running
from tests.spark.platform_work import CHANGED_RESULTS, oracle, rows_of

TIMEOUT_S = 400


@pytest.fixture
def odd() -> Iterator[ConnectServer]:
    yield from running(CHANGED_RESULTS)


@pytest.mark.skipif(not is_long(), reason="tests/spark shows it without a server (PERSIST_PROFILE=nightly)")
def test_settings_of_a_server_that_changed_results_do_not(odd: ConnectServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.platform_work", str(tmp_path)],
        env={**os.environ, "SPARK_REMOTE": odd.url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {"contents": oracle(), "read": rows_of(oracle())}
