"""Values that a record does not carry: it has those before it (docs/semantics.md, section 4).

    rows of a slot, in order ──> a register for each column ──> records completed ──> an err, if a value is not known

The register of a column holds what the last row that says anything of it says: a row that carries it its value, a
tombstone or an err that no value exists. `inherited` names the columns that a record does not carry; it is null if the
record has all. Only columns that can be left out have a register.

An err of a record that could not be completed shows in its payload what is known, as canonical JSON. So the next record
finds it there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.contents.schema_versions import SchemaVersion
from persist_core.schema import DIFF, ERR_KIND, ERR_PAYLOAD, INHERITED, TIME, CollectionSchema, Column
from persist_spark.frame import (
    ANY_LENGTH,
    canonical_key,
    entries_sql,
    inherited_fields,
    json_without,
    sql_type,
    text_literal,
)
from persist_spark.upsert.arguments import ACTS, Arguments

_ANY_LENGTH = f"map({', '.join(repr(text) for option in ANY_LENGTH.items() for text in option)})"
_KNOWN = "_persist_known"  # what an err knows, within a look-up: text by column
# In `sequence` order, of the slot's row, where an equal value may have come after it:
_IS_RAISED = "coalesce(known.kind = 'raised', false)"
INHERITED_NOW = f"IF({_IS_RAISED}, known.inherited, committed.inherited)"
ORDER_NOW = f"IF({_IS_RAISED}, known.ord, committed.p.o)"
CANONICAL_NOW = f"IF({_IS_RAISED}, raised_canonical, committed.p.c)"  # of what its record carries; see `with_raised`
REMEMBERED = "known.kind = 'deleted' AND NOT (known.is_old AND NOT is_awaited)"  # the slot's tombstone counts


def placed(records: DataFrame, schema: CollectionSchema) -> DataFrame:
    """The records frame with the ids of the shard's columns in `INHERITED`: decoders name columns by their places."""
    if not schema.inherits:
        return records
    (field,) = inherited_fields(schema)
    if INHERITED not in records.columns:
        return records.withColumn(INHERITED, F.lit(None).cast(field.dataType.simpleString()))
    wanted = {
        column.id: (f"coalesce(array_contains({INHERITED}.id, {place}), false)", "NULL", "NULL")
        for place, column in enumerate(schema.values)
        if column.inherits
    }
    entries = f"CASE WHEN {INHERITED} IS NOT NULL THEN {entries_sql(schema, wanted)} END"
    return records.withColumn(INHERITED, F.expr(entries))


def sent_json(schema: CollectionSchema, cells: Sequence[SparkColumn], inherited: str) -> SparkColumn:
    """Canonical bytes of what a record carries itself."""
    left_out = {c.name: f"{_entry(c, inherited)} IS NOT NULL" for c in schema.values if c.inherits}
    return json_without(schema.values, cells, left_out)


def with_known(state: DataFrame, value: str, arguments: Arguments) -> tuple[DataFrame, str]:
    """Committed updates, and SQL for their value: `value`, and of an err that could not be completed what is known."""
    is_err = f"{DIFF} > 0 AND {ERR_KIND} IS NOT NULL AND {INHERITED} IS NOT NULL"
    known = f"from_json(CAST({ERR_PAYLOAD} AS STRING), 'map<string,string>', {_ANY_LENGTH})"
    cells = []
    for plain, column in zip(arguments.values, arguments.schema.values, strict=True):
        cells.append(f"'{plain}', {_known_value(column, arguments.versions)}")
    cells += arguments.in_rest_cell()
    state = state.selectExpr("*", f"CASE WHEN {is_err} THEN {known} END AS {_KNOWN}")
    return state, f"CASE WHEN {_KNOWN} IS NOT NULL THEN named_struct({', '.join(cells)}) ELSE {value} END"


def _known_value(column: Column, versions: Sequence[SchemaVersion]) -> str:
    """SQL: the value of a column that an err knows, by the name and type that the column had at the err's time."""
    none = f"CAST(NULL AS {sql_type(column.type)})"
    cases: list[tuple[str, int]] = []  # newest first, each with its first time
    for version in reversed(versions):
        then = next((old for old in version.schema.values if old.id == column.id), None)
        sql = none if then is None else _typed_text(then)
        if cases and cases[-1][0] == sql:
            cases.pop()
        cases.append((sql, version.lower))
    if len(cases) < 2:
        return _typed_text(column)
    whens = " ".join(f"WHEN {TIME} >= {lower}L THEN {sql}" for sql, lower in cases)
    return f"CAST(CASE {whens} END AS {sql_type(column.type)})"


