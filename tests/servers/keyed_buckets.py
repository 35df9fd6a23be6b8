"""Buckets that take only objects encrypted by one key (SSE-KMS). The server behind encrypts nothing.

Amazon S3 user guide, "Specifying server-side encryption with AWS KMS": a policy may deny a write that does not name the
key; a read that names encryption is refused with 400, since S3 decrypts what the caller may decrypt by itself.
"""

from __future__ import annotations

from collections import Counter

from tests.servers.proxy import Exchange, Fate, Injection

KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd"
_KEY_HEADER = f"x-amz-server-side-encryption-aws-kms-key-id: {KEY}".encode()
_ANY_HEADER = b"x-amz-server-side-encryption"
_PIECE = b"uploadid="  # of an upload that was begun with the key


class KeyedBuckets:
    """The `Injections` of a `FaultyProxy`. `written`: how often a request has named the key, by method."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()

    def injection(self, exchange: Exchange) -> Injection:
        head = exchange.opening.lower()
        line = head.partition(b"\r\n")[0]
        makes = (line.startswith(b"put ") or (line.startswith(b"post ") and b"uploads" in line)) and _PIECE not in line
        if makes and not (_KEY_HEADER in head and b"x-amz-server-side-encryption: aws:kms" in head):
            return Injection(Fate.REFUSE, 403)
        if not makes and _ANY_HEADER in head:
            return Injection(Fate.REFUSE, 400)
        self.written[line.partition(b" ")[0].decode()] += makes
        return Injection()
