"""The common part of both S3 backends: the bucket and its credentials, a client, and verdicts on its errors.

    s3://bucket/prefix?endpoint=...  --open.py--> S3Settings --S3Client--> boto3, made at the first call
                                                                  '-- an error --verdict_on--> Verdict --> StorageError

Credentials come from the URI's query, else from the environment that the location was opened with (an Airflow AWS
connection), else from boto3's default credential chain: the process's environment, a profile, the machine's role. None
of them is ever part of a repr, a printed URI, or a message: of an error that S3 answered, only code and status are
repeated, since some servers put the access key into the text.
"""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from persist_core.clock import Clock, SystemClock, tries
from persist_core.errors import Determinate, Indeterminate, InvalidUri, StorageError
from persist_core.location.s3.uri import S3Settings

Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 5.0
# Longest silence on a connection. A large upload may take longer in total: each of its pieces has its own limit.
READ_TIMEOUT_S = 30.0
BLOB_TRIES = 5  # per request, by botocore's "standard" mode: exponential backoff with jitter, at most 20 s each
READ_TRIES = 3  # for an answer that broke off half way
MAX_CONNECTIONS = 32  # of one client: more threads than that wait for a connection

# By profile. Reading AWS's service descriptions takes most of the time that a new client takes.
_sessions: dict[str | None, Any] = {}
_making = threading.Lock()


def _forget_locks() -> None:
    """In a forked child: the lock may have been held by a thread that the child does not have."""
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget_locks)


class Verdict(enum.Enum):
    """The fate of a request that ended with an error."""

    ABSENT = "absent"  # there is no such object
    EXISTS = "exists"  # the condition did not hold: the object is there
    CONFLICT = "conflict"  # S3 could not decide, because another request was at the same object
    REFUSED = "refused"  # it did not happen, and asking again is useless: rights, bucket, arguments
    NOT_SENT = "not_sent"  # it did not happen: no connection
    UNKNOWN = "unknown"  # it may have happened, or may yet


