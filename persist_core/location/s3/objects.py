"""Objects that others have put into a bucket: list them, look at one, read it as it was when it was found.

    listed ─> ObjectFacts        looked_at ─> ObjectFacts as they are now        read ─> bytes of exactly that object

Nothing here writes. A read names the ETag (`If-Match`), and the version where there is one: S3 decides, with the bytes
in its hand, whether they belong to the object that was found.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from persist_core.location.blob import RangeFile
from persist_core.location.s3.client import BLOB_TRIES, S3Client, Verdict, cut_answer, failures, verdict_on
from persist_core.location.s3.uri import S3Settings

_BUFFER_BYTES = 4 << 20  # of one request, if a reader asks for less
_ENTRIES = "PersistEntries"  # in an answer of botocore's
_CONTENTS = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_NO_VERSION = "null"  # of an object from before the bucket had versions


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """One object. `version_id` is empty in listings, and in a bucket without versions."""

    name: str
    size_bytes: int
    mtime_ms: int
    etag: str
    version_id: str = ""


class S3Objects:
    """The objects of one bucket, to be read. `requester_pays` accepts the costs of each request."""

    def __init__(self, settings: S3Settings, *, requester_pays: bool = False) -> None:
        self.settings = settings
        self.requester_pays = requester_pays
        self._client = S3Client(settings, tries=BLOB_TRIES)
        self._how = {"RequestPayer": "requester"} if requester_pays else {}

    def listed(self, prefix: str, *, after: str = "", through: str | None = None) -> Iterator[list[ObjectFacts]]:
        """Objects whose names start with `prefix`, in the order of their names, one list for each request.

        Only names greater than `after` and up to `through`. Raises `Determinate`.
        """
        api = self._client.api
        api.meta.events.register("before-parse.s3.ListObjectsV2", _take_entries, unique_id=_ENTRIES)
        start = {"StartAfter": after} if after else {}
        for page in self._client.pages(f"list {prefix!r}", Prefix=prefix, **start, **self._how):
            found: list[ObjectFacts] = page[_ENTRIES]
            yield [each for each in found if through is None or each.name <= through]
            if through is not None and found and found[-1].name > through:
                return

    def looked_at(self, name: str, version_id: str = "") -> ObjectFacts | None:
        """The object of this name now, or a version of it; `None` without one. Raises `Determinate`."""
        try:
            bucket = self.settings.bucket
            found = self._client.api.head_object(Bucket=bucket, Key=name, **self._how, **_version(version_id))
        except failures() as error:
            if verdict_on(error) is Verdict.ABSENT:
                return None
            raise self._client.determinate(f"look at {name!r}", error) from error
        version_id = str(found.get("VersionId") or "")
        facts = int(found["ContentLength"]), _ms(found["LastModified"]), _plain(found["ETag"])
        return ObjectFacts(name, *facts, "" if version_id == _NO_VERSION else version_id)

    def read(self, wanted: ObjectFacts, start: int, size_bytes: int) -> bytes | None:
        """`size_bytes` (at least one) bytes from `start` on, fewer at the end; `None` if the object is another one now.

        Raises `Determinate`.
        """
        how = {**self._how, **_version(wanted.version_id), "Range": f"bytes={start}-{start + size_bytes - 1}"}
        return self._client.read(f"read {wanted.name!r}", Key=wanted.name, IfMatch=f'"{wanted.etag}"', **how)

    def opened(self, wanted: ObjectFacts, changed: Exception) -> io.BufferedReader:
        """A buffered file with the bytes of exactly that object. Raises `changed` if the object is another one now."""

        def fetch(start: int, size_bytes: int) -> bytes:
            data = self.read(wanted, start, size_bytes)
            if data is None:
                raise changed
            return data

        return io.BufferedReader(RangeFile(wanted.size_bytes, fetch), _BUFFER_BYTES)

    def close(self) -> None:
        self._client.close()


def _take_entries(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Take the objects out of a listing before botocore parses it, which takes minutes for a million of them."""
    body = response_dict["body"]
    if response_dict["status_code"] != 200:
        return
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise cut_answer() from error
    space = root.tag.removesuffix("ListBucketResult")
    is_quoted = root.findtext(f"{space}EncodingType") == "url"
    found = []
    for entry in root.iterfind(f"{space}Contents"):
        text = {child.tag: child.text or "" for child in entry}
        name, moment = text[f"{space}Key"], text[f"{space}LastModified"]
        facts = int(text[f"{space}Size"]), _ms(datetime.fromisoformat(moment)), _plain(text[f"{space}ETag"])
        found.append(ObjectFacts(unquote_plus(name) if is_quoted else name, *facts))
    customized_response_dict[_ENTRIES] = found
    response_dict["body"] = _CONTENTS.sub(b"", body)


def _version(version_id: str) -> dict[str, str]:
    return {"VersionId": version_id} if version_id else {}


def _plain(etag: str) -> str:
    return etag.strip('"')


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
