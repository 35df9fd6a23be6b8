"""A Spark Connect server that does not answer, found in time; and what a session of a server can't change.

    wait_for_server ─> one try after the other, each logged ─> it answers, or `RunFailed` after the time that is given
    quiet_client    ─> each error of a call once
    limit_retries   ─> of a session: calls of a server that is gone fail after that time too
    new_session     ─> one beside another, and `release`: its end
    is_lost         ─> True for the errors of a session whose server has ended
    apply_conf      ─> a file's `spark_conf`: set in the session, or a warning names it

Spark's client tries for about ten minutes and says nothing meanwhile.
"""

from __future__ import annotations

import copy
import importlib
import logging
import math
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from persist_core.clock import SystemClock
from persist_core.errors import InvalidInput, RunFailed
from persist_core.spark_job.process import ENV_CONNECT_TIMEOUT
from persist_spark.compat import CLONES_SESSIONS, ENGINE_ERRORS, HAS_NEW_SESSION, SPARK_VERSION, is_connect

CONNECT_TIMEOUT_S = 60.0  # as long as a server needs to start on a busy machine
_TRY_S = 10.0  # of one try, so that a log shows several
_FIRST_BACKOFF_MS, _BACKOFF_FACTOR = 50, 4.0  # as in Spark's own policy
_MAX_TIMEOUT_S = 86_400

# Our sessions bring no classes. With a class loader of its own, each would compile all of its generated code again.
_OWN_CLASSES = ("spark.sql.artifact.isolation.enabled", "spark.sql.artifact.isolation.alwaysApplyClassloader")

_MAX_CAUSES = 8  # of an error, one below the other
# Spark's words, in which a server says that it does not know a session or is about to end, or its client that it cannot
# reach it. The last line is of a server that someone stops: it answers for some seconds more.
_LOST = re.compile(
    r"INVALID_HANDLE\.(?:SESSION|OPERATION_NOT_FOUND)|NO_ACTIVE_SESSION|RESPONSE_ALREADY_RECEIVED"
    r"|incorrect server side session|StatusCode\.UNAVAILABLE|failed to connect to all addresses"
    r"|stopped SparkContext|SparkContext (?:was shut down|has been shutdown)|Application error processing RPC"
)

log = logging.getLogger(__name__)


def connect_timeout_s(environment: Mapping[str, str]) -> float:
    """How long to wait for an answer. Raises `InvalidInput` if the variable holds no positive number of seconds."""
    text = environment.get(ENV_CONNECT_TIMEOUT)
    if not text:
        return CONNECT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MAX_TIMEOUT_S:
        raise InvalidInput(
            f"{ENV_CONNECT_TIMEOUT} is {text!r}; expected seconds, more than 0 and at most {_MAX_TIMEOUT_S}"
        )
    return seconds


def wait_for_server(url: str, timeout_s: float) -> None:
    """Return as soon as the server at `url` (`sc://host:port/...`) accepts connections and speaks its protocol.

    Raises `RunFailed` after `timeout_s`. Makes no session in the server.
    """
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    clock, address = SystemClock(), urlsplit(url).netloc
    start_ms = clock.now_ms()
    channel = DefaultChannelBuilder(url).toChannel()
    try:
        for number in range(1, math.ceil(timeout_s / _TRY_S) + 1):  # each try takes its whole time
            left_s = timeout_s - (clock.now_ms() - start_ms) / 1000
            if left_s <= 0:
                break
            try:
                grpc.channel_ready_future(channel).result(timeout=min(_TRY_S, left_s))
                return
            except grpc.FutureTimeoutError:
                said = (address, number, (clock.now_ms() - start_ms) / 1000, timeout_s)
                log.warning("the Spark Connect server %s does not answer (try %d, %.0f s of %.0f s)", *said)
    finally:
        channel.close()
    raise RunFailed(
        f"the Spark Connect server {address} did not answer for {timeout_s:.0f} s; nothing was committed. Check that it"
        " runs, and the host and the port of the connection. With use_ssl, or a token and another host than localhost,"
        " Spark's client speaks TLS: so must the server. For a server that needs longer, raise connect_timeout_s (an"
        f" extra field of the connection) or {ENV_CONNECT_TIMEOUT}"
    )


