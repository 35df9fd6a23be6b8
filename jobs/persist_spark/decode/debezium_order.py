"""`order: auto` of Debezium: the place of a record in the log of its database, as each connector says it.

| connector | `number` | `pos` | `lsn` | `row` | `server` |
| --- | --- | --- | --- | --- | --- |
| postgresql | `lsn`, or the commit before it (`sequence`) | `lsn`, or the second of `sequence` | | | |
| mysql | number of the binlog `file` | `pos` | | `row` | `server_id` |
| mariadb | sequence of the `gtid` (domain-server-sequence) | `pos` | | `row` | `domain` and its number |
| sqlserver, db2 | | | `commit_lsn`, `change_lsn` | `event_serial_no` (SQL Server) | |
| oracle | `scn`, or `commit_scn` | `scn` | `rs_id`, or `lcr_position` | `ssn` | |
| mongodb | `ts_ms`, the second of the oplog | `ord` | | | |

1. A record of a snapshot (`r`) has the position of the snapshot, and comes before all changes after that. In an
   incremental snapshot of PostgreSQL it has no `lsn`: `sequence` has the position at which its chunk was complete. One
   without a position comes before all other records of its key, unless its clocks say that it is later: that is a
   question. So does one of MariaDB without a GTID, since its binlog file says nothing beside sequences.
2. `number` of PostgreSQL and Oracle is the greater one of two. A transaction that is open while a snapshot is taken may
   have changed a row at a lower position than the snapshot's, which does not see it. A commit counts: its own, or the
   one before it in the log. Transactions that change one row never overlap, so this keeps their order.
3. A record of another connector, or one that does not say its place, has no order: Vitess (`vgtid` is a place for each
   shard), Informix, Spanner, Cassandra, unwrapped records without `__lsn` and the like.
4. `source_ms` is the database's clock, `seen_ms` the connector's: see `persist_spark.upsert.eras`. A record of a
   snapshot that has only the first has no clock, because it was read later than its position says.
"""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from persist_core.config.order import DOMAIN, ERA, SEEN_MS, SERVER, SOURCE_MS
from persist_spark.compat import try_cast
from persist_spark.decode.exact import bounded
from persist_spark.decode.json import Shape, without_mark
from persist_spark.decode.records import NO_PLACE, ORDER_AUTO

UNORDERED = "unordered"  # why the record has no order, or null
KNOWN = ("postgresql", "mysql", "mariadb", "sqlserver", "db2", "oracle", "mongodb")
_NUMBERS = ("lsn", "pos", "row", "event_serial_no", "scn", "ssn", "ord")
_PARTS = ("file", "gtid", "sequence", "commit_lsn", "change_lsn", "commit_scn", "rs_id", "lcr_position")
_TEXTS = ("connector", "server_id", "ts_ms", *_PARTS)
SOURCE_FIELDS = (*_NUMBERS, *_TEXTS)
_SEEN = "seen"
_PLACES = "order_texts"  # a struct of the texts of `SOURCE_FIELDS`, and `_SEEN`
_FLAT_STARTS = ("__source_", "__")
FLAT_FIELDS = tuple(f"{start}{name}" for start in _FLAT_STARTS for name in SOURCE_FIELDS)  # of `add.fields`
_TOO_LARGE = f"'; {ORDER_AUTO} takes whole numbers below 2^63"
_BINLOG = r"(\d{1,18})$"
_COMMIT_BEFORE = r'^\["(\d{1,19})"'  # of PostgreSQL's `sequence`, a text: ["28830616","28830672"]
_LSN = r'"(\d{1,19})"\]$'  # of the same text
_GTID = r"^(\d{1,10})-\d{1,10}-(\d{1,18})$"  # MariaDB's; MySQL's is a UUID and a number


