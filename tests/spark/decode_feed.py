"""A folder of input files, and the records that are decoded from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import parse_pattern
from persist_core.location.file.blob import FileBlob
from persist_core.location.mem import MemBlob
from persist_core.sources.feed import LocalFeed
from persist_core.sources.files import FileSource
from persist_core.sources.input_file import InputFile
from persist_spark.decode.files import Copies
from persist_spark.decode.formats import decode
from persist_spark.feed_access import FeedAccess
from persist_spark.frame import ORDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Record = dict[str, Any]


def copies_beside(folder: Path) -> Copies:
    """A place for copies of input files, which the test's own folder takes away."""
    return Copies(FileBlob(folder.parent / "copies"), "t/{}".format, access_to(folder))


def access_to(folder: Path) -> FeedAccess:
    """The files in a folder."""
    return FeedAccess(LocalFeed(parse_pattern("**/*", str(folder))))


class Feed:
    """Files below `folder`, decoded as collections with the settings of each call."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder

    def write(self, name: str, text: str | bytes) -> None:
        """Put a file there."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def config(self, kind: str, columns: dict[str, Any], **changes: Any) -> CollectionConfig:
        """A collection of all files, of this format. `changes` are more of its file."""
        body: dict[str, Any] = {
            "name": "t",
            "source": {"path": "**/*", "format": kind, **changes.pop("source", {})},
            "key": "id",
            "columns": columns,
            "base_dir": str(self.folder),
            **({"delete": "none"} if kind in ("csv", "parquet", "json") else {}),
        }
        return CollectionConfig.model_validate(body | changes)

    def frame(
        self, kind: str, columns: dict[str, Any], files: Sequence[InputFile] | None = None, **changes: Any
    ) -> DataFrame:
        """The records frame of all files (or these), read as `kind`. `see` as of `decode`."""
        see = changes.pop("see", lambda *_: None)
        config = self.config(kind, columns, **changes)
        if files is None:
            files = FileSource(config, MemBlob()).freeze(None, until=None).frozen.files
        return decode(self.spark, config, files, copies=copies_beside(self.folder), see=see)

    def records(self, kind: str, columns: dict[str, Any], **changes: Any) -> list[Record]:
        """The records of `frame`, in their order."""
        return [row.asDict() for row in self.frame(kind, columns, **changes).orderBy(ORDER).collect()]

    def lines(self, kind: str, lines: list[str], columns: dict[str, Any], **changes: Any) -> list[Record]:
        """The records of a single file with these lines, in the order of the lines."""
        self.write("lines.jsonl", "\n".join(lines) + "\n")
        changes = {"order": "position", **changes}
        return self.records(kind, columns, **changes)
