"""A damaged part raises an error that names it; its rows are never returned.

    before a read    the size of every file that is to be read, against its manifest: `check_sizes`
    during it        the digest of page indexes and footer, if pages are passed over by them: `has_indexes`
                     the checksum of every page, by Spark's Parquet reader (`parquet.page.verify-checksum.enabled`)
                     diffs that add up to a count that no row can have: `possible_counts`
    after a failure  the digest of the file that Spark names, which tells damage from a store that failed to answer;
                     a file that is gone and no longer named was deleted by GC: the read was too slow

Not found here: a footer damaged so that it can still be read (of 962 bits flipped in footers, 1 lost rows in Spark),
and another file of the same size. Plain reads and `persist fsck` compare digests, and find both.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from persist_core.contents.batch import BatchManifest, Part
from persist_core.contents.operator_state import StateArtifact
from persist_core.errors import CorruptArtifact, Determinate, InvariantViolation, PersistError, ReadTooSlow
from persist_core.handles.client import PersistClient
from persist_core.handles.load import load_head, load_lists
from persist_core.handles.overtaken import too_slow
from persist_core.handles.read import MAX_COPIES
from persist_core.handles.side_by_side import side_by_side
from persist_core.keys import MANIFEST, PART, owner_of
from persist_core.location.blob import Blob, BlobMetadata
from persist_core.protocol.fork_records import readable_forks
from persist_core.schema import DIFF
from persist_core.spark_job.answer import error_of_kind
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.footers import THREADS, digests_of, end_digests_of, local_path

LOUD_OPTIONS = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}  # of every read: a session may say true
PATH_FILTER = "mapreduce.input.pathFilter.class"  # in Hadoop's configuration: of all files, what Spark lists
READ_OPTIONS = {
    **LOUD_OPTIONS,
    "parquet.page.verify-checksum.enabled": "true",
    # Filters skip rows by statistics, dictionaries and indexes that no checksum covers in that use. Our
    # own filters are on times, by which the batches were already selected, so skipping would save nothing.
    "parquet.filter.stats.enabled": "false",
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
}
# To pass over pages by their indexes, once `has_indexes` has verified these.
INDEXED = {"parquet.filter.columnindex.enabled": "true"}
_NAMED_FILE = re.compile(r"(?:reading file:?|File|Path does not exist:) (\S.{0,4096}?\.parquet)")
_MAX_ROW_CHARS = 500
_RAISED = "persist_error"  # the first field of what a plan of ours raises, as JSON: the kind of an error
REMEDY = "nothing was committed; `persist fsck` lists all damage, then copy the object back from a backup or restore"


def check_sizes(blob: Blob, sizes: Mapping[str, int]) -> None:
    """Raise `CorruptArtifact` naming a file that is missing or whose size is not the one given (bytes, by key).

    Costs one `stat` a file in a file system, else one listing for each attempt that staged some of them.
    """
    found = stored_sizes(blob, list(sizes))
    for key, expected in sizes.items():
        if found.get(key) != expected:
            size = f"{found[key]} bytes" if key in found else "nothing"
            raise CorruptArtifact(f"{key}: found {size}, expected {expected} bytes; {REMEDY}")


def has_indexes(blob: Blob, parts: Sequence[Part]) -> bool:
    """True if all parts have page indexes with a digest. Reads and verifies them, and the footers.

    Raises `CorruptArtifact` naming a part with a damaged one: it would hide rows.
    """
    indexed = [(part, *part.index) for part in parts if part.index is not None]
    if len(indexed) < len(parts):
        return False
    ends = [(BlobMetadata(part.key, part.size_bytes), size_bytes) for part, size_bytes, _ in indexed]
    for (part, size_bytes, expected), found in zip(indexed, end_digests_of(blob, ends), strict=True):
        if found != expected:
            raise CorruptArtifact(
                f"{part.key}: its last {size_bytes} bytes (page indexes and footer) are damaged: found SHA-256 {found},"
                f" expected {expected}; {REMEDY}"
            )
    return True


def part_sizes(manifests: Iterable[BatchManifest]) -> dict[str, int]:
    return {part.key: part.size_bytes for manifest in manifests for part in manifest.parts}


def stored_sizes(blob: Blob, keys: list[str]) -> dict[str, int]:
    """The size of each of these files that is there, by key. Raises `Determinate` for a folder that may not be read."""
    if blob.uri.startswith("file:"):
        paths = [(key, path) for key in keys if (path := local_path(blob, key)) is not None]
        try:
            return {key: path.stat().st_size for key, path in paths if path.is_file()}
        except OSError as error:
            raise Determinate(f"{blob.uri}: {error}; nothing was changed; check the folder and its rights") from error
    folders = sorted({_attempt_folder(key) for key in keys})
    return {file.key: file.size_bytes for listing in listings(blob, folders) for file in listing}


def listings(blob: Blob, folders: Sequence[str]) -> list[list[BlobMetadata]]:
    """All files below each of these folders, listed side by side."""
    return side_by_side(lambda folder: list(blob.list_keys_and_metadata(f"{folder}/")), folders, threads=THREADS)


def _attempt_folder(key: str) -> str:
    return key.partition(f"/{PART}=")[0] if f"/{PART}=" in key else posixpath.dirname(key)


def possible_counts(counted: DataFrame, shard: str, row: Sequence[Column]) -> DataFrame:
    """`counted`, with a diff that fails the action and names the row if it is below 0 or above `MAX_COPIES`."""
    shown = F.substring(F.to_json(F.struct(*row)), 1, _MAX_ROW_CHARS)
    message = F.concat(
        F.lit(f"shard {shard}: a row is there "),
        F.col(DIFF).cast("string"),
        F.lit(f" times, expected 0 to {MAX_COPIES}: "),
        shown,
        F.lit(f". Run `persist fsck {shard}`"),
    )
    is_possible = F.col(DIFF).between(0, MAX_COPIES)
    raised = F.to_json(F.struct(F.lit(InvariantViolation.kind).alias(_RAISED), message.alias("message")))
    return counted.withColumn(DIFF, F.when(is_possible, F.col(DIFF)).otherwise(F.raise_error(raised).cast("bigint")))


def _raised(text: str) -> PersistError | None:
    """The error that a plan of ours has raised, in what Spark says of it."""
    begin = text.find(f'{{"{_RAISED}":')
    if begin < 0:
        return None
    found, _ = json.JSONDecoder().raw_decode(text, begin)
    return error_of_kind(found[_RAISED], found["message"])


@contextmanager
def named_damage(
    blob: Blob, client: PersistClient | None = None, known: Iterable[Part | StateArtifact] = ()
) -> Iterator[None]:
    """Around an action: raise `CorruptArtifact` if it failed at a staged file whose digest is not its manifest's.

    Raises `InvariantViolation` if it failed at a row that `possible_counts` refuses, and `ReadTooSlow` if it failed at
    a file that is gone because nothing names it any more. What is `known` of the files comes first; then, with
    `client`, the newest states say what is named, and without, the manifest beside the file does.
    """
    try:
        yield
    except ENGINE_ERRORS as error:
        raised = _raised(str(error))
        if raised is not None:
            raise raised from error
        key = _named_key(str(error), blob)
        if key is None:
            raise
        named = next((file for file in known if file.key == key), None)
        named = named or (_named_now(client, key) if client else _named_beside(blob, key))
        is_there = key in stored_sizes(blob, [key])
        if named is None and not is_there:
            raise ReadTooSlow(too_slow(owner_of(key), f"{key} is gone")) from error
        file = named or _named_beside(blob, key)
        if file is not None and (not is_there or _is_damaged(blob, file)):
            wrong = "is damaged: its manifest has another digest" if is_there else "is gone; its manifest names it"
            raise CorruptArtifact(f"{key} {wrong}; {REMEDY}") from error
        raise


def _named_key(message: str, blob: Blob) -> str | None:
    for named in _NAMED_FILE.findall(message):
        if (key := key_in(blob, named) or key_in(blob, unquote(named))) is not None:
            return key
    return None


def key_in(blob: Blob, path: str) -> str | None:
    """The key of a file, by the path that Spark gives it, or `None` if it is not below the location."""
    root, found = _path_in(blob.uri_of("x")).removesuffix("x"), _path_in(path)
    return found.removeprefix(root) if found.startswith(root) else None


def _path_in(uri: str) -> str:
    """`/bucket-or-folder/key`: Hadoop writes both `file:/x` and `file:///x`."""
    return "/" + re.sub(r"^[a-z0-9]+:", "", uri).lstrip("/")


def _named_beside(blob: Blob, key: str) -> Part | StateArtifact | None:
    """The facts of the manifest beside a staged file; `None` without that, or if it does not name the file."""
    beside = f"{_attempt_folder(key)}/{MANIFEST}"
    if blob.get(beside) is None:
        return None
    head = load_head(blob, beside)  # of a commit: its lists of parts may be gone
    return _named_in([load_lists(blob, beside, head, skips_missing=True)], key)


def _named_now(client: PersistClient, key: str) -> Part | StateArtifact | None:
    """The newest states' facts of a staged file: its shard's, whose runs carry files of older attempts that have no
    manifest any more, and forks' files."""
    shard = owner_of(key)
    records, _ = readable_forks(client.blob, shard)
    for name in dict.fromkeys([shard, *(record.fork for record in records)]):
        state = client.machine.fetch(name)
        manifests = client.manifests(state.batches) if state else []
        if (found := _named_in(manifests, key)) is not None:
            return found
    return None


def _named_in(manifests: Iterable[BatchManifest], key: str) -> Part | StateArtifact | None:
    for manifest in manifests:
        files: list[Part | StateArtifact] = [*manifest.parts]
        files += [artifact for state in manifest.operators.values() for artifact in state.artifacts]
        for file in files:
            if file.key == key:
                return file
    return None


def _is_damaged(blob: Blob, file: Part | StateArtifact) -> bool:
    try:
        return digests_of(blob, [BlobMetadata(file.key, file.size_bytes)]) != [file.sha256]
    except CorruptArtifact:
        return True
    except OSError:  # a file that may not be read: Spark's error has the reason
        return False
