"""Alerts in files, and who is notified: `freshness:`, `alerts:` and `notify:` of a collection or view, and for all.

    freshness: {warn: 2h, fail: 6h}        how far the upper may be behind the clock
    alerts:
      errors: {warn: 1, fail: 1000}        errors alive
      warnings: {warn: 1}                  rows of the newest run with a warning
      stash_age: {warn: 7 days}            how long records have been waiting in the stash
      conflicts: {warn: 5, fail: 50}       lost appends in 24 hours
      fsck: off                            findings of the last fsck
    notify:
      - {notifier: slack, args: {slack_webhook_conn_id: slack_ops}}
      - {notifier: pagerduty, level: fail}

A shard's own field replaces the project's (`persist.yaml`), condition by condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from persist_core.config import checks
from persist_core.config.files import load_folder, read_mapping
from persist_core.config.model import ConfigModel, OneOrMore
from persist_core.config.problems import nearest, refuse, validated
from persist_core.config.thresholds import DEFAULTS, FRESHNESS, Level, Threshold
from persist_core.errors import ConfigError

NO_LEVEL = "off"
SHORT_NAMES = {
    "slack": "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier",
    "email": "airflow.providers.smtp.notifications.smtp.SmtpNotifier",
    "pagerduty": "airflow.providers.pagerduty.notifications.pagerduty.PagerdutyNotifier",
    "log": "persist_airflow.notifications.LogNotifier",
}
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class _ThresholdConfig(ConfigModel):
    """`{warn: ..., fail: ...}`, one of them at least, or `off`. In the model, text in its plain form."""

    warn: str | None = None
    fail: str | None = None
    example: ClassVar[str]
    is_duration: ClassVar[bool]

    @model_validator(mode="before")
    @classmethod
    def _off(cls, data: Any) -> Any:
        if data == NO_LEVEL:
            return {"warn": NO_LEVEL, "fail": NO_LEVEL}
        if not isinstance(data, Mapping):
            raise refuse(data, "warn, fail or both", f"write {cls.example}, or off")
        return data

    @field_validator("warn", "fail", mode="before")
    @classmethod
    def _check(cls, value: Any) -> Any:
        return value if value in (None, NO_LEVEL) else cls._parse(value)[0]

    @model_validator(mode="after")
    def _check_together(self) -> _ThresholdConfig:
        if self.warn is None and self.fail is None:
            raise refuse(None, "warn, fail or both", f"write {self.example}, or off")
        warn, fail = self.threshold.warn, self.threshold.fail
        if warn is not None and fail is not None and warn >= fail:
            raise refuse(self.fail, f"more than warn, {self.warn}", "correct one of the two", at=["fail"])
        return self

    @classmethod
    def _parse(cls, value: object) -> tuple[str, int]:
        return checks.duration(value) if cls.is_duration else checks.count(value)

    @property
    def threshold(self) -> Threshold:
        """The numbers: ms or a count."""
        warn, fail = (None if each in (None, NO_LEVEL) else self._parse(each)[1] for each in (self.warn, self.fail))
        return Threshold(warn, fail)


class DurationThreshold(_ThresholdConfig):
    """Durations: `2h`, `90 minutes`, `3 days`."""

    example = "{warn: 2h, fail: 6h}"
    is_duration = True


class CountThreshold(_ThresholdConfig):
    """Whole numbers from 1 on."""

    example = "{warn: 1, fail: 100}"
    is_duration = False


class AlertsConfig(ConfigModel):
    """The thresholds of the conditions other than freshness. What is left out has the project's, or the default."""

    errors: CountThreshold | None = None
    warnings: CountThreshold | None = None
    stash_age: DurationThreshold | None = None
    conflicts: CountThreshold | None = None
    fsck: CountThreshold | None = None


class NotifyConfig(ConfigModel):
    """One notifier: its class (or `slack`, `email`, `pagerduty`, `log`), its arguments, and which notices it gets.

    `level: fail` leaves out warnings, and what was never more than a warning. Secrets belong into connections.
    """

    notifier: str
    args: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies defaults
    on: Annotated[tuple[Literal["alerts", "failures", "conflicts"], ...], OneOrMore] = ("alerts", "failures")
    level: Level = "warn"
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    @field_validator("notifier")
    @classmethod
    def _check_notifier(cls, name: str) -> str:
        if name not in SHORT_NAMES and not _DOTTED.fullmatch(name):
            remedy = nearest(name, SHORT_NAMES) or "for example my_package.notifiers.ChatNotifier"
            raise refuse(name, f"one of {', '.join(SHORT_NAMES)}, or the path of a notifier's class", remedy)
        return name

    @field_validator("on")
    @classmethod
    def _check_on(cls, on: tuple[str, ...]) -> tuple[str, ...]:
        if not on:
            raise refuse(None, "at least one of alerts, failures and conflicts", "remove the field, or the notifier")
        return on

    @property
    def class_path(self) -> str:
        return SHORT_NAMES.get(self.notifier, self.notifier)


def _notify_shorthand(data: Any) -> Any:
    if data == NO_LEVEL:
        return []
    return [data] if isinstance(data, Mapping) else data


NotifyList = Annotated[tuple[NotifyConfig, ...] | None, BeforeValidator(_notify_shorthand)]
"""One, a list, or `off`; `None`: the project's."""


class WatchFields(ConfigModel):
    """The fields of a collection, a view or a project that say what is notified. `None`: as the project says."""

    freshness: DurationThreshold | None = None
    alerts: AlertsConfig = AlertsConfig()
    notify: NotifyList = None

    def rules(self, project: WatchFields) -> dict[str, Threshold]:
        """The threshold of each condition: of this file, else of the project, else the default."""
        found = dict(DEFAULTS)
        for fields in (project, self):
            given: dict[str, _ThresholdConfig | None] = {FRESHNESS: fields.freshness, **dict(fields.alerts)}
            found |= {name: each.threshold for name, each in given.items() if each is not None}
        return found


class WatchedShard(WatchFields):
    """The alert fields of a shard's file, and its name; other fields are ignored."""

    name: str


def load_watched(folder: Path, *, what: str) -> tuple[list[WatchedShard], list[ConfigError]]:
    """The shards of the files in a folder. Reads only what `WatchedShard` has, so a query is not parsed."""
    return load_folder(folder, _load_watched, what=what)


def _load_watched(path: Path) -> WatchedShard:
    body = read_mapping(path, first_fields="source: or query:")
    return validated(WatchedShard, {name: body[name] for name in WatchedShard.model_fields if name in body}, path)
