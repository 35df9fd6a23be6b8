"""The files that the globs of `--from` name: as `source.path` would find them, before there is a collection."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from persist_core.config.path_pattern import S3, parse_pattern
from persist_core.errors import InvalidInput
from persist_core.location.open import OpenLocation
from persist_core.sample.detect import escaped
from persist_core.sources.feed import Feed, Wanted
from persist_core.sources.feeds import feed_at
from persist_core.sources.input_file import InputFile
from persist_core.sources.natural_order import natural_key
from persist_core.sources.root import join


@dataclass(frozen=True)
class FoundFiles:
    """Files of one folder tree or bucket, in natural order, and where they are read.

    `beside`: paths of other files, in the folders of files that were given by name.
    """

    feed: Feed
    files: Sequence[InputFile]
    connection: str | None = None
    globs: Sequence[str] = ()
    beside: Sequence[str] = ()


def found_by(globs: Sequence[str], location: OpenLocation, connection: str | None = None) -> FoundFiles:
    """The files that these globs name, with the rules of `source.path`. `connection`: its name, for a bucket.

    Raises `InvalidInput` for files in several stores, and for none; `StorageError`.
    """
    found: dict[str, InputFile] = {}
    others: set[str] = set()
    named = [text for text in globs if os.path.isfile(text)]  # noqa: PTH113 - an object may have a longer name
    files = {escaped(text): os.path.normpath(Path.cwd() / text) for text in named}
    globs = [escaped(text) if text in named else text for text in globs]
    patterns = [parse_pattern(text, str(Path.cwd())) for text in globs]
    stores = {each.root.removeprefix(S3).partition("/")[0] if each.root.startswith(S3) else "" for each in patterns}
    if connection is not None and stores == {""}:
        raise InvalidInput("--connection is for files on s3://; leave it out")
    if len(stores) > 1:
        raise InvalidInput("--from: found files in several stores; expected one folder tree, or one bucket")
    gone = [each.root for each in patterns if not each.root.startswith(S3) and not os.path.lexists(each.root)]
    if gone:
        raise InvalidInput(f"--from: found no folder {gone[0]}; expected the path of a file, or a glob in quotes")
    # A shell expands a glob to files: their folder is listed once, and not once for each.
    paths = {*files.values()}
    folders = [parse_pattern(f"{escaped(root)}/*", "/") for root in sorted({*map(os.path.dirname, paths)})]
    looks = [*folders, *(each for text, each in zip(globs, patterns, strict=True) if text not in files)]
    feeds = [feed_at(location, pattern, connection) for pattern in looks]
    for place, (pattern, feed) in enumerate(zip(looks, feeds, strict=True)):
        for each in feed.scan(Wanted()).found:
            path = join(pattern.root, each.below_root)
            if place < len(folders) and path not in paths:
                others.add(path)
                continue
            facts = (each.size_bytes, each.mtime_ms, each.ctime_ns, None, natural_key(path))
            found[path] = InputFile(path, path, *facts, etag=each.etag)
    if not found:
        raise InvalidInput(f"--from: found no file for {globs[0]}; expected the path of a file, or a glob in quotes")
    absolute = [each if each.startswith(S3) else os.path.normpath(Path.cwd() / each) for each in globs]
    ordered, beside = sorted(found.values(), key=lambda each: each.order), sorted(others - {*found})
    return FoundFiles(feeds[0], ordered, connection, absolute, beside)
