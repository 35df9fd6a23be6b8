"""A Spark Connect server for one machine, beside an embedded Airflow: Spark starts once instead of once for each job.

    LocalSpark(home, port)
        .command()       a server that lasts (`persist_core.spark_job.connect_server`), in local[*], on 127.0.0.1
        .environment()   what the server needs: its token
        .connection()    Airflow's connection to it

A client of a Spark Connect server can run any code as its user, and all users of the machine can reach 127.0.0.1. So
the server requires a token, which is in a file that only its owner can read.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from persist_airflow.embedded.postgres import secret_of
from persist_core.spark_job.installation import local_environment
from persist_core.spark_job.process import LOCAL_MASTER, tuned_conf

_SERVER = "persist_core.spark_job.connect_server"
_TOKEN_BYTES = 32
END_WHEN_FULL = "-XX:+ExitOnOutOfMemoryError"  # the keeper starts it again, and Airflow the tasks that used it


@dataclass(frozen=True)
class LocalSpark:
    """One server. `home` holds its token and its scratch folder; `port` on 127.0.0.1 is where it listens."""

    home: Path
    port: int

    def command(self) -> list[str]:
        tuned = tuned_conf(LOCAL_MASTER, ())
        conf = {
            **tuned,
            "spark.local.dir": str(self._scratch()),
            "spark.driver.extraJavaOptions": f"{tuned['spark.driver.extraJavaOptions']} {END_WHEN_FULL}",
            "spark.log.level": "ERROR",  # jobs show their own
            "spark.python.sql.dataFrameDebugging.enabled": "false",  # see persist_spark.session
            "spark.connect.grpc.binding.address": "127.0.0.1",
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return [sys.executable, "-m", _SERVER, "--port", str(self.port), "--", "--master", LOCAL_MASTER, *options]

    def environment(self) -> dict[str, str]:
        """The environment on top of the starter's."""
        return {**local_environment(os.environ), "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token()}

    def connection(self) -> str:
        """An Airflow connection as JSON. A client sends the token without TLS only to this host name."""
        return json.dumps(
            {"conn_type": "spark_connect", "host": "localhost", "port": self.port, "password": self._token()}
        )

    def _scratch(self) -> Path:
        folder = self.home / "spark-scratch"
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def _token(self) -> str:
        return secret_of(self.home / "spark-connect-token", _TOKEN_BYTES)
