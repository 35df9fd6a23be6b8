"""The fields that every kind of shard has in its YAML file: name, schedule, retention, history, alerts, tasks.

Collections and views build on them.

    airflow:
      owner: data-team
      all: {retries: 5}                        of all four tasks
      write: {pool: spark, timeout_s: 7200}    over that, of one of them

Nothing in `airflow` changes what a run writes, and `persist run` does not read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from persist_core.config import checks
from persist_core.config.alerts import AlertsConfig, DurationThreshold, NotifyList
from persist_core.config.model import AirflowName, ConfigModel, Schedule, TimeZone, Whole
from persist_core.config.problems import refuse
from persist_core.errors import InvalidInput, InvalidName
from persist_core.keys import check_key_name
from persist_core.time_text import UTC_ZONE, parse_time

_YEAR_S = 366 * 86_400  # Python and Airflow cannot add any number of seconds to a time


class TaskConfig(ConfigModel):
    """Airflow's options of one task. `None`: what `default_args`, the factory or Airflow says.

    `priority` is Airflow's `priority_weight`, `timeout_s` its `execution_timeout`. `executor_config` is plain data.
    """

    pool: AirflowName | None = None
    pool_slots: Annotated[Whole, Field(ge=1, le=1_000_000)] | None = None
    queue: AirflowName | None = None
    priority: Whole | None = None
    retries: Annotated[Whole, Field(ge=0, le=1000)] | None = None
    retry_delay_s: Annotated[Whole, Field(ge=0, le=_YEAR_S)] | None = None
    timeout_s: Annotated[Whole, Field(ge=1, le=_YEAR_S)] | None = None
    executor_config: dict[str, Any] | None = None


class AirflowConfig(ConfigModel):
    """Options of the DAG: `owner`, `tags`, `max_active_runs`; and of the tasks: `all`, and each by its stage."""

    owner: AirflowName | None = None
    tags: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = ()
    max_active_runs: Annotated[Whole, Field(ge=1, le=1000)] = 1
    all: TaskConfig = TaskConfig()
    mint: TaskConfig = TaskConfig()
    write: TaskConfig = TaskConfig()
    append: TaskConfig = TaskConfig()
    checkpoint: TaskConfig = TaskConfig()


class RetentionConfig(ConfigModel):
    """Checkpoints to keep, how often operator state is saved in full, and how long to keep what a rebuild has swapped
    out."""

    keep_last: Annotated[Whole, Field(ge=1, le=1000)] = 10
    keep_daily: Annotated[Whole, Field(ge=0, le=366)] = 7
    keep_weekly: Annotated[Whole, Field(ge=0, le=520)] = 4
    snapshot_every: Annotated[Whole, Field(ge=1, le=100)] = 10
    keep_generations: Annotated[str, BeforeValidator(partial(checks.history, field="keep_generations"))] = "7 days"

    @property
    def keep_generations_ms(self) -> int | None:
        """In ms; `None`: until it is deleted by hand."""
        return checks.history_ms(self.keep_generations)


class ShardConfig(ConfigModel):
    """The fields of a shard's file that do not depend on its source.

    `timezone` says how the schedule, dates in paths and values without an offset are read (default: from
    `persist.yaml`, else UTC); stored times are UTC. `spark_conf` goes over the tuned Spark settings of its jobs, in
    Airflow and in `persist run`, and under those given there. A Spark Connect server accepts session settings only.
    `freshness`, `alerts` and `notify` are in `persist_core.config.alerts`. `dropped` names columns that are gone,
    where a column of their type is new.
    """

    input_noun: ClassVar[str] = "inputs"  # the plural of one input

    name: str
    description: Annotated[str, Field(max_length=10_000)] = ""
    schedule: Schedule = "@daily"
    start_date: str | None = None
    timezone: TimeZone = UTC_ZONE
    retention: RetentionConfig = RetentionConfig()
    history: Annotated[str, BeforeValidator(checks.history)] = checks.ALL_HISTORY
    base_dir: Annotated[str, AfterValidator(checks.folder)] = "."
    airflow: AirflowConfig = AirflowConfig()
    spark_conf: Annotated[dict[str, str], AfterValidator(checks.spark_conf)] = {}  # noqa: RUF012 - pydantic copies defaults
    freshness: DurationThreshold | None = None
    alerts: AlertsConfig = AlertsConfig()
    notify: NotifyList = None
    dropped: tuple[str, ...] = ()

    @property
    def source_type(self) -> str:
        """The kind of its input, as its progress names it: a key of `persist_core.sources.registry.KINDS`."""
        raise InvalidInput(f"{self.name}: {type(self).__name__} has no input; expected a collection or a view")

    @property
    def stays_open(self) -> bool:
        """True if the shard must not be closed at the end of its input."""
        return False

    @property
    def input_uris(self) -> tuple[str, ...]:
        """The places at which its jobs read files."""
        return ()

    @property
    def read_shards(self) -> tuple[str, ...]:
        return ()

    @property
    def writes_nothing(self) -> bool:
        """True if its file says that its runs are read-only."""
        return False

    @property
    def follows_inputs(self) -> bool:
        """True if a dag run's interval means nothing: the run was started by an append to an input, or by hand."""
        return False

    def default_until(self, now_ms: int) -> int | None:  # noqa: ARG002 - a collection needs it
        """The time before which the input is final; `None`: as far as its inputs go."""
        return None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        try:
            return check_key_name(name)
        except InvalidName as error:
            raise refuse(name, checks.rule_of(error), "rename the file") from None

    @model_validator(mode="after")
    def _check_start_date(self) -> Self:
        if self.start_date is not None:
            checks.start_date(self.start_date, self.timezone)
        return self

    @property
    def start_ms(self) -> int:
        """`start_date` in ms since 1970; 0 without one."""
        return 0 if self.start_date is None else parse_time(self.start_date, what="start_date", zone=self.timezone)

    @field_validator("spark_conf", mode="before")
    @classmethod
    def _spark_conf_as_text(cls, data: Any) -> Any:
        return {name: checks.scalar_text(value) for name, value in data.items()} if isinstance(data, Mapping) else data

    @property
    def history_ms(self) -> int | None:
        """The history to keep before the newest contents, in ms; `None`: all."""
        return checks.history_ms(self.history)
