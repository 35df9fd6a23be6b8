"""Stands in for `spark-submit` with any master: notes what it was started with, and stages an empty batch as the job.

`driver_environment` is what Spark would give the driver: its own environment in client mode, else what the properties
say, with the Kubernetes secrets of the configuration (whose values are in STAND_IN_SECRETS).

STAND_IN_NOTES    the file for the notes, as JSON
STAND_IN_FAILS    set: end with status 1, and no answer
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

YARN, KUBERNETES = "spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv."
KUBERNETES_SECRET = "spark.kubernetes.driver.secretKeyRef."


def main() -> int:
    """Note, then stage or fail."""
    argv = sys.argv[1:]
    conf = dict(value.split("=", 1) for name, value in itertools.pairwise(argv) if name == "--conf")
    properties: dict[str, str] = {}
    folder = os.environ.get("SPARK_LOCAL_DIRS")
    scratch = oct(Path(folder).stat().st_mode & 0o777) if folder else None
    notes: dict[str, object] = {"argv": argv, "environment": dict(os.environ), "file": None, "mode": None}
    notes["scratch"] = scratch
    if "--properties-file" in argv:
        path = Path(argv[argv.index("--properties-file") + 1])
        notes |= {"file": str(path), "mode": oct(path.stat().st_mode & 0o777), "text": path.read_text()}
        properties = dict(line.split(" ", 1) for line in path.read_text().splitlines() if line)
    is_cluster = "--deploy-mode" in argv and argv[argv.index("--deploy-mode") + 1] == "cluster"
    driver = driver_environment({**properties, **conf}) if is_cluster else dict(os.environ)
    Path(os.environ["STAND_IN_NOTES"]).write_text(json.dumps({**notes, "driver": driver}))
    if "STAND_IN_FAILS" in os.environ:
        sys.stdout.write("java.lang.OutOfMemoryError: Java heap space\n")
        return 1
    stage(driver, argv[-4:])
    sys.stdout.write("Container exited, exit code: 0\n")
    return 0


def driver_environment(settings: dict[str, str]) -> dict[str, str]:
    """The files and settings that the driver of a cluster gets."""
    secrets = json.loads(os.environ.get("STAND_IN_SECRETS", "{}"))
    found = {}
    for name, value in settings.items():
        for prefix in (YARN, KUBERNETES):
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = value
        if name.startswith(KUBERNETES_SECRET):
            found[name.removeprefix(KUBERNETES_SECRET)] = secrets[value]
    return found


def stage(driver: dict[str, str], arguments: list[str]) -> None:
    """Act as the job, with an empty batch."""
    from persist_core.handles.client import PersistClient
    from persist_core.location.open import open_location
    from persist_core.location.settings import location_from
    from persist_core.spark_job.spec import load_spec

    with open_location(location_from(env=driver)) as location:
        spec = load_spec(location.blob, arguments)
        writer = PersistClient(location).open_writer(spec.config.name)
        writer.stage(spec.description, spec.collection.collection_schema(), spec.attempt)


if __name__ == "__main__":
    sys.exit(main())