def quiet_client(environment: Mapping[str, str]) -> None:
    """Switch off what Spark's client logs of each error of a call: the error that is raised says the same.

    Spark does so itself, unless SPARK_CONNECT_LOG_LEVEL is set; but logging that is set up later, as in a task of
    Airflow, switches it on again.
    """
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")
    core: Any = importlib.import_module("pyspark.sql.connect.client.core")
    if "SPARK_CONNECT_LOG_LEVEL" not in environment:
        core.logger.disabled = True


def limit_retries(session: SparkSession, timeout_s: float) -> None:
    """Let calls of this session fail after about `timeout_s` if the server is gone. Spark 3.5 has no such setting."""
    if SPARK_VERSION < (4, 0):
        return
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # The waits are a geometric series, up to the first that is longer than all before it together.
    ratio = timeout_s * 1000 * (_BACKOFF_FACTOR - 1) / _FIRST_BACKOFF_MS + 1
    retries = max(1, math.floor(math.log(ratio, _BACKOFF_FACTOR)))
    session.client.set_retry_policies([DefaultPolicy(max_retries=retries, initial_backoff=_FIRST_BACKOFF_MS)])


def new_session(spark: SparkSession) -> SparkSession:
    """A session beside `spark`: settings, temporary views and functions of its own. `limit_retries` is done."""
    if not is_connect(spark):
        return spark.newSession()
    timeout_s = connect_timeout_s(os.environ)
    own = _fresh(spark)
    limit_retries(own, timeout_s)
    if not CLONES_SESSIONS:
        return own
    try:  # a session reads these settings in its first call, but its copy has them from the start
        for name in _OWN_CLASSES:
            own.conf.set(name, "false")
        copied: SparkSession = own.cloneSession()  # type: ignore[attr-defined] # - of Connect
    finally:
        release(own)
    limit_retries(copied, timeout_s)
    return copied


def _fresh(spark: SparkSession) -> SparkSession:
    if HAS_NEW_SESSION:
        return spark.newSession()
    channel = copy.deepcopy(spark.client._builder)
    getattr(channel, "_params" if SPARK_VERSION >= (4, 0) else "params").pop("session_id", None)
    return type(spark)(channel)  # type: ignore[arg-type] # - a session of Spark Connect, which takes its channel


def release(own: SparkSession) -> None:
    """End a session that `new_session` made, and what runs in it in a server. Its `stop` could end the user's too."""
    if not is_connect(own):
        return
    client = own.client
    if SPARK_VERSION >= (4, 0):
        from pyspark.sql.connect.client.retries import DefaultPolicy

        client.set_retry_policies([DefaultPolicy(max_retries=0)])
        try:
            client.release_session()
        except ENGINE_ERRORS as error:
            if not is_lost(error):  # else the job's own error says it
                log.warning("the session could not be released: %s", error)
    client.close()


def is_lost(error: BaseException | None) -> bool:
    """True for the errors of a session whose server has ended: it does not answer, or another one does."""
    for _ in range(_MAX_CAUSES):
        if error is None:
            break
        if isinstance(error, ENGINE_ERRORS) and _LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def apply_conf(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Set these settings in a session; one warning names all that have been fixed since Spark started."""
    fixed = []
    for name, value in conf.items():
        try:
            if session.conf.get(name, None) != value:
                session.conf.set(name, value)
        except AnalysisException as error:  # with the condition CANNOT_MODIFY_CONFIG or CANNOT_MODIFY_STATIC_CONFIG
            if "CANNOT_MODIFY" not in str(error):
                raise
            fixed.append(name)
    if fixed:
        log.warning(
            "spark_conf: %s ignored, because it is fixed when Spark (or its Connect server) starts; set it there",
            ", ".join(fixed),
        )
