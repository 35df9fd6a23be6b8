"""How a job gets at the files of its feed: its own code by the `Feed`, Spark by a path, or by a copy.

    file in a folder ──> its path, or a copy if Hadoop can read it under none (a `[` and a `:`)
    object on S3 ──────> s3a://bucket/name, with the feed's own settings for that bucket, if those are the frozen bytes
                    '──> no path: `Copies` puts exactly the frozen bytes into the location

S3A opens what a name leads to now, and knows no version; each stream that it opens stays with one ETag, but a file is
read by several. So objects are checked before and after, and Spark does not read what is no longer the newest version.
It does not read by itself either where S3A would need two settings for one bucket, of which a JVM keeps the first: in a
Spark Connect server, which serves others too; in the location's own bucket under other credentials; and in a bucket
that this process has read with other settings. Nor does it read names that Hadoop would take for patterns: Spark would
list all that is below the root for them, and read other files twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from persist_core.errors import PersistError, RunFailed
from persist_core.location.file.folder import HADOOP_GLOB
from persist_core.location.open import OpenLocation
from persist_core.sources.feed import Feed
from persist_core.sources.input_file import InputFile
from persist_core.sources.s3_feed import S3Feed
from persist_spark import s3a
from persist_spark.compat import is_connect

_settings: dict[str, Mapping[str, str]] = {}  # by bucket: the options that this process's JVM has read it with


@dataclass(frozen=True)
class FeedAccess:
    """The files of one job. `options` lead Spark to them; it reads none of `superseded`, none if not `is_direct`."""

    feed: Feed
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_direct: bool = True
    superseded: frozenset[InputFile] = frozenset()

    def spark_path(self, file: InputFile) -> str | None:
        """The path that Spark reads `file` under as it is, if it may."""
        if not self.is_direct or file in self.superseded:
            return None
        is_pattern = not HADOOP_GLOB.isdisjoint(file.path)
        if not isinstance(self.feed, S3Feed):
            return None if is_pattern and ":" in file.path else file.path  # in a pattern, `a:` is a scheme to Hadoop
        return None if is_pattern else f"s3a://{file.path.removeprefix('s3://')}"

    def check_after(self, files: Sequence[InputFile]) -> None:
        """Raise `SourceChanged` if Spark may have read other bytes than the frozen ones, or a file is gone.

        If the frozen version is still there, `RunFailed`: the next try reads a copy of it.
        """
        self.feed.check(files)
        newer = _superseded(self.feed, files) - self.superseded if self.is_direct else ()
        for file in newer:
            raise RunFailed(
                f"input file {file.path}: a newer version came while Spark read it. Nothing was committed: the next try"
                f" reads the frozen version {file.version_id}"
            )


@contextmanager
def changed_first(access: FeedAccess, files: Sequence[InputFile]) -> Iterator[None]:
    """Turn a failure of Spark inside into `SourceChanged` if a file changed meanwhile."""
    try:
        yield
    except PersistError:
        raise
    except Exception:
        access.check_after(files)
        raise


def feed_access(spark: SparkSession, location: OpenLocation, feed: Feed, files: Sequence[InputFile]) -> FeedAccess:
    """The access of a job that runs in `spark`. Raises `SourceChanged` if a file is not as it was frozen."""
    feed.check(files)
    if not isinstance(feed, S3Feed):
        return FeedAccess(feed)
    options = s3a.feed_options(feed.objects)
    if is_connect(spark) or s3a.disagree(options, location.blob.uri):
        return FeedAccess(feed, is_direct=False)
    if _settings.setdefault(feed.objects.settings.bucket, options) != options:
        return FeedAccess(feed, is_direct=False)
    return FeedAccess(feed, options, superseded=_superseded(feed, files))


def _superseded(feed: Feed, files: Sequence[InputFile]) -> frozenset[InputFile]:
    return frozenset(feed.superseded(files)) if isinstance(feed, S3Feed) else frozenset()
