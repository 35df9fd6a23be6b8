"""The objects of `S3Consensus`: one per entry of a key's log, written once. Names and bytes, no requests.

    <prefix>/_consensus/<folder of the key>/<newest first>-<position>
        persist-consensus-1 <SHA-256 of position and header> {"id": ..., "key": ..., "seqno": ..., "sha256": ...}\\n
        <the version's data, whose SHA-256 the header has>

The name's first half counts down, so that a listing begins with the newest entry. Its position, not its seqno, names
an entry: seqnos may jump, and two writers that jump differently from one head must meet at one name. Positions have
no gaps. Every entry stands for the whole log up to it: its header says what of it has been truncated.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace

from persist_core.errors import Corruption, UnknownVersion
from persist_core.location.consensus import VersionedData

MAX_POSITION = 2**63 - 1
HEADER_BYTES = 4096  # at most: a key of 512 bytes, each escaped twice, and a few numbers

_MAGIC = b"persist-consensus-"
_FORMAT = b"1"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,103}")
_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{1,19})")


@dataclass(frozen=True)
class Header:
    """Everything in an entry except the data itself.

    `seqno` is the newest version's; `number` counts the versions ever made, this one included; `restates` is set where
    the entry makes no version but truncates: it then repeats the newest one. Only entries of the log from position
    `first` onward are live; `truncated` versions before it are gone.
    """

    id: str
    key: str
    position: int
    seqno: int
    number: int
    first: int
    truncated: int
    restates: bool
    sha256: str


@dataclass(frozen=True)
class Entry:
    """An entry with its data."""

    header: Header
    data: bytes

    @property
    def version(self) -> VersionedData:
        return VersionedData(self.header.seqno, self.data)

    def encode(self) -> bytes:
        """The object's bytes."""
        body = {name: value for name, value in self.header.__dict__.items() if name != "position"}
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        header = text.encode()
        digest = _digest_of_header(header, self.header.position)
        return b" ".join((_MAGIC + _FORMAT, digest, header)) + b"\n" + self.data


def entry_after(newest: Entry | None, key: str, new: VersionedData, write_id: str) -> Entry:
    """The entry that appends `new` to the log that ends with `newest`."""
    digest = hashlib.sha256(new.data).hexdigest()
    if newest is None:
        return Entry(Header(write_id, key, 0, new.seqno, 1, 0, 0, restates=False, sha256=digest), new.data)
    before = newest.header
    header = replace(
        before,
        id=write_id,
        position=before.position + 1,
        seqno=new.seqno,
        number=before.number + 1,
        restates=False,
        sha256=digest,
    )
    return Entry(header, new.data)


def truncation_after(newest: Entry, oldest_kept: Header, write_id: str) -> Entry:
    """The entry that truncates all before `oldest_kept`, the first version that stays."""
    header = replace(
        newest.header,
        id=write_id,
        position=newest.header.position + 1,
        first=oldest_kept.position,
        truncated=oldest_kept.number - 1,
        restates=True,
    )
    return Entry(header, newest.data)


def folder_of(key: str) -> str:
    """The folder of a key's log: the key where that is a harmless name, else `=` and its SHA-256.

    So a key can be of any characters, and none is a folder inside another's: some S3 servers keep objects as files.
    """
    return key if _PLAIN_KEY.fullmatch(key) else f"={hashlib.sha256(key.encode()).hexdigest()}"


def key_of(folder: str) -> str | None:
    """The key whose folder this is; `None` if only its entries say it."""
    return folder if _PLAIN_KEY.fullmatch(folder) else None


def is_folder_of_a_key(folder: str) -> bool:
    """False for anything else beside the logs, such as the objects of a probe."""
    return bool(_PLAIN_KEY.fullmatch(folder) or re.fullmatch(r"=[0-9a-f]{64}", folder))


def name_of(position: int) -> str:
    """An entry's name inside its folder."""
    return f"{MAX_POSITION - position:016x}-{position}"


def position_of(name: str, where: str) -> int:
    """The position that `name` says. Raises `Corruption` for an object that is not an entry."""
    match = _NAME.fullmatch(name)
    if match is None or name != name_of(int(match[2])):
        raise Corruption(f"{where}: found an object {name!r}, which is not an entry of a log; move it elsewhere")
    return int(match[2])


def decode_header(data: bytes, folder: str, position: int, where: str) -> Header:
    """The header at the beginning of the bytes of an object in `folder`. Raises `Corruption`, `UnknownVersion`."""
    line, newline, _ = data[:HEADER_BYTES].partition(b"\n")
    magic, _, rest = line.partition(b" ")
    digest, _, text = rest.partition(b" ")
    if not magic.startswith(_MAGIC) or not newline:
        raise Corruption(
            f"{where}: found {data[:40]!r}; expected the header of a consensus entry; restore the object from a copy"
        )
    if magic != _MAGIC + _FORMAT:
        raise UnknownVersion(f"{where}: format {magic.decode(errors='replace')}; upgrade airflow-persist")
    expected = _digest_of_header(text, position)
    if digest != expected:
        raise Corruption(
            f"{where}: found SHA-256 {digest[:80]!r} of the header; expected {expected!r} at position {position}:"
            " the object is damaged, or was written as another entry; restore it from a copy"
        )
    header = Header(position=position, **json.loads(text))
    if folder_of(header.key) != folder:
        raise Corruption(
            f"{where}: the entry says that it is of {header.key!r}, whose folder is {folder_of(header.key)!r}: another"
            " log's object is in its place; restore it from a copy"
        )
    return header


def _digest_of_header(text: bytes, position: int) -> bytes:
    return hashlib.sha256(b"%d %b" % (position, text)).hexdigest().encode()


def decode_entry(data: bytes, folder: str, position: int, where: str) -> Entry:
    """A whole object's bytes. Raises `Corruption`, also if the data has another digest."""
    header = decode_header(data, folder, position, where)
    payload = data[data.index(b"\n") + 1 :]
    digest = hashlib.sha256(payload).hexdigest()
    if digest != header.sha256:
        raise Corruption(
            f"{where}: SHA-256 of the data is {digest}; expected {header.sha256}; restore the object from a copy"
        )
    return Entry(header, payload)
