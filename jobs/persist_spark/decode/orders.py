"""The fields that order the records of a format, beside their position: its own, or the fields of `order: by`."""

from __future__ import annotations

from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_spark.decode.dms_names import file_name, is_full_load, is_of_dms
from persist_spark.decode.exact import number_order
from persist_spark.decode.records import Fields, OrderField


def order_of(config: CollectionConfig, fields: Fields) -> tuple[OrderField, ...]:
    """The order of rows: with `auto`, DMS's changes by the names of their files, which are times, in whatever folders
    they lie; before them its full load, which has none."""
    if config.order.by == "auto" and is_of_dms(config):
        return (OrderField("change", F.when(~is_full_load(), file_name())),)
    return field_orders(config, fields)


def _free_order(name: str, raw: SparkColumn) -> list[OrderField]:
    """A field that is not a column: numbers in numeric order, below them any other text in text order."""
    number = number_order(raw)
    return [OrderField(f"{name}_number", number), OrderField(f"{name}_text", F.when(number.isNull(), raw))]


def field_orders(config: CollectionConfig, fields: Fields) -> tuple[OrderField, ...]:
    """The order struct's fields for `order: [...]`: of a configured column its typed value, else the text in `o..`.

    A missing value is null: the lowest. In `sequence` order all of them are typed.
    """
    found: list[OrderField] = []
    own = {field.column.name: field for field in fields.orders}
    for index, name in enumerate(config.order.fields):
        field = fields.named(name) or own.get(name)
        if field is not None:
            found.append(OrderField(f"by{index}", F.col(field.value), raw=field.raw))
        else:
            found += _free_order(f"by{index}", F.col(f"o{index}"))
    return tuple(found)
