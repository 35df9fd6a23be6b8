"""The embedded Airflow of `make demo` and `make up`; an Airflow installation uses none of it."""