def _typed_text(column: Column) -> str:
    text = f"element_at({_KNOWN}, {text_literal(column.name)})"
    return f"unhex({text})" if column.type == "binary" else f"CAST({text} AS {sql_type(column.type)})"


def completed(ranked: DataFrame, arguments: Arguments) -> DataFrame:
    """In `log` order: the rows of a slot, ranked, where each record that acts is whole, or an err."""
    registers = [f"{sql} AS {name}" for name, sql in registers_of(arguments, arguments.by_rank).items()]
    marks = [name for name in ranked.columns if name not in (*arguments.columns, "canonical")]
    found = ranked.selectExpr(*arguments.columns, *marks, *registers)
    resolved = with_registers(found, arguments, f"own_time IS NOT NULL AND {ACTS}")
    cells = {"inherited": "IF(err IS NULL AND NOT waits, NULL, inherited)"}  # of a row nothing is remembered
    return resolved.selectExpr(*[f"{cells.get(name, name)} AS {name}" for name in (*arguments.columns, *marks)])


def registers_of(
    arguments: Arguments, window: str, frame: str = "ROWS", end: str = "CURRENT ROW", where: str = "true"
) -> dict[str, str]:
    """The registers of the columns that inherit, after each row of a window over a slot: SQL by name.

    In `sequence` order they need `committed` and `known`, what the shard knows of the slot. `where`: they are needed.
    """
    so_far = f"{window[:-1]} {frame} BETWEEN UNBOUNDED PRECEDING AND {end})"
    found = {}
    for plain, column in arguments.inheriting:
        said = _said(plain, column, arguments)
        found[f"register_{plain}"] = (
            f"last({said}, true) {so_far}"
            if arguments.seen is None
            else f"CASE WHEN {where} THEN greatest({_committed(plain, column, arguments)},"
            f" max(CASE WHEN {where} THEN {said} END) {so_far}) END"
        )
    return found


def _entry(column: Column, inherited: str = "inherited") -> str:
    """SQL: the entry of a column; null if the record carries it."""
    return f"get({inherited}, CAST(array_position(({inherited}).id, {column.id}) AS INT) - 1)"


def _cell(column: Column, arguments: Arguments, order: str, known: str, value: str | None = None) -> str:
    """SQL: a state of a register. In `sequence` order the highest order counts."""
    typed = f"CAST({value or 'NULL'} AS {sql_type(column.type)})"
    ordered = "" if arguments.seen is None else f"'ord', {order}, "
    return f"named_struct({ordered}'known', {known}, 'value', {typed})"


def _value(plain: str, arguments: Arguments, value: str = "value") -> str:
    """SQL: the value of a column, also if `rest` has it."""
    own = f"{value}.{plain}"
    return f"coalesce({own}, {value}.in_rest.{plain})" if arguments.in_rest else own


def _said(plain: str, column: Column, arguments: Arguments) -> str:
    """SQL: what a row says of a column; null if nothing. In `sequence` order, only what records say."""
    sent = _cell(column, arguments, "ord", "true", _value(plain, arguments))
    nothing = _cell(column, arguments, "ord", "false")
    entry = _entry(column)
    if arguments.seen is None:
        says, known = f"(diff IS NOT NULL OR {ACTS})", f"coalesce({entry}.known, false)"
        unknown = f"WHEN NOT {entry}.known THEN {nothing}"
    else:
        says, known, unknown = f"({ACTS} AND truncated_by IS NULL)", "false", ""
    return f"""CASE WHEN NOT {says} THEN NULL
        WHEN inherited IS NOT NULL THEN CASE WHEN {entry} IS NULL OR {known} THEN {sent} {unknown} END
        WHEN op = ascii('u') AND err IS NULL THEN {sent} ELSE {nothing} END"""


def _committed(plain: str, column: Column, arguments: Arguments) -> str:
    """SQL: the register as the shard has it, null if nothing is known: of the slot's row, or of its tombstone."""
    entry, value = _entry(column, INHERITED_NOW), _value(plain, arguments, "committed.value")
    return f"""CASE
        WHEN committed.holds THEN CASE
            WHEN {INHERITED_NOW} IS NULL AND committed.is_err THEN {_cell(column, arguments, ORDER_NOW, "false")}
            WHEN {entry} IS NULL THEN {_cell(column, arguments, ORDER_NOW, "true", value)}
            ELSE {_cell(column, arguments, f"{entry}.ord", f"{entry}.known", value)} END
        WHEN {REMEMBERED} THEN {_cell(column, arguments, "known.ord", "false")} END"""