class S3Client:
    """A boto3 client that is made at its first use, again in each forked child, and shared by threads."""

    def __init__(self, settings: S3Settings, *, tries: int, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._tries = tries
        self._made: tuple[int, Any] | None = None

    @property
    def api(self) -> Any:
        """The boto3 client of this process."""
        pid = os.getpid()
        made = self._made
        if made is None or made[0] != pid:  # a child must not talk over its parent's connections
            made = (pid, _make_client(self.settings, self._tries))
            with _making:
                if self._made is None or self._made[0] != pid:
                    self._made = made
                    # If the owner never calls close, no sockets leak; at exit the system closes them.
                    weakref.finalize(self, _close_in, *made).atexit = False
                made = self._made
        return made[1]

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            _close_in(*made)

    def read(self, action: str, **request: Any) -> bytes | None:
        """The bytes that a GetObject answers; `None` if the object is not there, or not the one of its condition.

        Raises `Determinate`. An answer that broke off half way is asked for again: botocore does so only until the
        answer begins.
        """

        def get() -> bytes | None:
            try:
                return body_of(self.api.get_object(Bucket=self.settings.bucket, **request))
            except failures() as error:
                verdict = verdict_on(error)
                if verdict is Verdict.ABSENT or (verdict is Verdict.EXISTS and "IfMatch" in request):
                    return None
                raise

        return self.answer(action, get, most=READ_TRIES)

    def pages(self, action: str, **request: Any) -> Iterator[Any]:
        """The answers to a ListObjectsV2, one after the other. Raises `Determinate`."""
        while True:  # bounded: each page goes on after the last name of the one before
            page = self.answer(action, lambda: self.api.list_objects_v2(Bucket=self.settings.bucket, **request))
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def answer(self, action: str, request: Callable[[], Answer], *, most: int = 1) -> Answer:
        """The answer to a request that may be repeated, at most `most` times. Raises `Determinate`."""
        again = self.tries(most)
        while True:  # bounded by `again`
            try:
                return request()
            except failures() as error:
                if not (self.may_repeat(verdict_on(error)) and again()):
                    raise self.determinate(action, error) from error

    def may_repeat(self, verdict: Verdict) -> bool:
        """True if `answer` asks again: for what botocore does not try again by itself."""
        return verdict is Verdict.UNKNOWN

    def tries(self, most: int) -> Callable[[], bool]:
        """See `clock.tries`. There are no waits: botocore has waited."""
        return tries(self._clock, most, lambda _: None)

    def determinate(self, action: str, error: Exception) -> StorageError:
        """The error of a request that changed nothing: one that only reads, or one whose verdict proves it."""
        found = f"{self.settings.uri}: {action}: {described(error)}"
        return Determinate(f"{found}; this call changed nothing{_remedy(error)}")

    def indeterminate(self, action: str, error: Exception) -> StorageError:
        """The error of a request that may have changed something."""
        return Indeterminate(
            f"{self.settings.uri}: {action}: {described(error)}: it may or may not have happened; read back to find out"
        )

    def write_error(self, action: str, error: Exception) -> StorageError:
        """The error of a request that writes, and that botocore has tried as often as it may."""
        # If no connection could be made, or an upload is gone, the outcome of earlier tries is still unknown.
        if verdict_on(error) in (Verdict.UNKNOWN, Verdict.NOT_SENT, Verdict.ABSENT):
            return self.indeterminate(action, error)
        return self.determinate(action, error)


def _close_in(pid: int, client: Any) -> None:
    """Close a boto3 client, unless this is a forked child: its connections are the parent's."""
    if pid == os.getpid():
        client.close()


def failures() -> tuple[type[Exception], ...]:
    """The errors that a call of a boto3 client may end in."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError
    from urllib3.exceptions import HTTPError  # boto3 lets it through if the text of an error is cut

    return (ClientError, BotoCoreError, Boto3Error, HTTPError, OSError)


def body_of(answer: Mapping[str, Any]) -> bytes:
    """The whole body of a `get_object`. Raises one of `failures()` if it is cut or its checksum differs.

    Not by `with answer["Body"] as body`: that hands out the raw stream below the checks.
    """
    with contextlib.closing(answer["Body"]) as body:
        data: bytes = body.read()
    return data


def verdict_on(error: BaseException) -> Verdict:
    """The fate of the request that ended with `error`; `UNKNOWN` if it is not certain."""
    from botocore import exceptions

    cause = _cause_of(error)
    if isinstance(cause, exceptions.ClientError):
        return _verdict_on_answer(status_of(cause), code_of(cause))
    if _is_distrust(cause):
        return Verdict.REFUSED  # raised before anything was sent; another try ends the same way
    not_sent = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.ParamValidationError,
        exceptions.NoRegionError,
        exceptions.EndpointConnectionError,
        exceptions.ConnectTimeoutError,
    )
    return Verdict.NOT_SENT if isinstance(cause, not_sent) else Verdict.UNKNOWN


def error_within(code: str, operation: str, status: int = 0) -> Exception:
    """One of `failures()`, for an error that has no answer of its own, as of one object in an answer about several."""
    from botocore.exceptions import ClientError

    status = status or (403 if code == "AccessDenied" else 500)
    error: Exception = ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)
    return error


def _is_distrust(cause: BaseException) -> bool:
    from botocore.exceptions import SSLError

    # OpenSSL's words, and urllib3's if the certificate is for another host.
    said = ("CERTIFICATE_VERIFY_FAILED", "doesn't match")
    return isinstance(cause, SSLError) and any(words in str(cause) for words in said)


def described(error: Exception) -> str:
    """The error as text without secrets."""
    from botocore import exceptions

    cause = _cause_of(error)
    if isinstance(cause, exceptions.ClientError):
        return f"S3 answered {status_of(cause)} {code_of(cause)} to {cause.operation_name}"
    if isinstance(cause, exceptions.ParamValidationError):
        return type(cause).__name__  # its text repeats the arguments
    return f"{type(cause).__name__}: {cause}"


def is_unsupported(error: Exception) -> bool:
    """True if the server does not know such a request. An error with a remedy has another cause: S3 answers 400 to
    credentials that have expired, too."""
    return status_of(error) in (400, 405, 501) and not _remedy(error)


def own_credentials(settings: S3Settings) -> Any:
    """The keys that the settings hold, or lead to by a profile, as botocore's `ReadOnlyCredentials`; `None` for the
    default chain."""
    from botocore.credentials import ReadOnlyCredentials
    from botocore.exceptions import BotoCoreError

    if settings.access_key_id is not None:
        return ReadOnlyCredentials(settings.access_key_id, settings.secret_access_key, settings.session_token)
    if settings.profile is None:
        return None
    try:
        with _making:
            found = _session(settings.profile).get_credentials()
        return found and found.get_frozen_credentials()
    except BotoCoreError as error:
        raise InvalidUri(f"{settings.uri}: no credentials: {error}") from error


def _session(profile: str | None) -> Any:
    import boto3
    from botocore.credentials import RefreshableCredentials

    if profile not in _sessions:
        _sessions[profile] = boto3.session.Session(profile_name=profile)
    core = _sessions[profile]._session
    if not isinstance(core._credentials, RefreshableCredentials):
        core._credentials = None  # botocore reads them again: the file that holds them may have changed
    return _sessions[profile]


def _make_client(settings: S3Settings, tries: int) -> Any:
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        with _making:  # a session must create its clients one at a time; each is then safe for threads
            session = _session(settings.profile)
            client = session.client(
                "s3",
                endpoint_url=settings.endpoint,
                # Self-hosted servers have no regions, and signatures need one: nearly all of them accept this name.
                region_name=settings.region or session.region_name or ("us-east-1" if settings.endpoint else None),
                aws_access_key_id=settings.access_key_id,
                aws_secret_access_key=settings.secret_access_key,
                aws_session_token=settings.session_token,
                config=Config(
                    retries={"mode": "standard", "total_max_attempts": tries},
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                    max_pool_connections=MAX_CONNECTIONS,
                    tcp_keepalive=True,
                    s3={"addressing_style": "path" if settings.uses_path_style else "auto"},
                    # AWS supports checksums in trailers; many other servers refuse or ignore them.
                    request_checksum_calculation="when_required" if settings.endpoint else "when_supported",
                    response_checksum_validation="when_required" if settings.endpoint else "when_supported",
                ),
            )
    except (BotoCoreError, ValueError) as error:  # an unknown profile, an endpoint that is not a URL
        raise InvalidUri(f"{settings.uri}: cannot create an S3 client: {error}") from error
    client.meta.events.register("before-parse.s3", _check_answer)
    if settings.kms_key is not None:  # S3 decrypts by itself, and refuses a read with these headers
        key = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": settings.kms_key}
        for write in ("PutObject", "CreateMultipartUpload"):
            client.meta.events.register(f"before-parameter-build.s3.{write}", lambda params, **_: params.update(key))
    return client


def _check_answer(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """Raise for an answer that was cut within its head or right behind it. Python takes it for one without a body, and
    botocore takes a listing without a body for an empty one. And for one that leads elsewhere and is not S3's: botocore
    would ask the same server for the bucket's region, again and again."""
    head, body, status = response_dict["headers"], response_dict["body"], response_dict["status_code"]
    if 300 < status < 400 and "x-amz-request-id" not in head:
        raise error_within("Redirect", operation_model.name, status)
    length = head.get("content-length", "")
    if operation_model.name == "HeadObject":
        is_cut = not ("etag" in head and "last-modified" in head and length.isdigit())
    else:
        is_chunked = head.get("transfer-encoding", "").lower() == "chunked"
        is_cut = not is_chunked and (not length.isdigit() or (body == b"" and int(length) > 0))
    if status in (200, 206) and is_cut:
        raise cut_answer()


def cut_answer() -> Exception:
    """The error of an answer that is not whole, one of `failures`."""
    from botocore.exceptions import ResponseStreamingError

    found: Exception = ResponseStreamingError(error="the answer was cut, or does not say its length")
    return found


def _verdict_on_answer(status: int, code: str) -> Verdict:
    if status == 404:
        return Verdict.REFUSED if code == "NoSuchBucket" else Verdict.ABSENT
    if status == 412:
        return Verdict.EXISTS
    if status == 409:
        return Verdict.CONFLICT
    # S3 answers 400 RequestTimeout if the body came too slowly, 429 if there were too many requests.
    if 300 <= status < 500 and code != "RequestTimeout" and status not in (408, 429):
        return Verdict.REFUSED
    return Verdict.NOT_SENT if status == 501 else Verdict.UNKNOWN


def _remedy(error: Exception) -> str:
    from botocore import exceptions

    cause = _cause_of(error)
    if isinstance(cause, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        return (
            "; set credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, the machine's role, or an"
            " Airflow AWS connection (aws_conn_id)"
        )
    if _is_distrust(cause):
        return (
            "; the server's certificate must name the endpoint's host; if a private authority signed it, set"
            " AWS_CA_BUNDLE=FILE in the environment to that authority's certificate"
        )
    if not isinstance(cause, exceptions.ClientError):
        return "; check the endpoint and network connectivity"
    code = code_of(cause)
    return _REMEDIES.get("KMS" if code.startswith("KMS.") else code, "")


_GRANT = (
    "; grant the rights that docs/locations-s3.md lists (a feed: docs/feeds-on-s3.md), and kms:Decrypt on the key if"
    " the objects are encrypted with SSE-KMS"
)
_REMEDIES = {
    "Redirect": "; the endpoint leads elsewhere: write https:// instead of http://, or the address that it leads to",
    "InvalidObjectState": "; the object is in an archive: restore it",
    "NoSuchBucket": "; create the bucket, or correct its name, region or endpoint",
    "AccessDenied": _GRANT,
    "403": _GRANT,
    "InvalidAccessKeyId": "; check the credentials",
    "SignatureDoesNotMatch": "; check the credentials",
    "InvalidToken": "; check the credentials",
    "ExpiredToken": "; renew the credentials",
    "RequestTimeTooSkewed": "; correct this machine's clock",
    "KMS": "; correct kms_key, or the key in the bucket's default encryption: it has to exist and to be enabled",
}


def _cause_of(error: BaseException) -> BaseException:
    """boto3's transfers wrap the errors of botocore."""
    from boto3.exceptions import Boto3Error

    inner = error.__cause__ or error.__context__
    return inner if isinstance(error, Boto3Error) and inner is not None else error


def status_of(error: Exception) -> int:
    """The HTTP status that S3 answered; 0 for other errors."""
    return int(_response_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: Exception) -> str:
    """The code of the error that S3 answered; `?` without one."""
    return str(_response_of(error).get("Error", {}).get("Code", "?"))


def _response_of(error: Exception) -> dict[str, Any]:
    return getattr(error, "response", None) or {}  # of a time-out botocore has `None`
