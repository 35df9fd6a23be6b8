"""`persist run` of one shard, in the process of a test."""

from __future__ import annotations

from collections.abc import Callable

from persist_core.config.shard import ShardConfig
from persist_core.errors import PersistError
from persist_core.handles.client import PersistClient
from persist_core.protocol.run import RunReport, RunRequest, Write, bring_up_to_date


def run_one(
    client: PersistClient,
    config: ShardConfig,
    *,
    until: int | None,
    write: Write,
    say: Callable[[str], None] = lambda _: None,
) -> RunReport:
    """Bring the shard up to `until`. Raises the error of the run."""
    (found,) = bring_up_to_date(
        client, [RunRequest(config, until)], write=lambda asked: [write(each) for _, each in asked], say=say
    )
    if isinstance(found, PersistError):
        raise found
    return found
