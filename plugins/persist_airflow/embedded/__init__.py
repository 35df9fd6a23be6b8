"""The embedded Airflow of `make demo` and `make up`; an Airflow installation uses none of it."""

from persist_core.errors import PersistError


class EmbeddedAirflowError(PersistError, kind="embedded_airflow"):
    """The embedded Airflow can't do what was asked; the message names the process, the reason and what to do."""
