"""`fruit` in `sequence` order, with a feed whose records come late; and all that its shard then knows, batch by batch.

Both batches change the order index and the late records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from persist_core.checkpoint.checkpointer import load_verified
from persist_core.contents.batch import LATE_OPERATOR, ORDER_INDEX_OPERATOR
from persist_core.handles.client import PersistClient
from persist_core.schema import ACTED, BEATEN_BY, INDEX_KIND, ORDER, TIME
from tests.airflow.fruit import DAY, DAY_MS, NAME, START, START_MS, Fruit

ORDER_LINE = "order: {mode: sequence, by: {lsn: bigint}}\n"

# Per day: (id, name, lsn); without a name it is a delete.
DAYS: tuple[tuple[tuple[int, str | None, int | None], ...], ...] = (
    ((1, "apple", 10), (2, "pear", 11), (3, "fig", 12), (9, None, 13)),
    ((2, None, 21), (3, "fig", 22), (1, "green apple", 5)),
    ((2, "old pear", 15), (3, None, 14), (9, "kiwi", 31), (1, None, 32), (4, "plum", 33), (5, "lost", None)),
)
RUNS = (1, 2)  # the last day of each dag run: the first one takes in two days
CONTENTS = ({1: "apple", 2: "pear", 3: "fig"}, {1: "apple", 3: "fig"}, {3: "fig", 4: "plum", 9: "kiwi"})
# Per batch, what it adds to the order index: (kind, id, lsn, day), and to the late records: (id, lsn, beaten by, day).
INDEX = (
    {("deleted", 9, 13, 0), ("deleted", 2, 21, 1), ("raised", 3, 22, 1)},
    {("deleted", 1, 32, 2), ("in_row", 9, 31, 2)},
)
LATE = ({(1, 5, 10, 1)}, {(2, 15, 21, 2), (3, 14, 22, 2)})


def deliver_late(fruit: Fruit) -> None:
    """Put the shard into `sequence` order, and all days of the feed into its folder."""
    path = fruit.dags / "collections" / f"{NAME}.yaml"
    path.write_text(path.read_text() + ORDER_LINE)
    for number, records in enumerate(DAYS):
        folder = fruit.feed / f"date={START + number * DAY:%Y-%m-%d}"
        folder.mkdir()
        lines = [json.dumps({"id": key, "name": name, "lsn": lsn}) for key, name, lsn in records]
        (folder / "part.json").write_text("\n".join(lines) + "\n")


def check_late_history(client: PersistClient) -> None:
    """Assert the contents of every day, one err, and what each batch added to the index and the late records."""
    reader = client.open_reader(NAME)
    for day, wanted in enumerate(CONTENTS):
        rows = reader.snapshot(as_of=START_MS + (day + 1) * DAY_MS - 1).to_pylist()
        assert {row["id"]: row["name"] for row in rows} == wanted, f"after {day + 1} days"
        assert len(rows) == len(wanted)
    assert len(reader.errors()) == 1
    index, late = zip(*_added(client), strict=True)
    assert index == INDEX
    assert late == LATE


def _added(client: PersistClient) -> Iterator[tuple[set[tuple[object, ...]], set[tuple[object, ...]]]]:
    for commit in client.state(NAME).commits:
        manifest = client.manifest(commit)
        operators = manifest.operators
        assert operators.keys() == {ORDER_INDEX_OPERATOR, LATE_OPERATOR}
        found: dict[str, list[dict[str, object]]] = {name: [] for name in operators}
        for name, columns in (
            (ORDER_INDEX_OPERATOR, ["id", ORDER, TIME, INDEX_KIND]),
            (LATE_OPERATOR, ["id", ORDER, BEATEN_BY, ACTED]),
        ):
            for artifact in operators[name].artifacts:
                data = load_verified(client.blob, artifact.key, artifact.sha256)
                found[name] += client.part_format.decode(data, columns, manifest.schema).to_pylist()
        index = [(row[INDEX_KIND], row["id"], _lsn(row[ORDER]), _day(row[TIME])) for row in found[ORDER_INDEX_OPERATOR]]
        late = [(row["id"], _lsn(row[ORDER]), _lsn(row[BEATEN_BY]), _day(row[ACTED])) for row in found[LATE_OPERATOR]]
        assert (len(set(index)), len(set(late))) == (len(index), len(late)), "nothing is there twice"
        yield set(index), set(late)


def _lsn(order: object) -> object:
    assert isinstance(order, dict)
    return order["by0"]


def _day(time: object) -> int:
    assert isinstance(time, int)
    return (time - START_MS) // DAY_MS
