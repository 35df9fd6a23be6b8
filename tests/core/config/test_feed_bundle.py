"""The bundled demo feed is what its script generates, and contains what the demo describes."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from typing import Any

import pytest

from persist_core.config.collection import load_collection
from persist_core.location.mem import MemBlob
from persist_core.sources.files import FileSource
from tests.core.make_feed import DAYS, FOLDER, HEALED, STAYS_BAD, decimal_bytes, make_feed


def test_the_bundle_is_the_scripts_output() -> None:
    found = {}
    for path in FOLDER.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found[str(path.relative_to(FOLDER))] = gzip.decompress(data) if path.suffix == ".gz" else data
    assert found == make_feed()


def test_the_collection_finds_every_file_of_the_bundle() -> None:
    config = load_collection(FOLDER.parents[1] / "collections" / "customers.yaml")
    freeze = FileSource(config, MemBlob()).freeze(None, until=None)
    assert {file.relative for file in freeze.frozen.files} == set(make_feed())
    assert len({file.date_ms for file in freeze.frozen.files}) == DAYS
    assert (freeze.unmatched, freeze.unfinished) == ((), 0)


def test_the_feed_has_a_case_of_everything() -> None:
    ops: Counter[str] = Counter()
    broken: list[bytes] = []
    messages: list[dict[str, Any]] = []
    for data in make_feed().values():
        for line in data.splitlines():
            try:
                messages.append(json.loads(line))
            except ValueError:
                broken.append(line)
    for message in messages:
        event = message.get("payload", message)
        ops["tombstone" if "value" in event else event["op"]] += 1
    assert len(broken) == 1
    assert sum("schema" in message for message in messages) >= 5
    assert ops["r"] == 40
    assert ops["tombstone"] == ops["d"] >= 6
    assert (ops["m"], ops["u"] > 100, ops["c"] > 15) == (1, True, True)
    balances = [(m.get("after") or {}).get("balance") for m in messages if (m.get("after") or {}).get("id") == HEALED]
    assert balances.count("12,50") == 1
    assert balances[-1] == decimal_bytes(123_456)
    too_long = [m["after"] for m in messages if (m.get("after") or {}).get("id") == STAYS_BAD][-1]
    assert len(str(int.from_bytes(base64.b64decode(too_long["balance"]), "big"))) > 12
    lines = Counter(line for data in make_feed().values() for line in data.splitlines())
    assert sum(count - 1 for count in lines.values()) >= 6, "redelivered events"


@pytest.mark.parametrize(
    ("unscaled", "wanted"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x00\x80"), (-1, b"\xff"), (-129, b"\xff\x7f")]
)
def test_decimals_are_encoded_as_the_connector_does(unscaled: int, wanted: bytes) -> None:
    assert base64.b64decode(decimal_bytes(unscaled)) == wanted
