"""Records of erased keys in `order: auto`, after the numbers of the log have started again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persist_core.errors import UnclearOrder
from persist_core.maintenance.erase import erase
from persist_spark.upsert.eras import Eras
from tests.sampling import sample
from tests.spark.staged_shard import SHARD
from tests.spark.test_sequence import Collection
from tests.spark.test_source_orders import ASKS, COLUMNS, HOUR, change, mysql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = Eras(servers=("184", "185"))
RESTARTS = Eras(restarts_ms=(2 * HOUR,))
NEWER = mysql(1, 4, 3 * HOUR, server=185)
OLDER = mysql(19, 8000, HOUR)
CASES = {  # declared before the erasure, and after it; a record that comes then; whether it is there
    "the same server, newer": (SERVERS, SERVERS, mysql(19, 9900, 3 * HOUR), True),
    "another server, newer": (SERVERS, SERVERS, NEWER, True),
    "declared after the erasure": (Eras(), SERVERS, NEWER, True),
    "after a restart": (RESTARTS, RESTARTS, mysql(1, 4, 3 * HOUR), True),
    "not declared, and newer": (Eras(), Eras(), mysql(19, 9900, 3 * HOUR), True),
    "older, of the same server": (SERVERS, SERVERS, OLDER, False),
    "older, of another server": (Eras(servers=("185", "184")), Eras(servers=("185", "184")), NEWER, False),
    "older, declared after the erasure": (Eras(), SERVERS, OLDER, False),
    "not declared, of another server": (Eras(), Eras(), NEWER, None),
}


@pytest.mark.parametrize("case", sample(list(CASES), 3, "erased orders"))
def test_a_record_of_an_erased_key_is_compared_by_its_era(spark: SparkSession, tmp_path: Path, case: str) -> None:
    before, after, source, is_there = CASES[case]
    made = Collection(spark, tmp_path, COLUMNS, "debezium-json")
    first = [change(1, "old", mysql(19, 9000, HOUR)), change(2, "kept", mysql(19, 9100, HOUR))]
    made.deliver({"a": "\n".join(first)}, **{**ASKS, "eras": before})
    erase(made.shard.client, SHARD, [(1,)], by="me", reason="asked")
    made.shard.go_on()
    later = {"b": change(1, "again", source)}
    if is_there is None:
        with pytest.raises(UnclearOrder, match=r"record is of server 185, what was erased is of server 184"):
            made.deliver(later, **{**ASKS, "eras": after})
        return
    stats = made.deliver(later, **{**ASKS, "eras": after}).stats
    names = ["again", "kept"] if is_there else ["kept"]
    assert ([row["name"] for row in made.rows()], stats["skipped"]) == (names, int(not is_there))
