"""Checks of an S3 bucket for `persist doctor`: transport, clock, and rules that delete or retain objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from persist_core.clock import Clock
from persist_core.errors import Determinate
from persist_core.location.finding import Finding, Grade, clock_offset, grade_if
from persist_core.location.s3.client import (
    S3Client,
    Verdict,
    described,
    failures,
    is_unsupported,
    status_of,
    verdict_on,
)

# Storage classes whose objects have to be restored, in hours, before they can be read.
_ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
# The longest write stage that we assume: a large backfill. A lifecycle rule counts in whole days.
MAX_WRITE_DAYS = 1
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def diagnose(client: S3Client, root: str, clock: Clock, *, has_uploads: bool) -> Iterator[Finding]:
    """See `Examinable`. `root` is the prefix below which our objects are, with a slash at its end or empty.

    `has_uploads`: some are made by multipart uploads, ours or Spark's.
    Raises `Determinate` if the bucket cannot be reached.
    """
    before_ms = clock.now_ms()
    answer = next(client.pages("diagnose", Prefix=root, MaxKeys=1))
    after_ms = clock.now_ms()
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is not None:
        # The header has whole seconds: on average it is half a second old.
        store_ms = parsedate_to_datetime(date).timestamp() * 1000 + 500
        yield clock_offset(store_ms, before_ms, after_ms, unsure_ms=500)
    yield transport(client.settings.endpoint)
    judge_rules = partial(_lifecycle, root=root, has_uploads=has_uploads)
    yield from _setting(client, "versioning", "get_bucket_versioning", _versioning)
    yield from _setting(client, "lifecycle", "get_bucket_lifecycle_configuration", judge_rules)
    yield from _setting(client, "object_lock", "get_object_lock_configuration", _object_lock)


def _setting(client: S3Client, check: str, call: str, judge: Callable[[Any], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of the bucket setting that a call of the client answers; a warning if it may not be read."""
    try:
        found = getattr(client.api, call)(Bucket=client.settings.bucket)
    except failures() as error:
        if verdict_on(error) is Verdict.ABSENT:
            found = {}
        elif is_unsupported(error):
            yield Finding(check, Grade.OK, f"this server has no such setting ({described(error)})")
            return
        elif status_of(error) == 403:
            yield Finding(
                check,
                Grade.WARNING,
                f"cannot be read ({described(error)})",
                "the right to read the bucket's settings",
                "grant the rights that docs/locations-s3.md lists for doctor, or check the setting yourself",
            )
            return
        else:
            raise Determinate(f"{client.settings.uri}: diagnose {check}: {described(error)}") from error
    yield from judge(found)


def transport(endpoint: str | None) -> Finding:
    """True if requests to `endpoint` can be read on the way."""
    url = urlsplit(endpoint or "https://aws")
    return grade_if(
        url.scheme == "http" and url.hostname not in _LOOPBACK,
        "transport",
        f"{url.scheme}" + (" on this machine" if url.hostname in _LOOPBACK else ""),
        expected="https: otherwise rows and states cross the network unencrypted",
        remedy="give the server a certificate and write endpoint=https://...",
        grade=Grade.WARNING,
    )


def _versioning(found: Any) -> Iterator[Finding]:
    status = found.get("Status", "off")
    yield grade_if(
        status == "Enabled",
        "versioning",
        f"versioning is {status}",
        expected="a lifecycle rule NoncurrentVersionExpiration beside it",
        remedy="deleted and overwritten objects stay and cost money: add a rule that expires noncurrent versions",
        grade=Grade.WARNING,
    )


def _lifecycle(found: Any, *, root: str, has_uploads: bool) -> Iterator[Finding]:
    rules = [rule for rule in found.get("Rules", ()) if rule.get("Status") == "Enabled" and _meets(rule, root)]
    deadly = [rule.get("ID", "?") for rule in rules if {"Days", "Date"} & rule.get("Expiration", {}).keys()]
    archiving = [
        rule.get("ID", "?")
        for rule in rules
        if any(transition.get("StorageClass") in _ARCHIVES for transition in rule.get("Transitions", ()))
    ]
    yield grade_if(
        bool(deadly),
        "lifecycle",
        f"rules that delete objects by age: {', '.join(deadly)}" if deadly else "no rule deletes objects by age",
        expected="none below our prefix: old objects are live data, and so is the newest state of an idle shard",
        remedy="remove those rules, or restrict them to other prefixes",
    )
    yield grade_if(
        bool(archiving),
        "archiving",
        f"rules that archive objects: {', '.join(archiving)}" if archiving else "no rule archives objects",
        expected="none below our prefix: archived objects cannot be read",
        remedy="remove those rules, or restrict them to other prefixes",
    )
    if has_uploads:
        yield _unfinished_uploads(rules, root)


def _unfinished_uploads(rules: list[Any], root: str) -> Finding:
    found = [rule for rule in rules if "AbortIncompleteMultipartUpload" in rule]
    days = {rule.get("ID", "?"): rule["AbortIncompleteMultipartUpload"].get("DaysAfterInitiation", 0) for rule in found}
    hasty = [f"{name} (after {after} d)" for name, after in days.items() if after <= MAX_WRITE_DAYS]
    if hasty:
        return Finding(
            "unfinished_uploads",
            Grade.WARNING,
            f"rules that abort uploads early: {', '.join(hasty)}",
            f"more than {MAX_WRITE_DAYS} d: a write stage completes its uploads at the end of its job, and fails if"
            " they are aborted before",
            "set DaysAfterInitiation to 7",
        )
    clears_all = any(root.startswith(_prefix_of(rule)) for rule in found)
    return grade_if(
        not clears_all,
        "unfinished_uploads",
        f"cleared after {min(days.values())} d" if clears_all else "no rule clears unfinished uploads",
        expected="AbortIncompleteMultipartUpload after 7 d, for all of our prefix",
        remedy="add the rule of docs/locations-s3.md: parts of interrupted uploads are invisible and cost money",
        grade=Grade.WARNING,
    )


def _meets(rule: Any, root: str) -> bool:
    """True if a rule can touch an object of ours. Tags and sizes are ignored, so a warning may be superfluous."""
    prefix = _prefix_of(rule)
    return prefix.startswith(root) or root.startswith(prefix)


def _prefix_of(rule: Any) -> str:
    criteria = rule.get("Filter", {})
    return str(rule.get("Prefix", criteria.get("Prefix", criteria.get("And", {}).get("Prefix", ""))))


def _object_lock(found: Any) -> Iterator[Finding]:
    retention = found.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention")
    yield grade_if(
        retention is not None,
        "object_lock",
        f"default retention {retention}" if retention else "no default retention",
        expected="none: objects that are truncated or collected stay until the retention ends",
        remedy="use a bucket without a default retention, or accept the cost of objects that stay",
        grade=Grade.WARNING,
    )
