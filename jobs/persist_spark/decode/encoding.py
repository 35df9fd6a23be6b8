"""The writing of values by a format, and by a message's own schema: what `values` must know about a field."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.config.column import Binary, Decimals, Unit
from persist_core.schema import Column, decimal_of
from persist_core.time_text import UTC_ZONE
from persist_spark.decode.json import unmarked


@dataclass(frozen=True)
class Hint:
    """A message's facts about a field, each null if it says nothing: Connect type, logical name, decimal scale."""

    type: SparkColumn
    name: SparkColumn
    scale: SparkColumn


@dataclass(frozen=True)
class Encoding:
    """The way in which a format writes values.

    `marked`: numbers are marked (`persist_spark.decode.json`). `decimals`: what a quoted number is if no schema says:
    `precise` (base64 of the unscaled integer), `string` (its digits), `None` (unknown: an err if it may be base64).
    `binary`: how bytes are written; `None`: base64, and an err if it may be hex. `zone`: of timestamps
    without an offset.
    """

    marked: bool
    decimals: Decimals | None = "string"
    binary: Binary | None = None
    zone: str = UTC_ZONE

    @classmethod
    def of(cls, config: CollectionConfig, *, marked: bool) -> Encoding:
        source = config.source
        return cls(
            marked=marked,
            decimals=source.decimals if source.format == "debezium-json" else "string",
            binary=source.binary or ("hex" if source.format.startswith("dms-") else None),
            zone=config.timezone,
        )

    def of_field(self, field: Field) -> Encoding:
        """The encoding of one column, which may differ from its source's."""
        return replace(self, decimals=field.decimals or self.decimals, binary=field.binary or self.binary)

    def plain(self, raw: SparkColumn) -> SparkColumn:
        """The field's text as it stood in the record."""
        return unmarked(raw) if self.marked else raw


@dataclass(frozen=True)
class Field:
    """A column of the collection in the raw frame: its text is in `raw`, a hint, if any, in `h<raw>`.

    `is_typed`: `raw` is not text but a value that a plain cast turns into the column's type without loss, or into null.
    `is_local`: it is a time without an offset.
    """

    column: Column
    raw: str
    unit: Unit | None = None
    is_hinted: bool = False
    decimals: Decimals | None = None
    binary: Binary | None = None
    is_typed: bool = False
    is_local: bool = False

    @property
    def value(self) -> str:
        """The column that takes the typed value."""
        return f"typed_{self.raw}"

    @property
    def iso(self) -> str:
        """The column that takes an ISO timestamp, read as UTC if it has no offset."""
        return f"iso_{self.raw}"

    @property
    def unsent(self) -> str:
        """The boolean column that says of one that inherits: the record does not carry its value."""
        return f"unsent_{self.raw}"

    @property
    def hint(self) -> Hint | None:
        if not self.is_hinted:
            return None
        found = F.col(f"h{self.raw}")
        return Hint(found.getField("type"), found.getField("name"), found.getField("parameters").getField("scale"))

    @property
    def is_integer(self) -> bool:
        return self.column.type in ("int", "bigint")

    @property
    def decimal(self) -> tuple[int, int] | None:
        return decimal_of(self.column.type)

    def may_be_base64(self, encoding: Encoding) -> bool:
        """True if a quoted text may be the bytes of a number."""
        is_exact = self.is_integer or self.decimal is not None
        return is_exact and (self.is_hinted or encoding.decimals != "string")
