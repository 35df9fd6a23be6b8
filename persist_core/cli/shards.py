"""Commands that look at shards from outside: `shards`, `describe`, `checkpoints`, `conflicts`, `fsck`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from persist_core.checkpoint.checkpointer import BlobCheckpointer
from persist_core.checkpoint.manifest import CheckpointManifest
from persist_core.cli import output
from persist_core.cli.session import Session, with_session
from persist_core.compaction.plan import next_merge
from persist_core.errors import CorruptArtifact, Corruption
from persist_core.handles.client import PersistClient
from persist_core.maintenance.fsck import CheckpointRepair, FsckReport, fsck, repair
from persist_core.protocol.conflicts import list_conflicts
from persist_core.shard.keys import check_shard_name
from persist_core.shard.state import ShardState

UNREADABLE = "the manifest can't be read"


@click.command()
@with_session
def shards(session: Session) -> None:
    """List the shards of the location, with their frontiers."""
    bodies = [_shard_body(session.client, name) for name in session.client.shards()]
    if session.as_json:
        output.print_ndjson(bodies)
        return
    rows = [
        (b["shard"], b["error"], "", "", "", "")
        if "error" in b
        else (
            b["shard"],
            output.show_time(b["since"]),
            output.show_time(b["upper"]),
            b["batches"],
            output.show_bytes(b["size_bytes"]),
            output.show_time(b["committed_ms"]) if b["committed_ms"] is not None else "never",
        )
        for b in bodies
    ]
    columns = ("shard", "since", "upper", "batches", "size", "last commit")
    output.print_table(columns, rows, empty=f"no shards in {session.client.location.consensus.uri}")


def _shard_body(client: PersistClient, name: str) -> dict[str, Any]:
    try:
        state = client.state(name)
    except Corruption as error:
        return {"shard": name, "error": f"{error.kind}: {error}"}
    newest = state.newest_commit
    return {
        "shard": name,
        "since": state.since.time,
        "upper": state.upper.time,
        "is_dropped": state.is_dropped,
        "batches": len(state.batches),
        "size_bytes": sum(batch.size_bytes for batch in state.batches),
        "committed_ms": newest.committed_ms if newest else None,
    }


@click.command()
@click.argument("shard")
@with_session
def describe(session: Session, shard: str) -> None:
    """Frontiers, schema, sizes, progress and holders of SHARD."""
    state = session.client.state(shard)
    body = _description_of(state)
    if session.as_json:
        output.print_json(body)
        return
    newest = state.newest_commit
    output.print_facts(
        [
            ("shard", shard),
            ("since", output.show_frontier(state.since)),
            ("upper", output.show_frontier(state.upper)),
            ("batches", f"{len(state.batches)}, {body['updates']} updates, {output.show_bytes(body['size_bytes'])}"),
            (
                "last commit",
                "never"
                if newest is None
                else f"{output.show_time(newest.committed_ms)} by {newest.writer}, checkpoint {newest.checkpoint_id}",
            ),
            ("compaction", _due(state)),
            ("state", f"version {state.seqno}"),
            *((f"source {name}", _progress(offsets)) for name, offsets in body["sources"].items()),
            *(
                (f"lease {lease['reader']}", f"holds {output.show_time(lease['since'])}, until {lease['expires_ms']}")
                for lease in body["leases"]
            ),
            *((f"hold {hold['holder']}", f"holds {output.show_time(hold['since'])}") for hold in body["holds"]),
        ]
    )
    if state.schema is not None:
        keys = state.schema.key_names
        rows = [
            (c.name, c.type, "key" if c.name in keys else "" if c.nullable else "not null")
            for c in state.schema.columns
        ]
        output.print_table(("column", "type", ""), rows)


def _description_of(state: ShardState) -> dict[str, Any]:
    newest = state.newest_commit
    return {
        "shard": state.shard,
        "seqno": state.seqno,
        "since": state.since.time,
        "upper": state.upper.time,
        "is_dropped": state.is_dropped,
        "schema": state.schema.to_json() if state.schema else None,
        "batches": len(state.batches),
        "updates": sum(batch.counts.updates for batch in state.batches),
        "size_bytes": sum(batch.size_bytes for batch in state.batches),
        "due_merge": _due_merge(state),
        "newest_commit": asdict(newest) if newest else None,
        "sources": {name: _offsets(source.offsets) for name, source in state.sources.items()},
        "leases": [
            {"reader": name, "since": lease.since.time, "expires_ms": lease.heartbeat_ms + lease.duration_ms}
            for name, lease in sorted(state.leases.items())
        ],
        "holds": [{"holder": name, "since": hold.since.time} for name, hold in sorted(state.holds.items())],
    }


def _due_merge(state: ShardState) -> dict[str, int] | None:
    due = next_merge(state.batches)
    return {"batches": len(due), "rows": sum(batch.counts.rows for batch in due)} if due else None


def _due(state: ShardState) -> str:
    due = _due_merge(state)
    if due is None:
        return "nothing is due"
    return f"a merge of {due['batches']} batches, {due['rows']} rows, is due: `persist maintain {state.shard}`"


def _offsets(offsets: Mapping[str, Any]) -> dict[str, Any]:
    """A source's progress, with long lists as their length."""
    return {name: len(value) if isinstance(value, list | tuple) else value for name, value in offsets.items()}


