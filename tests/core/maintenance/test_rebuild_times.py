"""A file with another `time` or `timezone`: no run mixes rows of two meanings; a rebuild swaps the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from persist_core.errors import InvalidInput, SchemaMismatch
from persist_core.protocol.planned import planned
from tests.core.maintenance.rebuilt_shard import A, Keyed, names, ok, rebuilt

FIELD: dict[str, Any] = {"source": "field", "field": "at", "unit": "ms"}


def _shard(folder: Path, **changes: Any) -> Keyed:
    shard = Keyed(folder)
    shard.define(0, **{"time": FIELD, **changes})
    shard.drop("0.txt", [ok(A, "one")])
    shard.run(10)
    return shard


@pytest.mark.parametrize(
    "changes",
    [{"time": {**FIELD, "field": "to"}}, {"time": {**FIELD, "unit": "s"}}, {"time": {"source": "description"}},
     {"timezone": "Europe/Berlin"}],
)  # fmt: skip
def test_other_times_are_refused_until_a_rebuild(tmp_path: Path, changes: dict[str, Any]) -> None:
    shard = _shard(tmp_path)
    before = shard.client.state(shard.shard)
    shard.define(0, **{"time": FIELD, **changes})
    shard.drop("1.txt", [ok(A, "two", 1)])
    plan = planned(shard.client, shard.config)
    assert (plan.status, "persist rebuild" in plan.refused) == ("refused", True)
    with pytest.raises(SchemaMismatch, match="the times of records do not fit"):
        shard.run(20)
    assert shard.client.state(shard.shard) == before
    rebuilt(shard)
    assert planned(shard.client, shard.config).status == "nothing"
    shard.run(20)
    assert names(shard) == {A: "two"}
    with pytest.raises(InvalidInput, match="does not fit generation 0"):
        rebuilt(shard, back_to=-1)
    shard.define(0, time=FIELD, timezone="UTC")
    rebuilt(shard, back_to=-1)
    assert planned(shard.client, shard.config).status == "nothing"
