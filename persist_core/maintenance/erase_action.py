"""The action `erase`, with one result for the command line and Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from persist_core.contents.erased import key_texts
from persist_core.contents.key_range import Key, parse_key
from persist_core.errors import InvalidInput
from persist_core.handles.client import PersistClient
from persist_core.keys import check_shard_name
from persist_core.maintenance import erase as erasing
from persist_core.maintenance.actions import Done
from persist_core.maintenance.erase_objects import schema_to_erase, verify
from persist_core.maintenance.sought import MIN_WORD, Sought
from persist_core.schema import Column

MAX_KEYS = 1_000  # of one call: each file is compared with each key
MAX_REASON_CHARS = 500


def erase(
    client: PersistClient,
    shard: str,
    texts: Sequence[str],
    *,
    by: str,
    reason: str,
    is_dry_run: bool = False,
    with_verify: bool = False,
) -> Done:
    """Erase the keys that `texts` are, one text for each key column, key after key. Raises what `erase.erase` does.

    `facts["is_clean"]`: False if `with_verify` has found an object that holds a key.
    """
    if not 1 <= len(reason.strip()) <= MAX_REASON_CHARS:
        raise InvalidInput(f"the reason has {len(reason.strip())} characters; expected 1 to {MAX_REASON_CHARS}")
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
        done = erasing.erase(client, shard, keys, by=by, reason=reason.strip())
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
        lines.append(f"verified: no object of {shard} is found to hold them{unread}")
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
