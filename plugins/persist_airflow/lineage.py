"""Reports of tasks to OpenLineage, through Airflow's OpenLineage provider.

    write     inputs: the folder of the collection's files, or the shards that a view reads
    append    the same inputs, and the shard with its schema, what was written, and the columns of a view
    restore   the shard; of a fork also the shard that it was made of
    reprocess the folder of the collection's files, and the shard with what was corrected

1. Nothing of OpenLineage is imported unless the provider is installed and switched on; tasks then cost nothing more.
2. Facts are read while the task has its client open. A failure to read them is logged, and does not fail the task.
3. Names follow OpenLineage's naming of datasets: a folder is `file` and its path, a shard is the folder of its blobs:
   `file` and its path, or `s3://BUCKET` and its key. Its asset (`persist://CONNECTION/SHARD`) is its symlink.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from persist_airflow.failures import warn_once
from persist_airflow.links import shard_uri
from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import S3
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription, BatchManifest
from persist_core.handles.client import PersistClient
from persist_core.schema import Column
from persist_core.shard.state import Commit
from persist_core.sources.registry import source_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import InputDataset, OutputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage

MAX_LOCATIONS = 100  # files of one event; the number of files is exact
SYMLINK_TYPE = "TABLE"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lineage:
    """The datasets that one try of a task has read and written so far, as OpenLineage's objects."""

    inputs: tuple[InputDataset, ...] = ()
    outputs: tuple[OutputDataset, ...] = ()


@cache
def is_on() -> bool:
    """True if the OpenLineage provider is installed, and configured to send events. Raises its errors of settings."""
    try:
        if importlib.util.find_spec("airflow.providers.openlineage") is None:
            return False
    except ModuleNotFoundError:
        return False
    from airflow.providers.openlineage import conf

    return not conf.is_disabled()


class ReportsLineage:
    """A mixin for operators: the methods that the provider calls. `lineage` is what `execute` has found so far."""

    lineage = Lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002 - the provider's signature
        """Inputs and outputs of a try that succeeded. The provider adds its own facets."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        return OperatorLineage(inputs=list(self.lineage.inputs), outputs=list(self.lineage.outputs))

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002 - the provider's signature
        """The inputs of a try that failed; the provider adds the error."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        return OperatorLineage(inputs=list(self.lineage.inputs))


def _found(read: Callable[[], Lineage], otherwise: Lineage = Lineage()) -> Lineage:
    """Return what `read` finds, if lineage is on. Never raises."""
    try:
        if is_on():
            return read()
    except Exception as error:  # noqa: BLE001 - a task is not to fail for its lineage, whatever the provider raises
        warn_once(_log, f"no lineage is reported: {type(error).__name__}: {error}")
    return otherwise


def of_inputs(client: PersistClient, config: ShardConfig, description: BatchDescription, conn_id: str) -> Lineage:
    """The inputs of a description's batch. Empty if OpenLineage is off, or the description has no input."""
    key = description.input_key
    return Lineage() if key is None else _found(lambda: Lineage(tuple(_inputs(client, config, key, conn_id))))


def of_commit(
    client: PersistClient, config: ShardConfig, commit: Commit, conn_id: str, inputs: tuple[InputDataset, ...]
) -> Lineage:
    """A commit: the shard as it wrote it, made of `inputs`."""

    def read() -> Lineage:
        manifest = client.manifest(commit)
        return Lineage(inputs, (_written(client, manifest, conn_id, _sources(config, manifest, inputs)),))

    return _found(read, Lineage(inputs))


def joined(of_each: Iterable[Lineage]) -> Lineage:
    found = list(of_each)
    inputs, outputs = ([each for one in found for each in getattr(one, side)] for side in ("inputs", "outputs"))
    return Lineage(tuple(inputs), tuple(outputs))


def of_restore(client: PersistClient, shard: str, new_shard: str | None, conn_id: str) -> Lineage:
    """A restore or a fork that was committed."""

    def read() -> Lineage:
        newest = client.state(new_shard or shard).newest_commit
        if newest is None:
            return Lineage()
        output = _written(client, client.manifest(newest), conn_id)
        return Lineage((_of_shard(client, shard, conn_id),) if new_shard else (), (output,))

    return _found(read)


def of_correction(client: PersistClient, config: CollectionConfig, commit: Commit, conn_id: str) -> Lineage:
    """A correction: the shard as its commit wrote it, made of the folder of the collection's files."""
    folder = _found(lambda: Lineage((_folder(config.source_pattern().root),)))
    return of_commit(client, config, commit, conn_id, folder.inputs)


