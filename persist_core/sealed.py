"""How every JSON object is stored: one format, which carries its own digest.

    {"sha256":"<64 hex digits>","kind":"batch_manifest","version":1,...}

The digest is the SHA-256 of all the bytes, with the 64 hex digits replaced by zeros. So one hash over the bytes that
were read finds every flipped bit, and nothing has to be encoded again to check it. Bytes are ASCII and have no spaces
between tokens; keys of the body are sorted unless the caller needs their order.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from persist_core.errors import CorruptArtifact, UnknownVersion

T = TypeVar("T")

_HEAD = b'{"sha256":"'
_DIGITS = 64
_TAIL = b'","kind":"'
_ZEROS = b"0" * _DIGITS
RESERVED = ("sha256", "kind", "version")  # fields that `seal` adds


def seal(kind: str, version: int, body: Mapping[str, Any], *, sort_keys: bool = True) -> bytes:
    """The bytes to store for `body`, a JSON object without the fields in `RESERVED`."""
    clash = [name for name in RESERVED if name in body]
    if clash:
        raise ValueError(f"{kind}: the body has the reserved fields {clash}")
    front = json.dumps({"kind": kind, "version": version}, separators=(",", ":"))
    rest = json.dumps(body, sort_keys=sort_keys, separators=(",", ":"))
    text = front if not body else f"{front[:-1]},{rest[1:]}"
    after = f'","{text[2:]}'.encode()
    digest = hashlib.sha256(b"".join((_HEAD, _ZEROS, after))).hexdigest()
    return b"".join((_HEAD, digest.encode(), after))


def is_sealed(data: bytes) -> bool:
    """True if these bytes have the form that `seal` writes, whether or not the digest is correct."""
    return data.startswith(_HEAD) and data[len(_HEAD) + _DIGITS :].startswith(_TAIL)


def sealed_digest(data: bytes) -> str:
    """The digest that sealed bytes carry (64 hex digits). It names the object; `unseal` verifies it."""
    return data[len(_HEAD) : len(_HEAD) + _DIGITS].decode("ascii", "replace")


def verified_digest(data: bytes, *, what: str) -> str:
    """The digest that sealed bytes carry, verified; `CorruptArtifact` naming `what` if they have another one."""
    if not is_sealed(data):
        raise CorruptArtifact(
            f"{what} is damaged: its {len(data)} bytes do not start with a digest and a kind. Run `persist fsck`"
        )
    view = memoryview(data)
    hashed = hashlib.sha256(_HEAD)
    hashed.update(_ZEROS)
    hashed.update(view[len(_HEAD) + _DIGITS :])
    claimed, found = sealed_digest(data), hashed.hexdigest()
    if claimed != found:
        raise CorruptArtifact(f"{what} is damaged: its SHA-256 is {found}, expected {claimed}. Run `persist fsck`")
    return found


def check_in_place(said: object, expected: object, *, what: str) -> None:
    """Raise `CorruptArtifact` unless an object says of itself what follows from where it was read.

    A digest shows that the bytes are whole, not that they are the ones that belong there. So whatever names its shard
    or its key is compared when it is read.
    """
    if said != expected:
        raise CorruptArtifact(
            f"{what} says that it is {said!r}; expected {expected!r}: another object is in its place. Run"
            " `persist fsck`"
        )


def unseal(data: bytes, *, kind: str, version: int, what: str) -> dict[str, Any]:
    """The body of sealed bytes, their digest, kind and version checked.

    `what` names the object in errors: its key, usually. Raises `CorruptArtifact`, or, only if the digest is correct,
    `UnknownVersion`.
    """
    verified_digest(data, what=what)
    body: dict[str, Any] = json.loads(data)
    if body["kind"] != kind:
        raise CorruptArtifact(f"{what} is a {body['kind']}, expected a {kind}. Run `persist fsck`")
    if body["version"] != version:
        raise UnknownVersion(
            f"{what} has version {body['version']!r}; this release reads version {version}. Upgrade airflow-persist on"
            " this machine"
        )
    for name in RESERVED:
        del body[name]
    return body


def from_plain(kind: type[T], body: Any, *, what: str) -> T:
    """A value of the type `kind`, dataclasses included, from the JSON that `dataclasses.asdict` gives.

    Raises `CorruptArtifact` naming `what` if its types do not fit; a field that is unknown is ignored.
    """
    try:
        made: T = _adapter(kind).validate_python(body)  # type: ignore[arg-type] # a type is hashable
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise CorruptArtifact(f"{what} is malformed: {first['loc']}: {first['msg']}; run `persist fsck`") from None
    return made


def to_plain(value: Any) -> Any:
    """The inverse: as `dataclasses.asdict` does, ten times as fast, because texts are not copied."""
    return _adapter(type(value)).dump_python(value)  # type: ignore[arg-type] # a type is hashable


@functools.cache
def _adapter(kind: Any) -> Any:
    return TypeAdapter(kind)


class Sealed:
    """Base of dataclasses that are stored as one sealed object. Equal ones have equal bytes."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int] = 1

    def encode(self: Any) -> bytes:
        return seal(self.KIND, self.VERSION, to_plain(self))

    @classmethod
    def decode(cls, data: bytes, *, what: str | None = None) -> Self:
        """The inverse of `encode`. Raises `CorruptArtifact` or `UnknownVersion` naming `what`."""
        what = what or cls.KIND
        return from_plain(cls, unseal(data, kind=cls.KIND, version=cls.VERSION, what=what), what=what)
