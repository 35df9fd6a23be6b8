"""`freshness:`, `alerts:` and `notify:`: what they mean, and whose fields count."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_core.config.alerts import WatchFields, load_watched
from persist_core.config.collection import CollectionConfig, load_collection
from persist_core.config.project import load_project
from persist_core.config.thresholds import DEFAULTS, OFF, Threshold
from persist_core.errors import ConfigError

HOUR = 3_600_000
COLLECTION = "source: {path: in/*.jsonl, format: debezium-json}\nkey: id\ncolumns: {id: bigint}\n"


def load(folder: Path, text: str) -> CollectionConfig:
    path = folder / "fruit.yaml"
    path.write_text(COLLECTION + text)
    return load_collection(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{warn: 2h, fail: 6h}", Threshold(2 * HOUR, 6 * HOUR)),
        ("{warn: 90 minutes}", Threshold(90 * 60_000)),
        ("{fail: 3 days}", Threshold(fail=72 * HOUR)),
        ("{warn: 5m, fail: 10 m}", Threshold(300_000, 600_000)),
        ("{warn: 5min, fail: 1d}", Threshold(300_000, 24 * HOUR)),
        ("{warn: off, fail: 1 hour}", Threshold(fail=HOUR)),
        ("off", OFF),
    ],
)
def test_durations(tmp_path: Path, text: str, expected: Threshold) -> None:
    config = load(tmp_path, f"freshness: {text}\n")
    assert config.freshness is not None
    assert config.freshness.threshold == expected
    assert CollectionConfig.model_validate_json(config.model_dump_json()) == config


def test_a_file_replaces_the_project_condition_by_condition(tmp_path: Path) -> None:
    project_file = tmp_path / "persist.yaml"
    project_file.write_text(
        "freshness: {warn: 1d}\nalerts: {errors: {fail: 9}, conflicts: off}\nnotify: {notifier: log}\n"
    )
    project = load_project(project_file)
    assert WatchFields().rules(WatchFields()) == DEFAULTS
    folder = tmp_path / "collections"
    folder.mkdir()
    load(folder, "freshness: {fail: 2h}\nalerts: {errors: off}\n")
    (shard,), errors = load_watched(folder, what="collection")
    assert (shard.name, shard.notify, errors) == ("fruit", None, [])
    assert shard.rules(project) == {
        **DEFAULTS,
        "freshness": Threshold(fail=2 * HOUR),
        "errors": OFF,
        "conflicts": OFF,
    }
    load(folder, "notify: off\n")
    (shard,), _ = load_watched(folder, what="collection")
    assert shard.notify == ()


def test_only_the_fields_of_alerts_are_read(tmp_path: Path) -> None:
    """A query is not parsed, and a mistake elsewhere is reported by the DAG of the file."""
    (tmp_path / "good.yaml").write_text("query: NOT SQL\nfreshness: {warn: 2h}\n")
    (tmp_path / "bad.yaml").write_text("query: SELECT 1\nfreshness: {wrn: 2h}\n")
    (shard,), (error,) = load_watched(tmp_path, what="view")
    assert shard.name == "good"
    assert "bad.yaml: freshness.wrn: found an unknown field, expected one of warn, fail; did you mean 'warn'?" in str(
        error
    )


def test_a_wrong_project_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "persist.yaml"
    path.write_text("watch: {schedule: hourly}\nnotify: [{notifier: slack, levl: fail}]\n")
    with pytest.raises(ConfigError) as caught:
        load_project(path)
    assert "watch.schedule: found 'hourly'" in str(caught.value)
    assert "notify[0].levl: found an unknown field" in str(caught.value)
