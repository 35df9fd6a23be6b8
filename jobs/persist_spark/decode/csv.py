"""CSV: `csv` with a delete marker, `dms-csv` with a leading `Op`. Quotes are doubled within quotes (RFC 4180).

A record is a line (`persist_spark.decode.csv_files`), and is kept whole as the payload of its err.

The first record of each file is its header (`header: true`); any other record equal to it is one too. Which other files
are read with it does not matter. Columns are found by the header's names, exactly. Extra columns in a file are ignored,
missing ones are null; without a key column the file is not read. Without a header, columns are in the order of
`columns:`, or at the number that `field` gives (1 is the first); a record must have as many fields as its file's first.

An unquoted empty field is null and `""` an empty string in `csv`. In `dms-csv` an empty field is an empty string, or
null if the column is not a string. The text `null_value` is null, also in quotes, since Spark takes them off: in
`dms-csv` it is NULL (the default of DMS), if the source does not say another one.
"""

from __future__ import annotations

from codecs import BOM_UTF8

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.sample.csv_records import null_text
from persist_spark.decode.csv_files import BREAK, ESCAPES, Layout, has_odd_quotes
from persist_spark.decode.encoding import Encoding
from persist_spark.decode.files import LINE
from persist_spark.decode.plain import DMS_OP, MARKER, free_paths, order_of, row_op
from persist_spark.decode.records import FAULT, FAULT_KIND, RawRecords, fields_of, line_columns
from persist_spark.decode.rest import read_paths, rest_of_cells

_NO_FIELD = "\n"  # what no field of one line is: only an empty field is null
UNBALANCED = "an odd number of quotes: a field is not closed, here or in a line that follows"
CONTINUED = 'a quoted field goes on behind its closing quote; double a quote within quotes ("")'
MISCOUNTED = "the line does not have as many fields as its file's first line"


def csv_records(config: CollectionConfig, lines: DataFrame, layout: Layout) -> RawRecords:
    """`csv` and `dms-csv`: see the module's docstring. `lines` come from files of this layout."""
    fields = fields_of(config)
    is_dms = config.source.format == "dms-csv"
    wanted = {raw: ".".join(path) for raw, path in read_paths(config, fields).items()}
    wanted |= {raw: ".".join(path) for raw, path in free_paths(config).items()}
    marker = DMS_OP if is_dms else config.delete.column
    if marker is not None:
        wanted[MARKER] = marker
    null = null_text(config.source.format, config.source.null_value)
    texts = {field.raw for field in fields.all if field.column.type in ("string", "json")}
    at = {name: index for index, name in reversed(list(enumerate(layout.names)))}
    cells = ", ".join([*(f"c{i} STRING" for i in range(len(layout.names))), "odd STRING"])
    options = {
        "sep": config.source.delimiter,
        "quote": '"',
        "escape": '"',
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "odd",
        "nullValue": _NO_FIELD,  # an unquoted empty field; we interpret any other text
        "emptyValue": "",
        "maxCharsPerColumn": "-1",
    }
    kept = lines
    if layout.header is not None:  # again where files were joined to one, behind a BOM of its own
        headers = [layout.header, BOM_UTF8 + layout.header]
        is_as_long = F.octet_length(F.col(LINE)).isin([len(header) for header in headers])  # of most lines all it takes
        kept = lines.where(~(is_as_long & F.col(LINE).cast("binary").isin(headers)))
    row = F.from_csv(F.col(LINE), cells, options)
    # Spark keeps a field such as "x"y with its quotes, others read xy. A second reading skips such fields; only a line
    # with a quote between two other characters needs it.
    apart = "".join(f"\\x{{{ord(char):x}}}" for char in config.source.delimiter)
    strict = F.from_csv(F.col(LINE), cells, {**options, "unescapedQuoteHandling": "SKIP_VALUE"})
    goes_on = F.col(LINE).rlike(f'[^{apart}]"[^"{apart}]') & ~strict.eqNullSafe(row)
    rows = kept.select(*line_columns(config), row.alias("row"), goes_on.alias("goes_on"))
    parsed = F.col("row")

    def text(raw: str, name: str) -> SparkColumn:
        if name not in at:
            return F.lit(None).cast("string")
        found = _broken(layout, parsed.getField(f"c{at[name]}"))
        if null is None:
            return found
        known = F.when(found != null, found)
        return known.when(found.isNull(), F.lit("")) if is_dms and null and raw in texts else known

    known = dict(zip(layout.fields, layout.names, strict=True))
    rest = rest_of_cells(config, fields, {shown: text("", name) for shown, name in known.items()})
    is_trusted, fault = _fault(layout, parsed, wanted)
    frame = rows.select(
        *line_columns(config),
        *[
            (F.when(is_trusted, text(raw, name)) if raw.startswith("k") else text(raw, name)).alias(raw)
            for raw, name in wanted.items()
        ],
        *[column.alias(raw) for raw, column in rest.items()],
        F.when(fault.isNotNull(), F.when(is_trusted, F.lit("value")).otherwise(F.lit("key"))).alias(FAULT_KIND),
        fault.alias(FAULT),
    )
    op = row_op(config, fields, has_marker=marker is not None and marker in at)
    encoding = Encoding.of(config, marked=False)
    return RawRecords(frame, fields, _broken(layout, F.col(LINE)), encoding, order_of(config, fields), op)


def _broken(layout: Layout, found: SparkColumn) -> SparkColumn:
    """The text with its line breaks, as it was before its file was joined."""
    if layout.is_joined:
        found = F.replace(found, F.lit(BREAK), F.lit("\n"))
        for char, escape in reversed(ESCAPES.items()):
            found = F.replace(found, F.lit(escape), F.lit(char))
    return found


def _fault(layout: Layout, row: SparkColumn, wanted: dict[str, str]) -> tuple[SparkColumn, SparkColumn]:
    """The reliability of a line's key, and the fault of the line or its file, or null.

    In a line with a fault a key is reliable if it comes first, another field follows it, and no quote is left in it:
    then it is complete and in its place.
    """
    keys = [name for raw, name in wanted.items() if raw.startswith("k")]
    twice = sorted({name for name in wanted.values() if layout.names.count(name) > 1})
    if twice:
        return F.lit(twice[0] not in keys), F.lit(f"the header has {twice[0]!r} twice; give its fields different names")
    is_odd = row.getField("odd").isNotNull()
    follower = len(keys) + (layout.names[0] == DMS_OP)
    is_first = set(layout.names[:follower]) <= {*keys, DMS_OP} and follower < len(layout.names)
    first = F.concat_ws("", *[row.getField(f"c{at}") for at in range(follower)])
    is_trusted = row.getField(f"c{follower}").isNotNull() & ~first.contains('"') if is_first else F.lit(False)
    fault = F.when(has_odd_quotes(LINE), F.lit(UNBALANCED)).when(is_odd, F.lit(MISCOUNTED))
    fault = fault.when(F.col("goes_on"), F.lit(CONTINUED)).otherwise(F.lit(None).cast("string"))
    return fault.isNull() | is_trusted, fault
