"""Files of `make docs`, from the definitions of metrics: their reference, and the mapping of the StatsD exporter."""

from __future__ import annotations

from collections.abc import Iterable

from persist_core.inspection.metrics import COMMITS, RESULTS, RUN_METRICS, SHARD_METRICS, STAGES, Metric

AIRFLOW_PREFIX = "airflow"  # Airflow's default for `[metrics] statsd_prefix`

REFERENCE_HEAD = """# Metrics

{made}
How to turn them on: [metrics](../metrics.md). Each metric has the labels `location` (the id of the Airflow connection)
and `shard`, and the labels named below.

* **In Prometheus** the name has the unit, and `_total` if it is a counter.
* **In Airflow's Stats** Airflow puts its prefix (`airflow.`) before the name. With tags (StatsD with
  `statsd_influxdb_enabled`, Datadog, OpenTelemetry) labels are tags; metrics of runs have the tag `dag_id` too. StatsD
  without tags gets them in the name: `airflow.persist.rows.LOCATION.SHARD`, with `__` for each `.` in a value. Timings
  are in milliseconds there.

## Of shards

`persist metrics` prints them. In Airflow the task `checkpoint_manifest` sets them for its shard, and the DAG
`persist_maintenance` for all shards of the location (`list_shards`, `maintain_shard`). A fact that is not known has no
value.

| in Prometheus | in Airflow's Stats | kind | labels | meaning |
| --- | --- | --- | --- | --- |
{shards}

## Of runs

Only Airflow's tasks send them. Counters start at 0 when the collector starts, so ask for `increase(...)` or
`rate(...)`. `persist metrics` prints `{commits}` too: the number of all commits of the shard.

| in Prometheus | in Airflow's Stats | kind | labels | meaning |
| --- | --- | --- | --- | --- |
{runs}

* `stage`: {stages}.
* `result`: {results}. A task that was put off (deferred or rescheduled)
  has not ended, and is not counted.
* `reason`: `time` (the record's time was final already), `order` (it lost to an order seen before), `memory` (it won,
  though a tombstone that is no longer remembered may be newer). [Semantics](../semantics.md) has the details.
"""

MAPPING = """# How StatsD's names become Prometheus' metrics. `make docs` writes this file.
#
# With `statsd_influxdb_enabled`, Airflow appends labels to a name as `,label=value`, and the exporter reads them.
# Without it the values are in the name, and are matched here.
defaults:
  observer_type: histogram
  histogram_options:
    buckets: [0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600] # seconds
mappings:
  # Airflow sends its own metrics twice: with labels, and with the ids in the name. Only labeled ones are kept.
  - match: airflow.dag.*.*.*
    name: dropped
    action: drop
  - match: airflow.dagrun.duration.*.*
    name: dropped
    action: drop
  - match: airflow.dagrun.schedule_delay.*
    name: dropped
    action: drop
  - match: airflow.ti.finish.*.*.*
    name: dropped
    action: drop
  - match: airflow.ti.start.*.*
    name: dropped
    action: drop
"""


def reference_page(made: str) -> str:
    """The tables of all metrics."""
    return REFERENCE_HEAD.format(
        made=made,
        shards=_rows(SHARD_METRICS),
        runs=_rows(RUN_METRICS),
        commits=COMMITS.series,
        stages=_listed(STAGES),
        results=_listed(RESULTS),
    )


def statsd_mapping() -> str:
    """`docker/metrics/statsd.yaml`."""
    return MAPPING + "".join(map(_mapping, (*SHARD_METRICS, *RUN_METRICS)))


def _mapping(metric: Metric) -> str:
    labels = ", ".join(f'{name}: "${number}"' for number, name in enumerate(metric.all_labels, start=1))
    match = f"{AIRFLOW_PREFIX}.{metric.stat}"
    entry = f"    name: {metric.series}\n    help: {_quoted(metric.help)}\n"
    wildcards = ".*" * len(metric.all_labels)
    return f"  - match: {match}\n{entry}  - match: {match}{wildcards}\n{entry}    labels: {{{labels}}}\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _rows(metrics: Iterable[Metric]) -> str:
    return "\n".join(
        f"| `{each.series}` | `{each.stat}` | {each.kind} | {_listed(each.labels)} | {each.help} |" for each in metrics
    )


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
