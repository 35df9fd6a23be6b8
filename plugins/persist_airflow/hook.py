"""`PersistHook`: from an Airflow connection to a location and a client.

| field of the connection | what |
| --- | --- |
| extra `blob_uri`, `consensus_uri` | the location, without passwords: Airflow's API and UI show extra to many |
| login, password | user and password for a `postgresql:` consensus URI; Airflow encrypts the password and hides it |
| extra `aws_conn_id` | an Airflow AWS connection, with whose credentials `s3:` URIs are opened |

A collection whose file names a `source.connection` is read by the Airflow AWS connection of that id.

If there is no connection `persist_default`, the environment and the config file count, as for the command line. For
Airflow a connection is also missing while a secrets backend fails, so nothing else may lead to another location:

    persist_default   missing -> environment, config file        there -> the same location as these, if they name one
                      and no location there -> another try
    any other id      missing -> an error, and another try       there -> its location

Every secret is registered with Airflow's secrets masker, and messages hold only redacted URIs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from persist_airflow.compat import AirflowNotFoundException, BaseHook, form_widgets, mask_secret
from persist_airflow.failures import fail_without_retry
from persist_airflow.provider import CONNECTION_TYPE, FORM_FIELDS, HIDDEN_FIELDS, PLACEHOLDERS, RELABELED
from persist_core.config.collection import CollectionConfig
from persist_core.config.shard import ShardConfig
from persist_core.errors import ConfigError, Determinate, InvalidUri, PersistError
from persist_core.handles.client import PersistClient
from persist_core.ids import RandomIds
from persist_core.location.consensus import CaSResult, VersionedData
from persist_core.location.open import OpenLocation, environment_of, open_location
from persist_core.location.settings import (
    ANY_BUCKET,
    CONFIG_FILE_NAME,
    ENV_BLOB_URI,
    ENV_CONSENSUS_URI,
    PersistLocation,
    connection_variable,
    location_around,
    location_from,
    similar_names,
)
from persist_core.location.uri import redact_uri, secrets_of, with_login

_NOR = (
    f"; {ENV_BLOB_URI} and {ENV_CONSENSUS_URI} are not set, and there is no {CONFIG_FILE_NAME} (the connection is of"
    f" type {CONNECTION_TYPE}, with blob_uri and consensus_uri in its extra)"
)
_TEST_PREFIX = "_connection_test"  # starts with "_", so no shard can have this name


class PersistHook(BaseHook):
    """Opens the location that an Airflow connection of type `persist` names."""

    conn_name_attr = "persist_conn_id"
    default_conn_name = "persist_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Persist"

    def __init__(self, persist_conn_id: str = default_conn_name, configs: Sequence[object] = (), **kwargs: Any) -> None:
        """`configs`: the sources of the collections among them are to be reached too."""
        super().__init__(**kwargs)
        self.persist_conn_id = persist_conn_id
        self._configs = configs

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The connection form of 2.11 (3.x takes it from the provider's metadata)."""
        return {"hidden_fields": HIDDEN_FIELDS, "relabeling": RELABELED, "placeholders": PLACEHOLDERS}

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """The fields of 2.11's connection form (3.x takes them from the provider's metadata)."""
        return form_widgets(FORM_FIELDS)

    def get_location(self) -> PersistLocation:
        """The pair of URIs, from the connection or, without `persist_default`, from the environment or the config file.

        Raises `ConfigError` naming what is missing and where to configure it, or a URI that is malformed or holds a
        secret that does not belong there, or two locations; `Determinate` if no connection is found that may name it.
        """
        connection = connection_of(self.persist_conn_id, self.default_conn_name)
        try:
            if connection is None and location_around()[0] is None:
                raise _not_found(self.persist_conn_id, _NOR)
            location = location_from() if connection is None else _location_of(connection)
            if connection is not None and self.persist_conn_id == self.default_conn_name:
                _refuse_another(location)
        except (ConfigError, InvalidUri) as error:
            raise ConfigError(
                f"Airflow connection {self.persist_conn_id!r} (type {CONNECTION_TYPE}; extra: blob_uri, consensus_uri):"
                f" {error}"
            ) from error
        for uri in (location.blob_uri, location.consensus_uri, *location.connections.values()):
            _mask(*secrets_of(uri))
        return replace(location, connections={**location.connections, **self._source_connections()})

    def get_environment(self) -> dict[str, str]:
        """The AWS variables for this location, secrets included: for the environment of a process, nowhere else.

        Empty if the connection names no Airflow AWS connection (extra `aws_conn_id`): then AWS's default credential
        chain counts. Raises `ConfigError` if it names one that can't be used, `Determinate` as `get_location` does.
        """
        connection = connection_of(self.persist_conn_id, self.default_conn_name)
        aws_conn_id = None if connection is None else connection.extra_dejson.get("aws_conn_id")
        return aws_environment(str(aws_conn_id)) if aws_conn_id else {}

    def get_conn(self) -> PersistClient:
        """A client on the location. Close it with `client.location.close()`."""
        return PersistClient(self._open())

    def test_connection(self) -> tuple[bool, str]:
        """The form's Test button: a real round trip on both stores; leaves nothing behind, prints no secret."""
        try:
            location = self._open()
        except PersistError as error:
            return False, str(error)
        try:
            return True, _round_trip(location)
        except PersistError as error:
            return False, str(error)
        finally:
            location.close()

    def _source_connections(self) -> dict[str, str]:
        """The connections that sources of the collections name, by variable, if the environment lacks it.

        One that gives no credentials is left out: it is an error of the collections that name it, and of no others. So
        are two that have one variable.
        """
        sources = [config.source for config in self._configs if isinstance(config, CollectionConfig)]
        found, names = {}, sorted({each.connection for each in sources if each.connection is not None})
        for name in names:
            if not os.environ.get(connection_variable(name)):
                try:
                    if len(similar := similar_names(name, names)) > 1:
                        raise ConfigError(f"{', '.join(similar)} differ only in case or in signs: rename one of them")
                    found[connection_variable(name)] = _source_uri(name)
                except ConfigError as error:
                    self.log.warning("source.connection %r: %s", name, error)
        return found

    def _open(self) -> OpenLocation:
        return open_location(self.get_location(), self.get_environment() or None)


