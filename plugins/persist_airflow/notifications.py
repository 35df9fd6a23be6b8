"""From `notify:` to Airflow's notifiers, and from a notice to what they send.

    NotifyConfig (YAML), Notify or a notifier (Python) --targets--> Target: which notices, and how to send one
    notice --> the context's `persist_alert` --> the notifier renders its templates and sends

Text from YAML makes only subclasses of `BaseNotifier`, and their templates see `TEMPLATE_NAMES`: not connections and
variables, nor objects that reach them. Notifiers given in Python are code like any other, with the whole context.

Alerts, conflicts and failed tasks go through this. A notice is first kept in the location's record, so that one which
a notifier did not take is sent by the next turn of `persist_watch` (`persist_core.alerts`).
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from persist_airflow.compat import BaseNotifier, Context
from persist_core.alerts.deliver import Target
from persist_core.alerts.record import Notice
from persist_core.config.alerts import SHORT_NAMES, NotifyConfig
from persist_core.config.thresholds import Level
from persist_core.errors import ConfigError
from persist_core.time_text import format_time

CONTEXT_NAME = "persist_alert"
TEMPLATE_NAMES = (CONTEXT_NAME, "ds", "ts", "run_id")  # what the templates of a notifier from YAML may use
Notifier = Callable[[Any], Any]  # a BaseNotifier, or any callable that takes the context

_KINDS = {"alert": "alerts", "failure": "failures", "conflict": "conflicts"}
_EXTRAS = {"slack": "slack", "smtp": "email", "pagerduty": "pagerduty"}  # of this package, by provider
_SLACK_TEXT = (
    "{{ persist_alert.text | replace('&', '&amp;') | replace('<', '&lt;') | replace('>', '&gt;') }}"  # no mentions
)
TEMPLATES: Mapping[str, Mapping[str, str]] = {
    SHORT_NAMES["slack"]: {"text": _SLACK_TEXT},
    SHORT_NAMES["email"]: {
        "subject": "{{ persist_alert.subject }}",
        "html_content": "<pre>{{ persist_alert.text | e }}</pre>",
    },
    SHORT_NAMES["pagerduty"]: {
        "summary": "{{ persist_alert.subject }}",
        "severity": "{{ persist_alert.severity }}",
        "action": "{{ persist_alert.action }}",
        "dedup_key": "{{ persist_alert.key }}",
        "source": "airflow-persist",
        "component": "{{ persist_alert.shard }}",
        "class_type": "{{ persist_alert.what }}",
        "custom_details": "{{ persist_alert.text }}",
    },
}
"""Arguments of the notifiers with short names, unless `args` has others."""

_log = logging.getLogger(__name__)


class LogNotifier(BaseNotifier):
    """Writes `message` (templated; `persist_alert` has the notice) to the log at the given level: `INFO`, or 20."""

    template_fields = ("message",)

    def __init__(self, message: str = "{{ persist_alert.text }}", level: int | str = logging.WARNING) -> None:
        super().__init__()
        self.message = message
        levels = logging.getLevelNamesMapping()
        if isinstance(level, str) and level not in levels:
            raise ValueError(f"level is {level!r}, expected one of {', '.join(levels)}")
        self.level = levels[level] if isinstance(level, str) else level

    def notify(self, context: Context) -> None:  # noqa: ARG002 - Airflow's signature
        _log.log(self.level, "%s", self.message)


@dataclass(frozen=True)
class Notify:
    """A notifier, or a callable that takes the context, given in Python: with the choices of a `notify:` entry."""

    notifier: Notifier
    on: tuple[str, ...] = ("alerts", "failures")
    level: Level = "warn"
    name: str | None = None


NotifyBy = NotifyConfig | Notify | Notifier
"""One entry of `notify`. A bare notifier is `Notify(notifier)`."""


def chosen(own: Sequence[NotifyConfig] | None, given: Sequence[NotifyBy] | NotifyBy = ()) -> tuple[NotifyBy, ...]:
    """The entries of a shard: its file's, if it has any, else the caller's."""
    if own is not None:
        return tuple(own)
    return tuple(given) if isinstance(given, Sequence) else (given,)


def targets(entries: Iterable[NotifyBy], context: Context) -> tuple[Target, ...]:
    """Where the notices of a shard go. No provider is imported before something is sent.

    Names come from the entries, with a number if two are the same, so that they stay the same over turns.
    """
    made: list[Target] = []
    names: dict[str, int] = {}
    for entry in map(_with_choices, entries):
        name = _name_of(entry)
        names[name] = names.get(name, 0) + 1
        unique = name if names[name] == 1 else f"{name} {names[name]}"
        made.append(Target(unique, _accepts(entry), _sender(entry, context), repr(entry)))
    return tuple(made)


def takes(entries: Iterable[NotifyBy], kind: str) -> bool:
    """True if one of the entries takes notices of this kind: `alerts`, `failures`, `conflicts`."""
    return any(kind in _with_choices(entry).on for entry in entries)


def facts_of(notice: Notice) -> dict[str, Any]:
    """The contents of `persist_alert` in templates. Times are ISO, in UTC."""
    return {
        "kind": notice.kind,
        "state": "resolved" if notice.is_resolved else notice.level,
        "level": notice.level,
        "severity": "info" if notice.is_resolved else {"warn": "warning", "fail": "critical"}[notice.level],
        "action": "resolve" if notice.is_resolved else "trigger",
        "key": notice.key,
        "shard": notice.shard,
        "what": notice.what,
        "at": format_time(notice.at_ms),
        "since": format_time(notice.since_ms),
        "value": notice.value,
        "limit": notice.limit,
        "subject": notice.subject,
        "text": notice.text,
        "command": notice.command,
        "guide": notice.guide,
    }


def _with_choices(entry: NotifyBy) -> NotifyConfig | Notify:
    return entry if isinstance(entry, NotifyConfig | Notify) else Notify(entry)


def _name_of(entry: NotifyConfig | Notify) -> str:
    notifier = entry.notifier
    kind = notifier.rpartition(".")[2] if isinstance(notifier, str) else type(notifier).__name__
    name: str = getattr(notifier, "__name__", kind)
    return entry.name or name


def _accepts(entry: NotifyConfig | Notify) -> Callable[[Notice], bool]:
    return lambda notice: _KINDS[notice.kind] in entry.on and (entry.level == "warn" or notice.level == "fail")


def _sender(entry: NotifyConfig | Notify, context: Context) -> Callable[[Notice], None]:
    def send(notice: Notice) -> None:
        notifier = _notifier(entry, notice.shard)
        given: Any = copy.copy(context)  # its own: a slow notifier goes on while others send other notices
        given[CONTEXT_NAME] = facts_of(notice)
        if isinstance(notifier, BaseNotifier):  # called by parts: some releases swallow what `notify` raises
            seen: Any = {name: given.get(name) for name in TEMPLATE_NAMES} | {"dag": None}
            notifier.render_template_fields(seen if isinstance(entry, NotifyConfig) else given)
            notifier.notify(given)
        else:
            notifier(given)

    return send


def _notifier(entry: NotifyConfig | Notify, shard: str) -> Notifier:
    """A notifier to use once: rendering changes it."""
    if isinstance(entry, NotifyConfig):
        return _from_config(entry, f"{shard}: field notify of its file, or of persist.yaml")
    notifier = entry.notifier
    return copy.copy(notifier) if isinstance(notifier, BaseNotifier) else notifier


def _from_config(entry: NotifyConfig, where: str) -> BaseNotifier:
    module, _, name = entry.class_path.rpartition(".")
    try:
        kind: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        extra = next((extra for part, extra in _EXTRAS.items() if f".providers.{part}." in module), None)
        remedy = f"install airflow-persist[{extra}]" if extra else "correct the path, or install its package"
        raise ConfigError(f"{where}: notifier {entry.class_path} cannot be imported ({error}); {remedy}") from error
    if not (isinstance(kind, type) and issubclass(kind, BaseNotifier)):
        raise ConfigError(
            f"{where}: notifier {entry.class_path} is not a notifier; expected one of {', '.join(SHORT_NAMES)}, or the"
            " path of a subclass of Airflow's BaseNotifier. Nothing was called"
        )
    try:
        return kind(**{**TEMPLATES.get(entry.class_path, {}), **copy.deepcopy(entry.args)})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {entry.class_path} refuses its arguments: {error}; correct args") from error
