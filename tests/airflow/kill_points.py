"""Points in the four tasks, and in their Spark job, at which a test kills a process by SIGKILL, once each.

A point is armed by a file of its name in a folder; the process that reaches it removes the file and kills itself.
`install` is called by a worker (see `kill_driver.py`) or at the head of a DAG file: then a real scheduler's tasks die.
Spark jobs that are started from there have the point of `kill_in_job`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from persist_airflow.spark import WriteBatchesOperator
from persist_core.handles.client import PersistClient
from persist_core.handles.since import SinceHandle
from persist_core.handles.write import WriteHandle
from persist_core.location import FileBlob, S3Blob
from persist_core.protocol import run, stages
from tests.airflow.kill_in_job import dying, pass_on

DURING_S = 4.0  # into a Spark job: the JVM is up, the parts are not yet staged

MINT = ("mint.before", "mint.shard_made", "mint.input_frozen", "mint.after")
WRITE = ("write.before", "write.during", "write.after")
APPEND = ("append.before", "append.committed", "append.after")
CONFLICT = ("conflict.recorded", "conflict.alerted")
CHECKPOINT = ("checkpoint.before", "checkpoint.manifest", "checkpoint.latest", "checkpoint.after")
# What a view adds.
MINT_VIEW = ("mint.before", "mint.shard_made", "mint.held", "mint.input_frozen", "mint.after")
CHECKPOINT_VIEW = (*CHECKPOINT[:-1], "checkpoint.hold_moved", CHECKPOINT[-1])


def arm(folder: Path, point: str) -> None:
    """Let the next process that reaches `point` die there."""
    folder.mkdir(exist_ok=True)
    (folder / point).touch()


def armed(folder: Path) -> list[str]:
    """Points that no process has reached yet."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def install(folder: Path) -> None:
    """Put the points into this process, and into the Spark jobs that it starts."""
    die = dying(folder)

    def around(owner: Any, name: str, before: str | None, after: str | None) -> None:
        inner = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if before:
                die(before)
            result = inner(*arguments, **options)
            if after:
                die(after)
            return result

        setattr(owner, name, wrapped)

    around(stages, "mint", "mint.before", "mint.after")
    around(stages, "_as_defined", None, "mint.shard_made")
    around(run, "write_staged", "write.before", "write.after")
    around(stages, "write_without_input", None, "write.without_input")
    around(WriteHandle, "compare_and_append", "append.before", "append.committed")
    around(stages, "append", None, "append.after")
    around(stages, "checkpoint", "checkpoint.before", "checkpoint.after")
    around(PersistClient, "open_since", None, "mint.held")
    around(SinceHandle, "downgrade", None, "checkpoint.hold_moved")
    _install_submit(folder)
    _install_blob(die)
    pass_on(folder)


def _install_submit(folder: Path) -> None:
    inner = WriteBatchesOperator._submit

    def submit(self: Any, context: Any, items: Any, arguments: Any) -> int:
        point = folder / "write.during"
        if not point.exists():
            return inner(self, context, items, arguments)
        point.unlink()
        timer = threading.Timer(DURING_S, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()
        ended = inner(self, context, items, arguments)
        timer.join()  # on a fast machine the job ends before; the task must not
        return ended

    WriteBatchesOperator._submit = submit  # type: ignore[method-assign] # that is what a fault point is


def _install_blob(die: Callable[[str], None]) -> None:
    """Points right after certain keys were written."""
    endings = {
        "/inputs/": "mint.input_frozen",
        "/manifest.json": "checkpoint.manifest",
        "/_latest": "checkpoint.latest",
        "/conflicts/": "conflict.recorded",
        "/conflict_alerts/": "conflict.alerted",
    }

    def install_on(store: type[FileBlob] | type[S3Blob]) -> None:
        inner: Callable[[Any, str, bytes], None] = store.set

        def set_and_die(self: Any, key: str, data: bytes) -> None:
            inner(self, key, data)
            for part, point in endings.items():
                if part in f"/{key}" and ("/checkpoints/" in key or not point.startswith("checkpoint")):
                    die(point)

        store.set = set_and_die  # type: ignore[method-assign] # that is what a fault point is

    install_on(FileBlob)
    install_on(S3Blob)