def connection_of(conn_id: str, default_conn_id: str) -> Any:
    """The Airflow connection; `None` if it is the default one, and not found.

    Raises `Determinate` if any other is not found: a secrets backend may have failed, and another try may find it.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        if conn_id == default_conn_id:
            return None
        raise _not_found(conn_id) from None


def _not_found(conn_id: str, nor: str = "") -> Determinate:
    return Determinate(
        f"Airflow connection {conn_id!r}: Airflow has found no such connection, or a secrets backend failed"
        f" (Airflow logs its reason, at level DEBUG){nor}. Make the connection, correct its id in the DAG, or try again"
        " when the backend answers"
    )


def _location_of(connection: Any) -> PersistLocation:
    uris = {name: str(connection.extra_dejson.get(name) or "") for name in ("blob_uri", "consensus_uri")}
    for name, uri in uris.items():
        _refuse_secrets(name, uri)
    missing = [name for name, uri in uris.items() if not uri]
    if missing:
        raise ConfigError(f"its extra has no {' and no '.join(missing)}; a location is a pair: give both there")
    uris["consensus_uri"] = with_login(uris["consensus_uri"], connection.login, connection.password)
    return location_from(uris["blob_uri"], uris["consensus_uri"])


def _refuse_another(location: PersistLocation) -> None:
    """Raise `ConfigError` if the environment or the config file, which count without the connection, differ from it."""
    other, where = location_around()
    if other is not None and not location.is_same_place(other):
        raise ConfigError(
            f"it names {location}; but {where} names {other}, which would count while Airflow does not find the"
            " connection. Give only one of them, or the same location in both; or give this connection another id, and"
            " name that in persist_conn_id"
        )


def _source_uri(connection: str) -> str:
    """A URI with the credentials of an Airflow connection, for any bucket: several sources may name it."""
    keys, region, endpoint = _aws_connection(connection)
    query = {
        "endpoint": endpoint,
        "region": region,
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "session_token": keys.token,
    }
    text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items() if value)
    return f"{ANY_BUCKET}?{text}"


@contextmanager
def open_client(persist_conn_id: str, *configs: ShardConfig) -> Iterator[PersistClient]:
    """A client that reads the inputs of `configs`. Raises our own errors."""
    client = PersistHook(persist_conn_id, configs).get_conn()
    try:
        yield client
    finally:
        client.location.close()


@contextmanager
def task_client(persist_conn_id: str, *configs: ShardConfig) -> Iterator[PersistClient]:
    """Like `open_client`, for the body of a task: errors that no retry can correct fail it without further tries."""
    with fail_without_retry(), open_client(persist_conn_id, *configs) as client:
        yield client


def _refuse_secrets(name: str, uri: str) -> None:
    """Raise `ConfigError` if a URI in the connection's extra holds a password or a secret key."""
    secrets = secrets_of(uri)
    if secrets:
        _mask(*secrets)
        raise ConfigError(
            f"{name} is {redact_uri(uri)!r}: found a password or secret key in the extra field, which Airflow's API and"
            " UI show. Put the user and password of a database into the connection's login and password; for S3 give"
            " aws_conn_id, or credentials in the worker's environment"
        )


