"""Where a Spark job of a test dies by SIGKILL. Python imports this as the job starts: see `kill_points`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JOB = ("job.staged",)  # all parts are there, the manifest is not; the worker lives, and sees its job fail

_SITECUSTOMIZE = """
from pathlib import Path
from tests.airflow.kill_in_job import install
install(Path({folder!r}))
"""


def dying(folder: Path) -> Callable[[str], None]:
    """Returns a function that kills this process at a point that is armed in `folder`."""

    def die(point: str) -> None:
        try:
            (folder / point).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die


def pass_on(folder: Path) -> None:
    """Let every Python that this process starts from now on look for the points in `folder`."""
    site = folder.with_name(f"{folder.name}_in_job")
    if str(site) not in os.environ.get("PYTHONPATH", ""):
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(folder=str(folder)))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":")


def install(folder: Path) -> None:
    """Put the points of `JOB` into this process, before any code takes `stage_manifest` from where it stands."""
    if not any(folder.glob(f"{point}*") for point in JOB):
        return
    from persist_core.contents.batch import BatchManifest
    from persist_core.handles import write
    from persist_core.location.blob import Blob

    die, inner = dying(folder), write.stage_manifest

    def stage_manifest(blob: Blob, manifest: BatchManifest, attempt: str) -> str:
        die("job.staged")
        die(f"job.staged.{manifest.shard}")  # of a job of several shards
        return inner(blob, manifest, attempt)

    write.stage_manifest = stage_manifest
