"""`persist errors NAME --rejected`: what was wrong with the newest batch that was refused."""

from __future__ import annotations

from dataclasses import asdict

from persist_core.cli import output
from persist_core.cli.session import Session
from persist_core.spark_job.answer import newest_rejected
from persist_core.time_text import format_time, show_time


def print_rejected(session: Session, shard: str, limit: int | None) -> None:
    """Samples of the errors of the refused batch, with the position of each. With `--json` one object a line."""
    found = newest_rejected(session.client, shard)
    samples = () if found is None else found.samples[:limit]
    if session.as_json:
        output.print_ndjson(asdict(each) for each in samples)
        return
    if found is None:
        output.print_line(f"no batch of {shard} was refused for its errors, or GC has deleted the record of it")
        return
    output.print_line(f"refused at {format_time(found.refused_ms)}: {found.message.splitlines()[0]}")
    columns = ("kind", "key", "message", "payload", "time", "read from")
    rows = [(s.kind, s.key, s.message, s.payload, show_time(s.time), s.position or "unknown") for s in samples]
    output.print_table(columns, rows)
