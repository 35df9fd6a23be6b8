"""Files that a fork shares stay for readers of the fork that began before the fork has merged them."""

from __future__ import annotations

from persist_core.checkpoint.publish import publish_missing
from persist_core.gc.collect import collect
from persist_core.keys import batches_prefix, owner_of
from persist_core.maintenance.drop import create_again, drop
from persist_core.protocol.fork import fork
from tests.core.gc.test_kills import SHARD as FRUIT
from tests.core.gc.test_kills import make_garbage
from tests.core.maintenance.copies import Client, merge_all
from tests.core.world import SCHEMA
from tests.plain_commit import commit


def collected(client: Client, shard: str) -> None:
    """Let some eras pass, and sweep what is due."""
    for _ in range(3):
        collect(client, shard, grace_ms=0, intent_ms=0)


def test_a_lease_on_a_fork_keeps_the_files_of_its_origin() -> None:
    client = Client()
    make_garbage(client, 1)
    publish_missing(client, client.state(FRUIT))
    fork(client, FRUIT, client.state(FRUIT).commits[-1].checkpoint_id, "twin", writer="test")
    reader = client.open_leased_reader("twin", lease_ms=60_000)
    began = reader.state()
    rows = reader.snapshot_of(began).to_pylist()
    commit(client, "twin", SCHEMA, 100, [((7, "plum"), 99, 1)])
    merge_all(client, "twin")
    assert {owner_of(batch.manifest_key) for batch in client.state("twin").batches} == {"twin"}
    drop(client, FRUIT)
    create_again(client, FRUIT)  # which deletes immediately what nothing needs
    assert reader.snapshot_of(began).to_pylist() == rows
    collected(client, "twin")
    collected(client, FRUIT)
    assert reader.snapshot_of(began).to_pylist() == rows
    reader.expire()
    collected(client, FRUIT)
    assert list(client.blob.list_keys_and_metadata(batches_prefix(FRUIT))) == []
