"""Actions on one shard, with one result for all callers: the command line and Airflow's operators.

restore, fork, resolve, pin, unpin, release, fsck, erase, acknowledge -> Done(facts for programs, lines for people)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from persist_core.alerts.board import WatchBoard
from persist_core.alerts.facts import facts_of
from persist_core.checkpoint import pins
from persist_core.checkpoint.checkpointer import Checkpointer
from persist_core.checkpoint.publish import publish_missing
from persist_core.contents.batch import BatchCounts
from persist_core.contents.erased import key_texts
from persist_core.contents.err_groups import pattern_of
from persist_core.contents.key_range import Key, parse_key
from persist_core.contents.stats import show_bytes
from persist_core.errors import InvalidInput, RunFailed, StorageError
from persist_core.handles.client import PersistClient
from persist_core.inspection import holders
from persist_core.keys import check_checkpoint_id, check_shard_name
from persist_core.maintenance import drop as dropping
from persist_core.maintenance import erase as erasing
from persist_core.maintenance import fsck
from persist_core.maintenance.erase_objects import schema_to_erase, verify
from persist_core.maintenance.sought import MIN_WORD, Sought
from persist_core.protocol import fork as forking
from persist_core.protocol import resolve as resolving
from persist_core.protocol import restore as restoring
from persist_core.protocol.delta import MAX_UPDATES
from persist_core.protocol.restore import NothingToRestore, RestorePlan
from persist_core.protocol.stages import Conflict
from persist_core.schema import Column
from persist_core.shard.history import checked_reason
from persist_core.shard.state import Committed, ShardState
from persist_core.time_text import format_time, show_time

MAX_SHOWN = 20  # inputs in `lines`; `facts` has all
MAX_PAYLOAD = 200  # characters of a record in `lines`
MAX_KEYS = 1_000  # of one call of `erase`: each file is compared with each key


@dataclass(frozen=True)
class Done:
    """The result of an action: `facts` for `persist ... --json`, `lines` for people; the first one sums it up."""

    facts: Mapping[str, Any]
    lines: tuple[str, ...]


def restore(
    client: PersistClient,
    shard: str,
    checkpoint_id: str,
    *,
    writer: str,
    is_dry_run: bool = False,
    max_updates: int = MAX_UPDATES,
    once: bool = False,
) -> Done:
    """Restore the shard's contents, progress and stash from a checkpoint; a dry run says what would change.

    `once`: does nothing if a known commit of `writer`, a dag run, has done it: commits after it stay. Raises what
    `plan_restore` does, and `RunFailed` if another writer was faster: then nothing was restored.
    """
    check_checkpoint_id(checkpoint_id)
    known = client.state(shard).commits if once else ()
    if any((each.writer, each.restored_from) == (writer, checkpoint_id) for each in known):
        plan: RestorePlan | NothingToRestore = NothingToRestore(f"an earlier try of {writer} has restored it")
    else:
        plan = restoring.plan_restore(client, shard, checkpoint_id, max_updates=max_updates)
    if isinstance(plan, NothingToRestore):
        _publish_left(client, shard, is_dry_run=is_dry_run)
        facts = {"shard": shard, "status": "up_to_date", "restored_from": checkpoint_id, "reason": plan.reason}
        return Done(facts, (f"nothing to do: {plan.reason}",))
    if is_dry_run:
        return _restored(plan, None)
    result = restoring.restore(client, plan, writer=writer)
    if isinstance(result, Conflict):
        raise RunFailed(f"{result.record}. Shard {shard} was not restored: pause its DAG, then try again")
    return _restored(plan, result)


def _publish_left(client: PersistClient, shard: str, *, is_dry_run: bool) -> None:
    """Publish what a call that was killed after its commit has left."""
    if not is_dry_run:
        publish_missing(client, client.state(shard))


def _restored(plan: RestorePlan, done: Committed | None) -> Done:
    checkpoint, counts, files = plan.point.checkpoint, plan.updates.counts, plan.inputs_again
    dropped, version = plan.dropped_columns
    facts = {
        "shard": plan.shard,
        "status": "restored" if done else "dry_run",
        "restored_from": checkpoint.checkpoint_id,
        "checkpoint_id": done.commit.checkpoint_id if done else None,
        "lower": plan.lower,
        "upper": plan.upper,
        "counts": {name: rows for name, rows in asdict(counts).items() if name != "history"},  # only runs have it
        "state_files": sum(map(len, plan.point.operators.values())),
        "inputs_again": None if files is None else list(files),
        "dropped_columns": list(dropped),
    }
    lines = [
        f"{plan.shard} {'is' if done else 'would be'} as it was at checkpoint {checkpoint.checkpoint_id} (upper"
        f" {show_time(plan.point.upper)}), from {show_time(plan.lower)} on: {_counted(counts)}"
    ]
    if dropped:
        lines.append(
            f"not restored, because they were dropped since: {', '.join(dropped)}. `persist snapshot {plan.shard}"
            f" --schema {version}` shows them"
        )
    if files is None:
        lines.append("which inputs will be read again is not known: the record of consumed inputs is damaged")
    else:
        lines.append(f"inputs consumed since, which the next run reads again if they are still there: {len(files)}")
        lines += [f"  {path}" for path in files[:MAX_SHOWN]]
        if len(files) > MAX_SHOWN:
            lines.append(f"  and {len(files) - MAX_SHOWN} more; --json has all")
    lines.append(
        f"committed as checkpoint {done.commit.checkpoint_id}; records that come again count from"
        f" {show_time(plan.upper)} on where their own time is earlier"
        if done
        else "nothing was written"
    )
    return Done(facts, tuple(lines))


def _counted(counts: BatchCounts) -> str:
    return (
        f"{counts.insertions} rows inserted, {counts.retractions} retracted, {counts.err_insertions} errors inserted,"
        f" {counts.err_retractions} retracted"
    )


def fork(client: PersistClient, shard: str, checkpoint_id: str, new_shard: str, *, writer: str) -> Done:
    """Make `new_shard` of a checkpoint; the shard itself does not change. Raises what `protocol.fork` does."""
    check_checkpoint_id(checkpoint_id)
    check_shard_name(new_shard)
    done = forking.fork(client, shard, checkpoint_id, new_shard, writer=writer)
    commit = done.commit
    facts = {
        "shard": new_shard,
        "status": "forked" if done.is_new else "up_to_date",
        "forked_from": shard,
        "restored_from": commit.restored_from,
        "checkpoint_id": commit.checkpoint_id,
        "lower": commit.lower,
        "upper": commit.upper,
    }
    return Done(
        facts,
        (
            f"{new_shard} {'is' if done.is_new else 'was already made'} a fork of {shard} at checkpoint"
            f" {commit.restored_from}, upper {show_time(commit.upper)}; it shares the parts up to there",
            f"to continue it, write a collection file {new_shard}.yaml; {shard} did not change",
        ),
    )


def resolve(
    client: PersistClient,
    shard: str,
    *,
    at: str = "*",
    writer: str,
    is_dry_run: bool = False,
    has_payloads: bool = True,
) -> Done:
    """Remove the errs `missing_order` whose positions match a glob; a dry run says which, and their raw records.

    Raises what `resolve.plan_resolve` and `resolve.resolve` do, and `RunFailed` if another writer was faster.
    """
    plan = resolving.plan_resolve(client, shard, at=at)
    done = None
    if plan.records and not is_dry_run:
        result = resolving.resolve(client, plan, writer=writer)
        if isinstance(result, Conflict):
            raise RunFailed(f"{result.record}. Nothing of shard {shard} was resolved; try again")
        done = result.commit
    elif not plan.records:
        _publish_left(client, shard, is_dry_run=is_dry_run)
    status = "resolved" if done else "dry_run" if plan.records else "up_to_date"
    records = [asdict(record) for record in plan.records]
    for each in records:
        payload = each.pop("payload").decode(errors="replace")
        each |= {"payload": payload} if has_payloads else {"message": pattern_of(each["message"])}
    facts = {
        "shard": shard,
        "status": status,
        "checkpoint_id": done.checkpoint_id if done else None,
        "upper": done.upper if done else plan.state.upper.time,
        "records": records,
    }
    said = {
        "resolved": f"removed {len(records)} errors missing_order of {shard}, as of {show_time(plan.state.upper.time)}",
        "dry_run": f"would remove {len(records)} errors missing_order of {shard}; nothing was written",
        "up_to_date": f"nothing to do: {shard} has no error missing_order at {at}",
    }
    lines = [
        f"  {each['position']}: {each['message']}" + (f": {each['payload'][:MAX_PAYLOAD]}" if has_payloads else "")
        for each in records[:MAX_SHOWN]
    ]
    if len(records) > MAX_SHOWN:
        lines.append(f"  and {len(records) - MAX_SHOWN} more; --json has all")
    return Done(facts, (said[status], *lines))


def pin(client: PersistClient, shard: str, checkpoint_id: str) -> Done:
    """Keep a checkpoint until `unpin`. Raises `CheckpointNotFound`, and what `checkpoint.pins.pin` does."""
    pins.pin(client, shard, checkpoint_id)
    return _pinned(shard, checkpoint_id, "pinned: retention skips it", is_pinned=True)


def unpin(client: PersistClient, shard: str, checkpoint_id: str) -> Done:
    """Leave a pinned checkpoint to retention and the history again, also if its manifest is lost.

    Raises `CheckpointNotFound` for an id that is neither pinned nor a checkpoint.
    """
    was_pinned = pins.unpin(client, shard, checkpoint_id)
    if not was_pinned:
        Checkpointer(client.blob, shard).check_known(checkpoint_id)
    said = "no longer pinned: the next run may delete it" if was_pinned else "was not pinned"
    return _pinned(shard, checkpoint_id, said, is_pinned=False)


def _pinned(shard: str, checkpoint_id: str, said: str, *, is_pinned: bool) -> Done:
    facts = {"shard": shard, "checkpoint_id": checkpoint_id, "is_pinned": is_pinned}
    return Done(facts, (f"checkpoint {checkpoint_id} of {shard} {said}",))


def release(client: PersistClient, shard: str, holder: str, *, by: str, reason: str, is_forced: bool = False) -> Done:
    """End the lease or hold of `holder`. `by` and `reason` stay in the state. Raises what `holders.release` does."""
    if not reason.strip():
        raise InvalidInput(f"reason is {reason!r}; expected why {holder} is ended: it is shown to the reader")
    record = holders.release(client, shard, holder, by=by, reason=reason, is_forced=is_forced)
    said = (
        f"{record.holder} no longer holds {shard} since {show_time(record.since)}: ended by {record.by} at"
        f" {format_time(record.released_ms)}"
    )
    return Done({"shard": shard, **asdict(record)}, (said,))


def check(client: PersistClient, shard: str, *, with_repair: bool = False) -> Done:
    """fsck of one shard, after the repair of what its commits determine. `facts["is_clean"]`: nothing was found;
    `facts["is_damaged"]`: not only a store has failed.

    Damage is reported, never raised. Raises `ShardNotFound`. The result is kept for alerts.
    """
    repaired = fsck.repair(client, shard) if with_repair else None
    report = fsck.fsck(client, shard)
    facts = {**asdict(report), "is_clean": report.is_clean, "is_damaged": bool(report.damage)}
    if repaired is not None:
        facts["repair"] = asdict(repaired)
    damage, unread = len(report.damage), len(report.violations) - len(report.damage)
    found = [f"{damage} violations"] * bool(damage) + [f"{unread} could not be checked"] * bool(unread)
    verdict = ", ".join(found) or "clean"
    lines = [
        f"{report.shard}: {verdict} ({report.batches} batches, {report.parts} parts, {report.updates} updates,"
        f" {show_bytes(report.size_bytes)})"
    ]
    lines += [f"  {name}: {each}" for name, done in facts.get("repair", {}).items() for each in done]
    lines += [f"  {violation.check}: {violation.message}" for violation in report.violations]
    try:
        fsck.remember(client, report)
    except StorageError as error:  # for example, a user who may only read
        lines.append(f"  the result is not kept for alerts: {error}")
    return Done(facts, tuple(lines))


def acknowledge(client: PersistClient, shard: str, alert: str, *, by: str, reason: str) -> Done:
    """Keep an open alert silent until it is resolved. Raises `InvalidInput` if it is not open, or without a reason."""
    record = WatchBoard(client).acknowledge(check_shard_name(shard), alert, by=by, reason=reason)
    facts = facts_of(record, shard, alert)
    said = f"acknowledged by {facts.acknowledged_by}: {facts.reason}"
    return Done(asdict(facts), (f"{alert} of {shard} is silent until it is resolved: {said}",))


def recreate(client: PersistClient, shard: str, *, is_forced: bool = False, next_writer: str | None = None) -> Done:
    """Drop the shard and begin it again, empty: its next run takes in all its input. Its history is lost.

    Does nothing to a shard that is empty, or in which `next_writer`, that next run, has committed: so a second call
    completes one that died, and undoes none. Raises what `drop` does: `InvalidInput` if others need the shard, unless
    `is_forced`, and `RunFailed` if another call was faster.
    """
    state = client.state(shard)

    def has_begun(found: ShardState) -> bool:
        return any(each.writer == next_writer for each in found.commits)

    def is_meant(found: ShardState) -> bool:
        return found.origin.life == state.origin.life and (found.is_dropped or not has_begun(found))

    is_done = not state.is_dropped and has_begun(state)
    is_new = state.is_dropped or (state.newest_commit is not None and not is_done)
    if is_new:
        dropping.drop(client, shard, is_forced=is_forced, is_meant=is_meant)
        dropping.create_again(client, shard)
    facts = {"shard": shard, "status": "emptied" if is_new else "up_to_date"}
    said = "was dropped and begun again" if is_new else "has begun again" if is_done else "is empty already"
    return Done(facts, (f"{shard} {said}; its next run takes in all its input",))


def erase(
    client: PersistClient,
    shard: str,
    texts: Sequence[str],
    *,
    by: str,
    reason: str,
    writer: str = "erase",
    is_dry_run: bool = False,
    with_verify: bool = False,
) -> Done:
    """Erase the keys that `texts` are, one text for each key column, key after key. Raises what `erase.erase` does.

    `facts["is_clean"]`: False if `with_verify` has found an object that holds a key.
    """
    reason = checked_reason(reason)
    columns = schema_to_erase(client.state(check_shard_name(shard))).key
    keys = _keys_of(columns, texts)
    known = {*texts, *(text for key in keys for text in key_texts(key, columns).values())}
    if Sought.of(keys, columns).is_said(reason) or any(
        len(t) >= MIN_WORD and t.lower() in reason.lower() for t in known
    ):
        raise InvalidInput("the reason holds a key that is to be erased; expected one without it: the reason is kept")
    if is_dry_run:
        done = erasing.look(client, shard, keys)
    else:
        done = erasing.erase(client, shard, keys, by=by, reason=reason, writer=writer)
    holding = verify(client, shard, keys) if with_verify else ()
    removed = f"{done.rows} versions and errors, in {done.files} files"
    said = {
        "erased": f"erased {len(keys)} keys of {shard}: {removed}; deleted {done.deleted} objects that held them",
        "waiting": f"erased {len(keys)} keys of {shard}: {removed}; {done.waiting} objects that held them are left for"
        f" readers ({', '.join(done.readers)}): `persist maintain {shard}` deletes them when the leases end",
        "up_to_date": f"nothing to do: {len(keys)} keys of {shard} were erased before",
        "dry_run": f"would erase {len(keys)} keys of {shard}: {removed}; nothing was written",
    }
    lines = [said[done.status], *(f"  not reached: {each}" for each in done.beyond)]
    if with_verify and not holding:
        unread = f"; {done.unread} errors without a readable key were searched by text only" if done.unread else ""
        lines.append(f"verified: no object of {shard} is found to hold them, names of input files aside{unread}")
    lines += [f"  still holds one: {each}" for each in holding]
    return Done({**asdict(done), "holding": list(holding), "is_clean": not holding}, tuple(lines))


def _keys_of(columns: Sequence[Column], texts: Sequence[str]) -> list[Key]:
    width = len(columns)
    if not texts or len(texts) % width or len(texts) > width * MAX_KEYS:
        raise InvalidInput(
            f"found {len(texts)} key values; expected {width} for each key ({', '.join(c.name for c in columns)}), and"
            f" {MAX_KEYS} keys at most"
        )
    return [parse_key(texts[place : place + width], columns) for place in range(0, len(texts), width)]
