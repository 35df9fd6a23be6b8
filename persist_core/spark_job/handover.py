"""Hand the location and its credentials to the driver of a Spark job. Never on a command line, which all users see.

| master, deploy mode | the driver gets them by |
| --- | --- |
| `local[...]`; any other master in client mode | the environment of the `spark-submit` process, where the driver runs |
| YARN, cluster mode | `spark.yarn.appMasterEnv.*` in a properties file that only its owner can read |
| Kubernetes, cluster mode | `spark.kubernetes.driverEnv.*` in that file, and secrets only by Kubernetes secrets |
| standalone and others, cluster mode | nothing: refused |

Kubernetes gets no secret from us because Spark copies its whole configuration into a ConfigMap, and the environment of
the driver into the pod's description. YARN keeps both in folders of the application's user.

Spark prints its configuration in its UI and event log, and there `spark.redaction.regex` hides these variables.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from persist_core.clock import Clock, SystemClock
from persist_core.errors import InvalidInput
from persist_core.location.open import credentials_of
from persist_core.location.settings import ENV_BLOB_URI, ENV_CONNECTION, ENV_CONSENSUS_URI, PersistLocation
from persist_core.location.uri import secrets_of
from persist_core.spark_job.installation import spark_home

DEPLOY_MODE_CONF = "spark.submit.deployMode"
REDACTION_CONF = "spark.redaction.regex"
_YARN_ENV = "spark.yarn.appMasterEnv."
_KUBERNETES_ENV = "spark.kubernetes.driverEnv."
_KUBERNETES_SECRET = "spark.kubernetes.driver.secretKeyRef."
_SPARKS_REDACTION = "(?i)secret|password|token|access[.]?key"  # Spark's default, which ours replaces
_OUR_REDACTION = f"{ENV_BLOB_URI}|{ENV_CONSENSUS_URI}|{ENV_CONNECTION}|AWS_ACCESS_KEY_ID"
SCRATCH_PREFIX = "persist-scratch-"  # of folders for Spark's own files
LEFTOVER_MS = 25 * 3_600_000  # a file this old was left by a killed submit: a job ends within a day
_PREFIX, _SUFFIX = "persist-spark-", ".conf"
_SECRET_VARIABLES = frozenset({"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})


@dataclass(frozen=True)
class Handover:
    """The start of one job. `environment` and `properties` may hold secrets; `conf` does not.

    `environment` goes over the starter's, `properties` into a file (`properties_file`), `conf` on argv.
    """

    environment: Mapping[str, str] = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    conf: Mapping[str, str] = field(default_factory=dict)


def hand_over(
    variables: Mapping[str, str], *, master: str, deploy_mode: str | None, conf: Mapping[str, str]
) -> Handover:
    """How `variables` (`location_environment` and the user's own) reach the driver at `master`.

    `deploy_mode` is `client`, `cluster` or `None` (what `conf` says, else `client`); `conf` is the job's Spark
    configuration. Raises `InvalidInput` if there is no safe way.
    """
    if (deploy_mode or conf.get(DEPLOY_MODE_CONF) or "client") != "cluster":
        return Handover(variables)
    if "yarn" in master:
        redaction = "|".join([conf.get(REDACTION_CONF, _SPARKS_REDACTION), _OUR_REDACTION])
        properties = {f"{_YARN_ENV}{name}": value for name, value in variables.items()}
        # The submitting process reads some variables itself, such as HADOOP_CONF_DIR.
        return Handover(variables, properties, {REDACTION_CONF: redaction})
    if master.startswith("k8s"):
        plain = {name: value for name, value in variables.items() if f"{_KUBERNETES_SECRET}{name}" not in conf}
        _check_no_secret(plain)
        return Handover(variables, {f"{_KUBERNETES_ENV}{name}": value for name, value in plain.items()})
    raise InvalidInput(
        f"Spark master {master} in cluster mode: there is no safe way to give the job its location there; use deploy"
        " mode client, or a master of YARN or Kubernetes"
    )


def _check_no_secret(plain: Mapping[str, str]) -> None:
    found = sorted(name for name, value in plain.items() if value and _is_secret(name, value))
    if found:
        options = ", ".join(f"{_KUBERNETES_SECRET}{name}=<secret>:<key>" for name in found)
        raise InvalidInput(
            f"Kubernetes in cluster mode: {', '.join(found)} would stand readable in the driver pod's description. Put"
            f" the values into a Kubernetes secret and name it in the job's Spark configuration ({options}), or use a"
            " location without secrets (S3 with the role of a service account), or deploy mode client"
        )


def _is_secret(name: str, value: str) -> bool:
    is_uri = name in (ENV_BLOB_URI, ENV_CONSENSUS_URI) or name.startswith(ENV_CONNECTION)
    return name in _SECRET_VARIABLES or (is_uri and bool(secrets_of(value)))


def location_environment(location: PersistLocation) -> dict[str, str]:
    """The variables that hand the location to a job: its URIs, and the credentials of an `s3:` URI for the JVM; and the
    connections of sources."""
    return {**location.to_env(), **credentials_of(location.blob_uri)}


@contextmanager
def properties_file(properties: Mapping[str, str], base: Path | None) -> Iterator[Path | None]:
    """A file for `spark-submit --properties-file` while the body runs, readable by its owner alone.

    Such a file replaces Spark's own defaults, so it starts with what `base` holds, if that exists. `None` if there are
    no properties to hand over.
    """
    remove_leftovers(SystemClock())
    if not properties:
        yield None
        return
    inherited = base.read_text(encoding="utf-8") if base is not None and base.is_file() else ""
    lines = [f"{name} {_escaped(value)}" for name, value in properties.items()]
    handle, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join([inherited, *lines, ""]))
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def remove_leftovers(clock: Clock, folders: Iterable[Path] = ()) -> list[Path]:
    """Delete this user's properties files and scratch folders that killed submits left in these folders (default: the
    one for temporary files); their paths.

    A folder in which anything is younger than `LEFTOVER_MS` stays: a job may still need it.
    """
    removed = []
    looked_at = list(folders) or [Path(tempfile.gettempdir())]
    patterns = (f"{_PREFIX}*{_SUFFIX}", f"{SCRATCH_PREFIX}*")
    for path in (path for folder in looked_at for pattern in patterns for path in folder.glob(pattern)):
        with contextlib.suppress(OSError):  # another process was faster, or it is not ours
            found = path.lstat()
            is_folder = path.name.startswith(SCRATCH_PREFIX)
            is_ours = (stat.S_ISDIR if is_folder else stat.S_ISREG)(found.st_mode) and found.st_uid == os.getuid()
            oldest_ms = clock.now_ms() - LEFTOVER_MS
            if is_ours and all(each.lstat().st_mtime * 1000 < oldest_ms for each in (path, *path.rglob("*"))):
                if is_folder:
                    shutil.rmtree(path)
                else:
                    path.unlink()
                removed.append(path)
    return removed


def spark_defaults(environment: Mapping[str, str]) -> Path | None:
    """The file in which Spark finds its defaults if it gets no other. Raises `InvalidInput` if there is no Spark."""
    folder = environment.get("SPARK_CONF_DIR")
    if folder:
        return Path(folder) / "spark-defaults.conf"
    home = spark_home(environment)
    return None if home is None else home / "conf" / "spark-defaults.conf"


def spark_default(environment: Mapping[str, str], name: str) -> str | None:
    """A setting as that file has it, in one line. Raises `InvalidInput` if there is no Spark."""
    path = spark_defaults(environment)
    text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""
    found = re.findall(rf"^[ \t]*{re.escape(name)}(?:[ \t]*[=:]|[ \t])[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return found[-1] if found else None


def _escaped(value: str) -> str:
    """A value in Java's properties format, where a backslash escapes and a line end ends the value."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + text if text[:1] in (" ", "\t", "\f", "=", ":") else text
