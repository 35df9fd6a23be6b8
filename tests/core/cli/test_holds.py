"""`persist holds`, `persist release`, pins and `persist describe` on real locations."""

from __future__ import annotations

import pytest

from persist_core.errors import LeaseExpired
from persist_core.frontier import Frontier
from tests.core.cli.test_cli import DAY_2, DAY_3, Persist
from tests.core.cli.test_cli import persist as persist  # the fixture
from tests.servers.backends import on_each_consensus


@on_each_consensus
def test_what_holds_the_history_is_listed_and_ended(persist: Persist) -> None:
    shown = persist("describe", "orders").out
    assert "all (every change is kept, so stored bytes grow; `history: 30 days` in its file limits that)" in shown
    assert "held back by" not in shown
    persist.client.set_history("orders", 0)
    reader = persist.client.open_leased_reader("orders", lease_ms=3_600_000)
    first, _ = (body["checkpoint_id"] for body in persist("checkpoints", "orders", "--json").json)
    assert persist("pin", "orders", first).code == 0
    (body,) = persist("holds", "orders", "--json").json
    assert (body["history"], body["since"], body["history_start"]) == ("0", 0, DAY_3 - 1)
    lease, pin, history = body["held"]
    assert [each["kind"] for each in (lease, pin, history)] == ["lease", "pin", "history"]
    assert (pin["since"], pin["remedy"]) == (DAY_2 - 1, f"persist unpin orders {first}")
    shown = persist("holds", "orders").out
    assert f"lease {lease['holder']}; without it since could be 2026-01-01T23:59:59.999Z" in shown
    (described,) = persist("describe", "orders", "--json").json
    assert (described["history_start"], described["held_back_by"]) == (DAY_3 - 1, lease["holder"])
    assert f"{lease['holder']} (the history starts at" in persist("describe", "orders").out
    (record,) = persist("release", "orders", lease["holder"], "--reason", "killed", "--json").json
    assert (record["holder"], record["reason"], "@" in record["by"]) == (lease["holder"], "killed", True)
    with pytest.raises(LeaseExpired, match=r"was released by .* \(killed\)"):
        reader.snapshot()
    assert f"released: {lease['holder']}" in persist("holds", "orders").out
    assert persist.client.advance_since("orders").since == Frontier(DAY_2 - 1)
    refused = persist("release", "orders", f"pin/{first}", "--reason", "x")
    assert (refused.code, f"persist unpin orders {first}" in refused.err) == (2, True)
    below = persist("snapshot", "orders", "--as-of", str(DAY_2 - 2))
    assert (below.code, "`persist holds orders`" in below.err) == (3, True)
    assert persist("changes", "orders", "--after", "0").code == 3
    assert persist("restore", "orders", "--to", first, "--dry-run").code == 0
    assert persist("unpin", "orders", first).code == 0
    assert persist.client.advance_since("orders").since == Frontier(DAY_3 - 1)
    late = persist("restore", "orders", "--to", first, "--dry-run")
    assert (late.code, "history before since is gone" in late.err) == (3, True)
    gone = persist("pin", "orders", first)
    assert (gone.code, "can't be pinned" in gone.err) == (3, True)
    assert persist("fsck").code == 0


def test_a_release_needs_a_reason_and_a_holder(persist: Persist) -> None:
    assert persist("release", "orders", "r").code == 2
    assert persist("release", "orders", "r", "--reason", " ").code == 2
    unknown = persist("release", "orders", "r", "--reason", "gone")
    assert (unknown.code, "has no lease and no hold 'r'" in unknown.err) == (2, True)
    assert persist("holds", "nothing").code == 3