def _mask(*secrets: str) -> None:
    for secret in secrets:
        mask_secret(secret)


def aws_environment(aws_conn_id: str) -> dict[str, str]:
    """The credentials and the region of an Airflow AWS connection, as the variables that boto3 and Spark read.

    Airflow's Amazon provider knows how (keys, profiles, assumed roles). The credentials of a role expire after about an
    hour, so each task asks for them again. Raises `ConfigError`.
    """
    credentials, region, _ = _aws_connection(aws_conn_id)
    keys = environment_of(credentials.access_key, credentials.secret_key, credentials.token)
    return keys | ({"AWS_REGION": region, "AWS_DEFAULT_REGION": region} if region else {})


def _aws_connection(aws_conn_id: str) -> tuple[Any, str | None, str | None]:
    """The credentials, the region and the endpoint of an Airflow AWS connection, its secrets masked."""
    try:
        from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
    except ImportError:
        raise ConfigError(
            f"the Airflow AWS connection {aws_conn_id!r} (aws_conn_id) needs apache-airflow-providers-amazon:"
            " install it, or leave aws_conn_id out and give credentials to AWS's default credential chain"
        ) from None
    try:
        hook = AwsBaseHook(aws_conn_id=aws_conn_id, client_type="s3")
        credentials, region = hook.get_credentials(), hook.region_name
        endpoint = hook.conn_config.get_service_endpoint_url("s3")
    except Exception as error:  # noqa: BLE001 - the provider raises its own errors, boto's and Airflow's
        raise ConfigError(
            f"the Airflow AWS connection {aws_conn_id!r} (aws_conn_id) gives no credentials: {type(error).__name__};"
            " test that connection by itself"
        ) from None  # its text may hold a secret
    _mask(*filter(None, (credentials.secret_key, credentials.token)))
    return credentials, region, endpoint


def _round_trip(location: OpenLocation) -> str:
    """Write, read and delete a blob; make a compare-and-set that consensus must refuse, and read back.

    A refused compare-and-set reaches the store and creates no key, so that no shard of that name appears.
    """
    key, data = f"{_TEST_PREFIX}/{RandomIds().uuid7()}", b"persist"
    location.blob.set(key, data)
    found = location.blob.get(key)
    location.blob.delete(key)
    if found != data:
        raise PersistError(f"{location.blob.uri}: wrote {len(data)} bytes, read back {found!r}")
    result = location.consensus.compare_and_set(_TEST_PREFIX, 0, VersionedData(1, b""))
    if result is not CaSResult.EXPECTATION_MISMATCH or location.consensus.head(_TEST_PREFIX) is not None:
        raise PersistError(
            f"{location.consensus.uri}: accepted a compare-and-set that it must refuse; run `persist doctor`"
        )
    return f"wrote, read and deleted a blob in {location.blob.uri}; reached consensus in {location.consensus.uri}"