def _progress(offsets: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(offsets.items()))


@click.command()
@click.argument("shard")
@with_session
def checkpoints(session: Session, shard: str) -> None:
    """The checkpoints of SHARD, oldest first."""
    session.client.state(shard)
    checkpointer = BlobCheckpointer(session.client.blob, shard)
    latest, listing = None, checkpointer.listing()
    try:
        latest = checkpointer.read_latest()
    except CorruptArtifact as error:
        session.say(f"warning: {error}; the next run writes it again")
    manifests, pinned, unreadable = listing.manifests, listing.pinned, listing.unreadable
    if session.as_json:
        output.print_ndjson(
            {
                "checkpoint_id": manifest.checkpoint_id,
                "epoch": manifest.epoch,
                "timestamp_ms": manifest.timestamp_ms,
                "parent_id": manifest.parent_id,
                "is_delta": manifest.is_delta,
                "is_latest": manifest.checkpoint_id == latest,
                "is_pinned": manifest.checkpoint_id in pinned,
                "restored_from": manifest.restored_from,
                "since": manifest.shard.since if manifest.shard else None,
                "upper": _upper(manifest),
                "operators": {name: state.total_bytes for name, state in manifest.operators.items()},
                "total_size_bytes": manifest.total_size_bytes,
            }
            for manifest in manifests
        )
        output.print_ndjson({"checkpoint_id": each, "error": UNREADABLE} for each in unreadable)
        return
    rows: list[tuple[Any, ...]] = []
    for manifest in manifests:
        marks = (" (latest)" if manifest.checkpoint_id == latest else "") + (
            " (pinned)" if manifest.checkpoint_id in pinned else ""
        )
        rows.append(
            (
                manifest.checkpoint_id + marks,
                manifest.epoch,
                output.show_time(manifest.timestamp_ms),
                output.show_time(_upper(manifest)),
                output.show_bytes(manifest.total_size_bytes),
                manifest.parent_id,
                manifest.restored_from or "",
            )
        )
    rows += [(each, UNREADABLE, "", "", "", "", "") for each in unreadable]
    columns = ("checkpoint", "epoch", "made", "upper", "state size", "parent", "restored from")
    output.print_table(columns, rows, empty="no checkpoints")


def _upper(manifest: CheckpointManifest) -> int | None:
    return manifest.shard.upper if manifest.shard else manifest.watermark


@click.command()
@click.argument("shard")
@with_session
def conflicts(session: Session, shard: str) -> None:
    """The lost appends of SHARD, oldest first: both writers, the expected upper and the upper that was found."""
    session.client.state(shard)
    records = list_conflicts(session.client.blob, shard)
    if session.as_json:
        output.print_ndjson(asdict(record) for record in records)
        return
    rows = [
        (
            output.show_time(r.detected_ms),
            output.show_time(r.expected_upper),
            output.show_time(r.found_upper),
            r.loser,
            r.winner,
        )
        for r in records
    ]
    output.print_table(("detected", "expected upper", "found upper", "lost", "won"), rows, empty="no conflicts")


@click.command("fsck")
@click.argument("shard", required=False)
@click.option(
    "--repair",
    "with_repair",
    is_flag=True,
    help="First write again what commits determine: checkpoints, copies of operator state, _latest. Nothing else.",
)
@with_session
def check(session: Session, shard: str | None, with_repair: bool) -> None:
    """Check SHARD, or all shards: every stored byte, and the invariants. Exit code 4 if anything is wrong."""
    names = session.client.shards() if shard is None else [check_shard_name(shard)]
    is_clean = True
    for name in names:
        repaired = repair(session.client, name) if with_repair else None
        report = fsck(session.client, name)
        is_clean = is_clean and report.is_clean
        _print_report(session, report, repaired)
    if not is_clean:
        raise SystemExit(4)


def _print_report(session: Session, report: FsckReport, repaired: CheckpointRepair | None) -> None:
    if session.as_json:
        body = {**asdict(report), "is_clean": report.is_clean}
        output.print_json(body if repaired is None else {**body, "repair": asdict(repaired)})
        return
    verdict = "clean" if report.is_clean else f"{len(report.violations)} violations"
    output.print_line(
        f"{report.shard}: {verdict} ({report.batches} batches, {report.parts} parts, {report.updates} updates,"
        f" {output.show_bytes(report.size_bytes)})"
    )
    for name, done in [] if repaired is None else asdict(repaired).items():
        for each in done:
            output.print_line(f"  {name}: {each}")
    for violation in report.violations:
        output.print_line(f"  {violation.check}: {violation.message}")
