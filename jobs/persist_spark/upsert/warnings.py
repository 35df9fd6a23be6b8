"""Named warnings of a batch: winners that fail a check, and values that were bad and became null, with samples.

    rows of the slots, ranked ─> which checks does the winner fail, which columns does it mark? ─> counted, two samples

They are counted after the exchange, in the stage that writes, so a retried task never counts twice. A check judges
the row as it will be, inherited values included. Names of the user's columns meet no others: while checks are
evaluated, all columns of the plan have names that no user's column may have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from persist_core.config.collection import CollectionConfig
from persist_core.contents.batch import BatchDescription
from persist_core.contents.stats import BatchWarning
from persist_core.errors import CheckFailed
from persist_spark.compat import failing
from persist_spark.counted import Counting
from persist_spark.decode.row_checks import beside, failed_sql, hidden
from persist_spark.decode.unsent import unavailable_texts
from persist_spark.frame import quoted, shown_json, text_literal
from persist_spark.upsert.arguments import Arguments, Watched

_SAMPLE_CHARS = 500


def watched_by(config: CollectionConfig) -> tuple[Watched, ...]:
    """The warnings to count for a collection: columns whose bad values become null, checks that make no errs, and
    values left out of a field that has no column: `rest` loses them."""
    rest, lost = config.source.rest, list[Watched]()
    if rest and config.source.format == "debezium-json":
        forms = unavailable_texts(config.source.unavailable_value)[:2]  # plain, and base64
        texts = [text_literal(json.dumps(form, ensure_ascii=False)) for form in forms]
        sql = f"NOT ({' OR '.join(f'contains({quoted(rest)}, {text})' for text in texts)})"
        lost.append(Watched(f"column {rest} holds Debezium's placeholder; give its field a column", sql=sql))
    columns = [name for name, column in config.columns.items() if column.on_error == "null"]
    checks = [(name, check) for name, check in config.checks.items() if check.on_fail != "err"]
    return (
        *(Watched(f"column {name}", column=name) for name in columns),
        *(Watched(f"check {name}", sql=check.sql, fails=check.on_fail == "fail") for name, check in checks),
        *lost,
    )


def observed(ranked: DataFrame, read: Counting, counts: Mapping[str, str], arguments: Arguments) -> DataFrame:
    """`ranked`, of which `read` counts `counts` and the warnings."""
    if not arguments.watched:
        return read.of(ranked, counts)
    names = ranked.columns
    users = [*zip(arguments.keys, arguments.schema.key, strict=True)]
    cells = [(f"value.{plain}", c) for plain, c in zip(arguments.values, arguments.schema.values, strict=True)]
    renamed = beside(ranked, {column.name: plain for plain, column in (*users, *cells)})
    with failing(renamed.sparkSession):
        judged = renamed.selectExpr(
            *[f"{hidden(name)} AS {name}" for name in names],
            *[f"{_told(each, arguments)} AS told_{number}" for number, each in enumerate(arguments.watched)],
        )
    key = shown_json({column.name: plain for plain, column in users})
    warned = dict(counts)
    for number in range(len(arguments.watched)):
        warned |= counted(number, f"told_{number}", key)
    return read.of(judged, warned)


def counted(number: int, told: str, key: str) -> dict[str, str]:
    """Aggregates for `split`, by name: of the rows whose `told` is not null, how many there are, and two samples."""
    sample = f"CASE WHEN {told} IS NOT NULL THEN struct(substring({key}, 1, {_SAMPLE_CHARS}) AS key,"
    sample += f" nullif({told}, '') AS text) END"
    return {
        f"warned_{number}": f"count({told})",
        f"samples_{number}": f"array_distinct(array(min({sample}), max({sample})))",
    }


def _told(each: Watched, arguments: Arguments) -> str:
    """SQL: a text if the row has the warning: the bad one of a column, an empty one of a check."""
    wins, op, err, is_due, waits, is_beaten, marks = map(
        hidden, ("wins", "op", "err", "is_due", "waits", "is_beaten", "marks")
    )
    own = f"{wins} AND {op} = ascii('u') AND {err} IS NULL" + (f" AND NOT {is_beaten}" if arguments.seen else "")
    if each.sql is not None:
        return f"CASE WHEN {own} AND {is_due} AND {failed_sql(each.sql)} THEN '' END"
    entry = f"get(filter({marks}, mark -> mark.name = {text_literal(each.column or '')}), 0)"
    return f"CASE WHEN {own} AND ({is_due} OR {waits}) THEN {entry}.text END"


def split(observed: Mapping[str, Any], watched: Sequence[Watched]) -> tuple[dict[str, int], tuple[BatchWarning, ...]]:
    """The counts of an observation, and its warnings."""
    counts, found = dict(observed), []
    for number, each in enumerate(watched):
        count, samples = counts.pop(f"warned_{number}") or 0, counts.pop(f"samples_{number}") or []
        if count:
            shown = tuple(f"{s['key']}: {s['text']}" if s.get("text") else s["key"] for s in samples if s)
            found.append(BatchWarning(each.name, count, shown, each.fails))
    return counts, tuple(found)


def refuse_failed(found: Sequence[BatchWarning], watched: Sequence[Watched], description: BatchDescription) -> None:
    """Raise `CheckFailed` if a check of `on_fail: fail` is not true for a row of the batch."""
    failed = [each for each in found if each.fails]
    if failed:
        texts = {each.name: " ".join((each.sql or "").split()) for each in watched}
        said = "; ".join(
            f"{each.name} ({texts[each.name]}) is not true for {each.count} rows, for example"
            f" {' and '.join(each.samples)}"
            for each in failed
        )
        raise CheckFailed(
            f"{description.shard} {description.interval}: {said}. Nothing was committed: correct the input, or the"
            " check, or write on_fail: err or warn"
        )