def with_order_texts(opened: DataFrame, source_shape: Shape, flat_shape: Shape, *, is_flat: SparkColumn) -> DataFrame:
    """Add the texts that `auto_order` reads, of an envelope (columns `op`, `source`, `ts_ms`) or an unwrapped record
    (column `flat`)."""

    def flat(name: str) -> SparkColumn:
        return flat_shape.get(F.col("flat"), (name,))

    texts = {name: F.coalesce(*[flat(f"{start}{name}") for start in _FLAT_STARTS]) for name in SOURCE_FIELDS}
    texts |= {"ts_ms": flat("__source_ts_ms"), _SEEN: flat("__ts_ms")}
    enveloped = {name: source_shape.get(F.col("source"), (name,)) for name in SOURCE_FIELDS} | {_SEEN: F.col("ts_ms")}
    both = [F.when(is_flat, text).otherwise(enveloped[name]) for name, text in texts.items()]
    named = [without_mark(text).alias(name) for name, text in zip(texts, both, strict=True)]
    return opened.withColumn(_PLACES, F.struct(*named))


def auto_order() -> dict[str, SparkColumn]:
    """The fields of the order by name, and `UNORDERED`, of the rows of `with_order_texts`."""

    def text(name: str) -> SparkColumn:
        return F.col(_PLACES).getField(name)

    def number(name: str) -> SparkColumn:
        return try_cast(text(name), "bigint")

    def found(pattern: str, name: str, group: int) -> SparkColumn:
        matched = F.regexp_extract(bounded(text(name)), pattern, group)
        return F.when(matched != "", matched)

    connector = text("connector")
    is_known = F.coalesce(connector.isin(*KNOWN), F.lit(False))
    is_read = F.coalesce("op", "__op").eqNullSafe("r")
    sequence = try_cast(found(_GTID, "gtid", 2), "bigint")
    has_gtid = sequence.isNotNull()
    binlog = F.when(number("pos").isNotNull(), try_cast(found(_BINLOG, "file", 1), "bigint"))
    oplog = F.when(text("ord").isNotNull(), number("ts_ms"))
    written = F.coalesce(number("lsn"), number("scn"), try_cast(found(_LSN, "sequence", 1), "bigint"))
    commits = try_cast(found(_COMMIT_BEFORE, "sequence", 1), "bigint"), number("commit_scn")
    place = F.when(written.isNotNull(), F.greatest(written, *commits))
    place = F.coalesce(place, sequence, binlog, oplog)
    is_first = is_read & connector.eqNullSafe("mariadb") & ~has_gtid
    change = F.when(text("commit_lsn").isNotNull(), F.concat_ws("/", text("commit_lsn"), text("change_lsn")))
    server = F.when(has_gtid, F.concat(F.lit(DOMAIN), found(_GTID, "gtid", 1)))
    server = server.when(binlog.isNotNull() & (text("server_id") != "0"), text("server_id"))
    has_place = place.isNotNull() | change.isNotNull() | (is_read & is_known)
    why = F.when((connector.isNotNull() & ~is_known) | ~has_place, NO_PLACE)
    for name in _NUMBERS:
        said = F.concat(F.lit(f"{name} of source is '"), F.substring(text(name), 1, 80), F.lit(_TOO_LARGE))
        why = F.when(text(name).isNotNull() & number(name).isNull(), said).otherwise(why)
    has_clock = has_place & (text(_SEEN).isNotNull() | ~is_read)
    return {
        ERA: F.lit(None).cast("bigint"),
        "number": F.when(~is_first, place),
        "pos": F.when(~is_first, F.coalesce(number("ord"), number("pos"), written)),
        "lsn": F.coalesce(change, text("rs_id"), text("lcr_position")),
        "row": F.when(~is_first, F.coalesce(number("row"), number("event_serial_no"), number("ssn"))),
        SERVER: F.when(~is_read, server),
        SOURCE_MS: F.when(has_clock, number("ts_ms")),
        SEEN_MS: F.when(has_clock, F.coalesce(number(_SEEN), number("ts_ms"))),
        UNORDERED: why,
    }