def with_registers(found: DataFrame, arguments: Arguments, where: str) -> DataFrame:
    """The rows without the registers; if one inherits and `where` is true for it, it is whole, or an err."""
    schema, inheriting = arguments.schema, dict(arguments.inheriting)
    is_partial = f"inherited IS NOT NULL AND {where}"
    registers = {plain: f"register_{plain}" for plain in inheriting}
    cells = []
    for plain in arguments.values:
        own = f"value.{plain}"
        if plain in inheriting:
            own = f"IF({_entry(inheriting[plain])} IS NULL, {own}, {registers[plain]}.value)"
        cells.append(f"'{plain}', {own}")
    entries = {
        column.id: (
            f"{_entry(column)} IS NOT NULL",
            f"coalesce({registers[plain]}.known, false)",
            f"{registers[plain]}.ord",
        )
        for plain, column in inheriting.items()
    }
    cells += arguments.in_rest_cell("value.in_rest")
    given = {
        "value": f"CASE WHEN {is_partial} THEN named_struct({', '.join(cells)}) ELSE value END",
        "inherited": f"CASE WHEN {is_partial} THEN {entries_sql(schema, entries)} ELSE inherited END",
    }
    kept = [name for name in found.columns if name not in registers.values()]
    resolved = found.selectExpr(*[f"{given.get(name, name)} AS {name}" for name in kept])
    return with_errs(resolved, arguments, is_partial)


def with_errs(resolved: DataFrame, arguments: Arguments, is_partial: str) -> DataFrame:
    """The rows; a row of `is_partial` with an unknown value is an err."""
    schema = arguments.schema
    unknown = {column.name: f"coalesce(NOT {_entry(column)}.known, false)" for _, column in arguments.inheriting}
    names = [f"CASE WHEN {is_unknown} THEN {text_literal(name)} END" for name, is_unknown in unknown.items()]
    cells = [F.col("value").getField(name) for name in arguments.values]
    message = F.concat(
        F.lit("no value was sent for "),
        F.expr(f"concat_ws(', ', {', '.join(names)})"),
        F.lit(
            ", and the row has no value to keep: it is new, was deleted, or is an error. The next record with the value"
            " corrects it"
        ),
    )
    err = F.struct(
        F.lit("value").alias("kind"),
        message.alias("message"),
        canonical_key(schema.key, [F.col(each) for each in arguments.keys]).alias("key"),
        json_without(schema.values, cells, unknown).alias("payload"),
        F.lit(None).cast("string").alias("position"),
    )
    is_lost = F.expr(f"{is_partial} AND ({' OR '.join(unknown.values())})")
    return resolved.withColumn("err", F.when(is_lost, err).otherwise(F.col("err")))


def with_cuts(found: DataFrame, arguments: Arguments, counts: str, window: str) -> tuple[DataFrame, str]:
    """Rows of the thorough plan with what their slot holds before their time, and SQL: the row, a tombstone, is above a
    value that the slot's row has inherited. `counts`: the precedence of a record that acts, else null."""
    own = f"CASE WHEN {counts} IS NOT NULL THEN named_struct('p', {counts}, 'ids', inherited.id) END"
    stored = f"named_struct('p', named_struct('o', {ORDER_NOW}, 'c', {CANONICAL_NOW}), 'ids', ({INHERITED_NOW}).id)"
    registers = registers_of(arguments, arguments.over("time"), "RANGE", "1 PRECEDING")
    found = found.selectExpr(
        "*",
        f"greatest(CASE WHEN committed.holds THEN {stored} END, max({own}) {window} 1 PRECEDING)) AS holder",
        *[f"{sql} AS {name}" for name, sql in registers.items()],
    )
    below = [
        f"(array_contains(holder.ids, {column.id}) AND register_{plain}.known AND register_{plain}.ord < ord)"
        for plain, column in arguments.inheriting
    ]
    return found, f"coalesce({' OR '.join(below)}, false)"


def with_raised(known: DataFrame, arguments: Arguments) -> DataFrame:
    """Add `raised_canonical` to rows with `committed` and `known`, for the thorough plan."""
    if not (arguments.is_thorough and arguments.inherits):
        return known
    cells = [F.col("committed.value").getField(name) for name in arguments.values]
    sent = sent_json(arguments.schema, cells, "known.inherited")
    is_err = F.expr("committed.is_err AND known.inherited IS NULL")
    return known.withColumn("raised_canonical", F.when(is_err, F.col("committed.p.c")).otherwise(sent))