def _inputs(client: PersistClient, config: ShardConfig, input_key: str, conn_id: str) -> Iterator[InputDataset]:
    for each in source_of(client, config).inputs(input_key):
        if each.as_of is not None:
            yield _of_shard(client, each.name, conn_id, version=str(each.as_of))
        else:
            yield _folder(each.name, each.files, each.size_bytes)


def _folder(name: str, files: Sequence[str] = (), size_bytes: int | None = None) -> InputDataset:
    from airflow.providers.common.compat.openlineage.facet import InputDataset
    from openlineage.client.generated.base_subset_dataset import InputSubsetInputDatasetFacet, LocationSubsetCondition
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    facets: dict[str, Any] = {}
    if files:
        subset = LocationSubsetCondition(list(files[:MAX_LOCATIONS]))
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(size=size_bytes, fileCount=len(files))
        facets["subset"] = InputSubsetInputDatasetFacet(subset)
    bucket, _, path = name.removeprefix(S3).partition("/")
    named = (f"{S3}{bucket}", path or "/") if name.startswith(S3) else ("file", name)
    return InputDataset(*named, inputFacets=facets)


def _of_shard(client: PersistClient, shard: str, conn_id: str, version: str | None = None) -> InputDataset:
    from airflow.providers.common.compat.openlineage.facet import InputDataset

    schema = client.state(shard).schema
    columns = schema.columns if schema else ()
    return InputDataset(*name_of(client.blob.uri, shard), facets=_facets(shard, conn_id, columns, version))


def _written(
    client: PersistClient,
    manifest: BatchManifest,
    conn_id: str,
    sources: Mapping[str, Sequence[tuple[InputDataset, str]]] = MappingProxyType({}),
) -> OutputDataset:
    """The shard, and what its commit with this manifest wrote. `sources`: what each column of a view is made of."""
    from airflow.providers.common.compat.openlineage.facet import OutputDataset, OutputStatisticsOutputDatasetFacet
    from openlineage.client.generated.column_lineage_dataset import ColumnLineageDatasetFacet, Fields, InputField

    facets = _facets(manifest.shard, conn_id, manifest.schema.columns, manifest.checkpoint_id)
    if sources:
        fields = {
            name: Fields([InputField(source.namespace, source.name, column) for source, column in found])
            for name, found in sources.items()
        }
        facets["columnLineage"] = ColumnLineageDatasetFacet(fields)
    statistics = OutputStatisticsOutputDatasetFacet(
        rowCount=manifest.counts.rows, size=manifest.size_bytes, fileCount=len(manifest.parts)
    )
    named = name_of(client.blob.uri, manifest.shard)
    return OutputDataset(*named, facets=facets, outputFacets={"outputStatistics": statistics})


def name_of(blob_uri: str, shard: str) -> tuple[str, str]:
    """Namespace and name of a shard's dataset in the location of this blob URI, credentials and parameters left out."""
    uri = urlsplit(blob_uri)
    path = "/".join(filter(None, (unquote(uri.path).strip("/"), shard)))
    if uri.scheme == "file":
        return "file", f"/{path}"
    return (f"s3://{uri.netloc}" if uri.scheme == "s3" else uri.scheme), path


def _sources(
    config: ShardConfig, manifest: BatchManifest, inputs: tuple[InputDataset, ...]
) -> dict[str, list[tuple[InputDataset, str]]]:
    """For each column of a view, the columns of its inputs; nothing for other shards, and for views by a function."""
    if not isinstance(config, ViewConfig) or config.query is None:
        return {}
    from persist_core.config.view_query import column_sources

    facets: dict[str, Any] = {each.name: each.facets for each in inputs}
    by_shard = {
        facets[each.name]["symlinks"].identifiers[0].name: each for each in inputs if "symlinks" in facets[each.name]
    }
    columns_of = {
        shard: [field.name for field in facets[each.name]["schema"].fields]
        for shard, each in by_shard.items()
        if "schema" in facets[each.name]
    }
    found = {output.lower(): sources for output, sources in column_sources(config.query, columns_of).items()}
    names = [column.name for column in manifest.schema.columns]
    return {
        name: [(by_shard[shard], column) for shard, column in found[name.lower()]]
        for name in names
        if found.get(name.lower())
    }


def _facets(shard: str, conn_id: str, columns: Iterable[Column], version: str | None) -> dict[str, Any]:
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
    from openlineage.client.generated.symlinks_dataset import Identifier, SymlinksDatasetFacet

    fields = [SchemaDatasetFacetFields(column.name, column.type) for column in columns]
    asset = Identifier(shard_uri(conn_id, "").removesuffix("/"), shard, SYMLINK_TYPE)
    return {
        "symlinks": SymlinksDatasetFacet([asset]),
        **({"schema": SchemaDatasetFacet(fields)} if fields else {}),
        **({"version": DatasetVersionDatasetFacet(version)} if version is not None else {}),
    }
