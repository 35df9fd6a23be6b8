"""Executors on a cluster read every input file, although the driver's temporary folder is not on their machines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from persist_core.spark_job.installation import find_spark_submit, spark_environment, spark_home
from persist_core.spark_job.jars import with_s3a_jars
from persist_spark.compat import WRITES_TO_S3
from tests.servers.spark_cluster import CONF, SparkCluster
from tests.spark.s3_store import s3_server
from tests.spark.test_s3_cluster import ROOT

pytestmark = [pytest.mark.spark_cluster, pytest.mark.family("Sparks")]
TIMEOUT_S = 450
# A driver whose temporary folder is its own: others see an empty one.
_UNSHARE = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs none "$TMPDIR" && exec "$@"',
    "-",
]


def test_copies_of_input_lie_where_executors_see_them(
    request: pytest.FixtureRequest, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    environment = {**os.environ, **spark_environment(os.environ), "TMPDIR": str(own)}
    if subprocess.run([*_UNSHARE, "true"], env=environment, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine gives a process no file system of its own (unshare)")
    uris, conf = [f"file://{tmp_path}/blobs"], dict(CONF)
    if WRITES_TO_S3:
        server = s3_server(request)
        uris.append(server.uri(server.make_bucket()))
        conf = with_s3a_jars(conf, [uris[-1]], os.environ, spark_home(os.environ))
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    submit = [str(find_spark_submit(os.environ)), "--master", spark_cluster.master, *options]
    done = subprocess.run(
        [*_UNSHARE, *submit, str(ROOT / "tests" / "spark" / "input_job.py"), str(tmp_path), *uris],
        env={**environment, "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in (".", "jobs", "plugins"))},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-60000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == [{"names": ["0", "1", "3", "4"], "errors": 1, "left": []}] * len(uris)
