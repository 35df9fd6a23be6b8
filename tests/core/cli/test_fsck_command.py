"""`persist fsck`: what it prints, repairs and ends with, on real locations."""

from __future__ import annotations

from typing import Any

from tests.core.cli.test_cli import Persist
from tests.core.cli.test_cli import persist as persist  # the fixture
from tests.servers.backends import on_each_consensus


@on_each_consensus
def test_fsck(persist: Persist) -> None:
    assert persist("fsck").out.startswith("orders: clean (2 batches")
    (body,) = persist("fsck", "orders", "--json").json
    assert (body["is_clean"], body["violations"]) == (True, [])


@on_each_consensus
def test_fsck_of_a_damaged_shard_names_the_part_and_ends_with_4(persist: Persist) -> None:
    part = next(
        entry.key for entry in persist.client.blob.list_keys_and_metadata("orders/batches/") if "part=" in entry.key
    )
    persist.client.blob.delete(part)
    ran = persist("fsck", "--json")
    assert ran.code == 4
    assert part in ran.json[0]["violations"][0]["message"]
    assert persist("fsck").code == 4


@on_each_consensus
def test_fsck_repairs_what_is_derived_and_checks_again(persist: Persist) -> None:
    persist.client.blob.set("orders/checkpoints/_latest", b"rotten")
    assert persist("fsck").code == 4
    ran = persist("fsck", "--repair", "--json")
    assert (ran.code, ran.json[0]["is_clean"]) == (0, True)
    assert persist.client.blob.get("orders/checkpoints/_latest") not in (None, b"rotten")
    checkpoints = list(persist.client.blob.list_keys_and_metadata("orders/checkpoints/"))
    manifest = next(entry.key for entry in checkpoints if "manifest" in entry.key)
    persist.client.blob.set(manifest, b"rotten")
    ran = persist("fsck", "orders", "--repair")
    assert ran.code == 0
    assert f"repaired: {manifest}" in ran.out
    part = next(e.key for e in persist.client.blob.list_keys_and_metadata("orders/batches/") if "part=" in e.key)
    persist.client.blob.delete(part)
    assert persist("fsck", "--repair").code == 4, "parts are derived from nothing"


@on_each_consensus
def test_fsck_of_all_finds_a_shard_whose_state_is_gone(persist: Persist) -> None:
    """It repairs none: that would make the table empty."""
    consensus: Any = persist.client.location.consensus
    consensus.erase("orders")
    for latest, said in ((None, "has lost commits"), (b"rotten", "_latest is there")):
        if latest is not None:
            persist.client.blob.set("orders/checkpoints/_latest", latest)
        ran = persist("fsck", "--repair", "--json")
        ((finding,), code) = (ran.json[0]["violations"], ran.code)
        assert (finding["check"], said in finding["message"], code) == ("undone", True, 4)
    assert persist.client.shards() == []
    assert persist("fsck", "orders", "--repair").code == 4
    assert persist.client.shards() == ["orders"]
