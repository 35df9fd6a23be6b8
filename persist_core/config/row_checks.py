"""`checks:` of a collection: deterministic SQL on one row, and what happens to a row for which it is not true.

    checks:
      balance_not_negative: {sql: "balance >= 0"}                       the record is an err of kind `check/NAME`
      known_country: {sql: "country IN ('DE', 'FR')", on_fail: warn}    counted, with a sample
      has_owner: {sql: "owner IS NOT NULL", on_fail: fail}              the run commits nothing

As in a CHECK constraint of SQL, null is not a failure. What cannot be computed (a division by zero) is one.

`load_collection` parses each text and fills in `columns`, the columns that it uses; a collection that travels to a job
carries them, and is not parsed again. Spark checks the text once more (`persist_spark.decode.row_checks`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from persist_core.config.model import ConfigModel
from persist_core.config.problems import refuse
from persist_core.errors import ConfigError
from persist_core.schema import BAD_FILE, LATE_TIME, MISSING_ORDER

MAX_CHECKS = 100
MAX_SQL_CHARS = 10_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
# Other kinds of errs: a view finds the name of its input before them (`persist_spark.view.difference`).
KINDS = ("key", "value", "op", "time", MISSING_ORDER, BAD_FILE, LATE_TIME)


class CheckConfig(ConfigModel):
    """One check. `sql` is a boolean expression over the columns of a row; `columns`: the columns it uses."""

    sql: str
    on_fail: Literal["err", "warn", "fail"] = "err"
    columns: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, data: Any) -> Any:
        return {"sql": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_size(self) -> CheckConfig:
        if not 1 <= len(self.sql.strip()) <= MAX_SQL_CHARS:
            raise refuse(self.sql, f"SQL of 1 to {MAX_SQL_CHARS} characters", "for example balance >= 0", at=["sql"])
        return self


def check_names(checks: dict[str, CheckConfig]) -> dict[str, CheckConfig]:
    """Return `checks`. Raises by `refuse` for a name that an err's kind cannot have, and for too many checks."""
    if len(checks) > MAX_CHECKS:
        raise refuse(len(checks), f"at most {MAX_CHECKS} checks", "join some of them by AND")
    for name in checks:
        if not _NAME.fullmatch(name):
            raise refuse(name, "a name of letters, digits and underscores, at most 63", "rename the check", at=[name])
        if name in KINDS:
            raise refuse(name, "a name that no other kind of err has", "rename the check", at=[name])
    return checks


def parsed_checks(
    path: Path, checks: Mapping[str, CheckConfig], columns: Sequence[str], inheriting: Collection[str]
) -> dict[str, CheckConfig]:
    """The checks with the columns that each uses, of `columns`. Raises `ConfigError` for a text that cannot be a check.

    An `err` must be known when the record is decoded: it cannot judge a value that a record may inherit.
    """
    if not checks:
        return {}
    try:
        from persist_core.config import query_rules, view_query
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path}: checks: found no {error.name}, expected it installed; install airflow-persist[views]"
        ) from error
    found = {}
    for name, check in checks.items():
        where = f"{path}: checks.{name}"
        try:
            used = view_query.parse_condition(check.sql, columns)
        except query_rules.BadQuery as problem:
            raise ConfigError(f"{where}.sql: {problem}") from None
        inherited = next((column for column in used if column in inheriting), None)
        if check.on_fail == "err" and inherited is not None:
            raise ConfigError(
                f"{where}.on_fail: found err, expected warn or fail for a check of column {inherited!r}, whose value a"
                " record may leave out; write one of the two"
            )
        found[name] = check.model_copy(update={"columns": used})
    return found
