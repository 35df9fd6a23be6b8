"""Settings around a stage: what is asked, set and restored, call by call. In Spark Connect each call is an RPC."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import SparkSession

from persist_spark.session import settings


class Session:
    """A session whose settings count the calls."""

    def __init__(self, **values: str) -> None:
        self.values, self.calls = values, list[str]()
        self.conf: Any = self

    def get(self, name: str, default: str | None) -> str | None:
        self.calls.append(f"get {name}")
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.calls.append(f"set {name}")
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.calls.append(f"unset {name}")
        del self.values[name]

    def as_spark(self) -> SparkSession:
        return cast(SparkSession, self)


def test_what_is_right_or_known_already_costs_no_call() -> None:
    session = Session(zone="UTC", partitions="200")
    spark = session.as_spark()
    with settings(spark, {"zone": "UTC", "partitions": "2", "adaptive": "false"}):
        assert session.values == {"zone": "UTC", "partitions": "2", "adaptive": "false"}
        session.calls.clear()
        with settings(spark, {"zone": "UTC", "partitions": "1", "adaptive": "false"}):
            assert session.values["partitions"] == "1"
            with settings(spark, {"partitions": "1"}):
                pass
        assert session.calls == ["set partitions", "set partitions"]
        assert session.values["partitions"] == "2"
    assert session.values == {"zone": "UTC", "partitions": "200"}


def test_another_session_has_settings_of_its_own() -> None:
    one, other = Session(zone="CET"), Session(zone="CET")
    with settings(one.as_spark(), {"zone": "UTC"}), settings(other.as_spark(), {"zone": "UTC"}):
        assert one.values == other.values == {"zone": "UTC"}
    assert one.values == other.values == {"zone": "CET"}
