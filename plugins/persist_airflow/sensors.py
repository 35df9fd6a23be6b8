"""Tasks that wait: until a shard is complete up to a time, or until there is input for a collection.

ShardSensor(task_id="wait", shard="customers")                          up to the end of this run's data interval
ShardSensor(task_id="wait", shard="customers", upper="2026-01-31")      up to a fixed time
InputSensor(task_id="files", config=customers)  by `load_collection`; dated before the end of the data interval
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from persist_airflow.compat import (
    AirflowFailException,
    AirflowSensorTimeout,
    BaseSensorOperator,
    BaseTrigger,
    Context,
    defers_by_default,
    interval_end_ms,
    is_timeout,
)
from persist_airflow.hook import PersistHook, task_client
from persist_airflow.triggers import InputTrigger, ShardUpperTrigger, files_due
from persist_core.clock import SystemClock
from persist_core.config.collection import CollectionConfig
from persist_core.config.problems import nearest
from persist_core.errors import InvalidTime
from persist_core.frontier import Frontier
from persist_core.keys import is_shard_name
from persist_core.time_text import parse_time, show_time


class _Sensor(BaseSensorOperator):
    """Waits in the triggerer, if it is deferrable and what it waits for is not there yet. Airflow keeps the time."""

    ui_color = "#d9e8e3"

    def __init__(
        self,
        *,
        deferrable: bool | None = None,
        persist_conn_id: str = PersistHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = defers_by_default() if deferrable is None else deferrable
        self.persist_conn_id = persist_conn_id

    def poke(self, context: Context) -> bool:
        """True if it is there. Raises `AirflowFailException` for what no other try can change.

        A deferrable one defers here and not in `execute`, so that Airflow's `soft_fail`, `silent_fail` and
        `never_fail` hold for the first look too.
        """
        is_there = self._look(context)
        if self.deferrable and not is_there:
            timeout = timedelta(seconds=self.timeout)
            self.defer(trigger=self._trigger(context), method_name="execute_complete", timeout=timeout)
        return is_there

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Called when the triggerer has fired or failed, or the time has passed: then `execute_complete` gives up."""
        if is_timeout(next_method, next_kwargs):
            next_method, next_kwargs = "execute_complete", {"event": {"reached": False}}
        return super().resume_execution(next_method, next_kwargs, context)

    @abstractmethod
    def _look(self, context: Context) -> bool:
        """True if it is there."""

    @abstractmethod
    def _trigger(self, context: Context) -> BaseTrigger:
        """Return what looks meanwhile."""

    @property
    def _waits(self) -> dict[str, Any]:
        return {"persist_conn_id": self.persist_conn_id, "poll_s": self.poke_interval}


class ShardSensor(_Sensor):
    """Wait until the shard's upper is at least `upper`: all times before it are then final. In a closed shard all are.

    Airflow's `poke_interval`, `timeout`, `mode` and `soft_fail` have their usual meaning. If the task is deferrable,
    the triggerer looks, and the task takes no slot meanwhile.

    :param shard: its name (templated). If it does not exist and another one has a similar name, the sensor fails
    :param may_be_new: wait for a shard that does not exist yet, whatever the names of others
    :param upper: an ISO time, or milliseconds (templated); default: the end of the dag run's data interval
    :param deferrable: wait in the triggerer; default: Airflow's `[operators] default_deferrable`
    :param persist_conn_id: the location (templated)
    """

    template_fields: Sequence[str] = ("shard", "upper", "persist_conn_id")

    def __init__(self, *, shard: str, upper: str | int | None = None, may_be_new: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard = shard
        self.upper = upper
        self.may_be_new = may_be_new

    def _trigger(self, context: Context) -> BaseTrigger:
        return ShardUpperTrigger(self.shard, self._wanted(context), **self._waits)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Called when the triggerer has seen the upper, or the time has passed."""
        if not event["reached"]:
            wanted = show_time(self._wanted(context))
            raise AirflowSensorTimeout(f"shard {self.shard}: upper has not reached {wanted} after {self.timeout} s")
        self.log.info("shard %s: upper is %s", self.shard, show_time(event["upper"]))

    def _look(self, context: Context) -> bool:
        wanted = self._wanted(context)
        if not is_shard_name(self.shard) or self.shard == "None":  # a template that found nothing
            raise AirflowFailException(f"shard is {self.shard!r}; expected the name of a shard")
        with task_client(self.persist_conn_id) as client:
            state = client.machine.fetch(self.shard)
            similar = nearest(self.shard, client.shards()) if state is None and not self.may_be_new else ""
        if similar:
            raise AirflowFailException(
                f"no shard {self.shard!r} in connection {self.persist_conn_id}; {similar} A shard exists from the first"
                " run of its DAG on. To wait for that run, give the sensor may_be_new=True"
            )
        found = "it does not exist yet" if state is None else f"upper is {show_time(state.upper.time)}"
        self.log.info("shard %s: %s; waiting for %s", self.shard, found, show_time(wanted))
        return state is not None and state.upper >= Frontier(wanted)

    def _wanted(self, context: Context) -> int:
        if self.upper is None:
            return interval_end_ms(context, SystemClock())
        try:
            return parse_time(str(self.upper), what=f"upper of {self.task_id}", counters=False)
        except InvalidTime as error:
            raise AirflowFailException(str(error)) from None


class InputSensor(_Sensor):
    """Wait until mint would take a file in: one that no commit has consumed, dated before the end of the data interval.

    A folder and a bucket are looked at alike, by names; after the first look of a process, dates before the
    collection's `look_back` are left out. It is also done if the shard covers the interval already: mint then skips.
    Airflow's `poke_interval`, `timeout`, `mode` and `soft_fail` have their usual meaning. If the task is deferrable,
    the triggerer looks, and the task takes no slot meanwhile.

    :param config: the collection
    :param deferrable: wait in the triggerer; default: Airflow's `[operators] default_deferrable`
    :param persist_conn_id: the location (templated)
    """

    template_fields: Sequence[str] = ("persist_conn_id",)

    def __init__(self, *, config: CollectionConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self._has_looked = False

    def _trigger(self, context: Context) -> BaseTrigger:
        until = interval_end_ms(context, SystemClock())
        return InputTrigger(self.config.model_dump(mode="json"), until, **self._waits)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:  # noqa: ARG002 - its name and signature are Airflow's
        """Called when the triggerer has found files, or the time has passed."""
        if not event["reached"]:
            raise AirflowSensorTimeout(f"{self.config.source.path}: no files are due after {self.timeout} s")
        self.log.info("%s: %d files are due", self.config.source.path, event["files"])

    def _look(self, context: Context) -> bool:
        until = interval_end_ms(context, SystemClock())
        with task_client(self.persist_conn_id, self.config) as client:
            files, upper = files_due(client, self.config, until, again=self._has_looked)
        self._has_looked = True
        self.log.info(
            "shard %s: upper is %s; %s: %d files are due before %s",
            self.config.name,
            upper,
            self.config.source.path,
            files,
            show_time(until),
        )
        return files > 0 or upper >= Frontier(until)
