"""A key that has another name now: what is stored under the old name is found and replaced under the new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from persist_core.maintenance.fsck import fsck
from tests.sampling import sample
from tests.spark.test_fill import Table, write

BAD: list[dict[str, Any]] = [
    {"a": "x", "b": 1},
    {"a": None, "b": 2},
    {"a": 3, "b": 3, "v": "bad"},
    {"a": 4, "b": 4, "v": "bad"},
]


def define(table: Table, key: dict[str, Any], order: str) -> None:
    by = {"mode": "sequence", "by": ["seq"]} if order == "sequence" else {"mode": "log"}
    columns = {**key, "v": "int", "seq": "bigint"}
    body = {"source": table.source, "key": list(key), "columns": columns, "order": by,
            "delete": {"column": "op", "values": ["D"]}, "limits": {"max_errors": None}}  # fmt: skip
    (table.folder / "t.yaml").write_text(yaml.safe_dump(body, sort_keys=False))


@pytest.mark.family("commands")
@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("order", sample(["log", "sequence"], 1, "renamed keys"))
def test_errs_heal_after_their_key_is_renamed(tmp_path: Path, order: str) -> None:
    """A delete with the raw key of an err retracts it; a record that comes again changes nothing."""
    table = Table(tmp_path, "t", {"path": str(tmp_path / "in" / "*"), "format": "json"}, {})
    define(table, {"a": "int", "b": "int"}, order)
    write(tmp_path / "in" / "1", "json", [{**each, "seq": 1} for each in BAD])
    table.persist("run")
    reader = table.client.open_reader("t")
    assert len(reader.errors()) == len(BAD)

    define(table, {"n": {"type": "bigint", "renamed_from": "a", "field": "a"}, "b": "int"}, order)
    write(tmp_path / "in" / "2", "json", [{**each, "seq": 1} for each in BAD])
    table.persist("run")
    commit = table.client.state("t").newest_commit
    assert commit is not None
    assert table.client.manifest(commit).counts.insertions == 0, "the same records"

    deletes = [{**each, "seq": 2, "op": "D"} for each in BAD[:3]]
    write(tmp_path / "in" / "3", "json", [*deletes, {**BAD[3], "v": 1, "seq": 2}])
    table.persist("run")
    assert len(reader.errors()) == 0
    assert [row["n"] for row in reader.snapshot().to_pylist()] == [4]
    assert fsck(table.client, "t").is_clean
