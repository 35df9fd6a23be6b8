"""A stand-in for the Amazon provider, which is optional and not installed here: its AWS hook, as far as we use it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

SECRET_KEY, TOKEN = "hunter2", "t0k3n"
ENDPOINTS: dict[str, str] = {}  # of some connections, for tests to fill


class AwsBaseHook:
    """Connection `role` is an assumed role with a token and a region, `broken` raises, others have keys."""

    def __init__(self, aws_conn_id: str, client_type: str) -> None:
        assert client_type == "s3"
        if aws_conn_id == "broken":
            raise ValueError(SECRET_KEY)
        self.region_name = "eu-west-1" if aws_conn_id == "role" else None
        self._token = TOKEN if aws_conn_id == "role" else None
        endpoint = ENDPOINTS.get(aws_conn_id)
        self.conn_config = SimpleNamespace(get_service_endpoint_url=lambda service: endpoint if service == "s3" else "")

    def get_credentials(self) -> SimpleNamespace:
        """Keys, and the token of a role."""
        return SimpleNamespace(access_key="AKIA1", secret_key=SECRET_KEY, token=self._token)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `airflow.providers.amazon` be this."""
    for name in ("amazon", "amazon.aws", "amazon.aws.hooks", "amazon.aws.hooks.base_aws"):
        monkeypatch.setitem(sys.modules, f"airflow.providers.{name}", ModuleType(name))
    vars(sys.modules["airflow.providers.amazon.aws.hooks.base_aws"])["AwsBaseHook"] = AwsBaseHook
