"""persist_spark: the data plane. DataFrame in, DataFrame out, within the API that Spark Connect has too.

snapshot, errors, changes, error_changes    read a shard from Spark
named_failures                              around an action on what they return: errors that say what to do
persistent_upsert                           records -> differential updates, as a pure DataFrame function
install_desired_into_persist                desired rows against persisted ones -> differential updates, likewise
"""

from __future__ import annotations

from persist_spark.read.frames import changes, error_changes, errors, named_failures, snapshot
from persist_spark.upsert.plan import persistent_upsert
from persist_spark.view.difference import install_desired_into_persist

__all__ = [
    "changes",
    "error_changes",
    "errors",
    "install_desired_into_persist",
    "named_failures",
    "persistent_upsert",
    "snapshot",
]
