"""Reports of tasks to OpenLineage, through Airflow's OpenLineage provider.

    write     inputs: the folder of the collection's files, or the shards that a view reads
    append    the same inputs, and the shard with its schema, what was written, and the columns of a view
    restore   the shard; of a fork also the shard that it was made of
    reprocess the folder of the collection's files, and the shard with what was corrected

1. Nothing of OpenLineage is imported unless the provider is installed and switched on; tasks then cost nothing more.
2. Facts are read while the task has its client open (`Lineage`), and become OpenLineage's objects when the provider
   asks for them. A failure to read them is logged, and does not fail the task.
3. Names follow OpenLineage's naming of datasets: a folder is `file` and its path, a shard is the folder of its blobs:
   `file` and its path, or `s3://BUCKET` and its key. Its asset (`persist://CONNECTION/SHARD`) is its symlink.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from persist_core.config.collection import CollectionConfig
from persist_core.config.path_pattern import S3
from persist_core.config.shard import ShardConfig
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription, BatchManifest
from persist_core.errors import PersistError
from persist_core.handles.client import PersistClient
from persist_core.shard.state import Commit
from persist_core.sources.registry import source_of

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

MAX_LOCATIONS = 100  # files of one event; the number of files is exact
SYMLINK_TYPE = "TABLE"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dataset:
    """One dataset. `columns`: name and type. `rows`, `size_bytes`, `files`: what was read or written of it.

    `locations`: the files that were read of a folder. `sources`: for each column what it is made of, as dataset
    and column. `asset`: namespace and name of the shard's asset.
    """

    namespace: str
    name: str
    columns: tuple[tuple[str, str], ...] = ()
    version: str | None = None
    rows: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    locations: tuple[str, ...] = ()
    sources: Mapping[str, Sequence[tuple[Dataset, str]]] = field(default_factory=dict)
    asset: tuple[str, str] | None = None


@dataclass(frozen=True)
class Lineage:
    """The datasets that one try of a task has read and written so far."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()


@cache
def is_on() -> bool:
    """True if the OpenLineage provider is installed, and configured to send events."""
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
        return as_openlineage(self.lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any]:  # noqa: ARG002 - the provider's signature
        """The inputs of a try that failed; the provider adds the error."""
        return as_openlineage(replace(self.lineage, outputs=()))


@contextmanager
def harmless() -> Iterator[None]:
    """Log what goes wrong in the block instead of raising it: lineage must not fail a task that has committed."""
    try:
        yield
    except PersistError as error:
        _log.warning("no lineage is reported: %s: %s", error.kind, error)


def of_inputs(client: PersistClient, config: ShardConfig, description: BatchDescription, conn_id: str) -> Lineage:
    """The inputs of a description's batch. Empty if OpenLineage is off, or the description has no input."""
    found = Lineage()
    if is_on() and description.input_key is not None:
        with harmless():
            found = Lineage(tuple(_inputs(client, config, description, conn_id)))
    return found


def of_commit(
    client: PersistClient, config: ShardConfig, commit: Commit, conn_id: str, inputs: tuple[Dataset, ...]
) -> Lineage:
    """A commit: the shard as it wrote it, made of `inputs`."""
    found = Lineage(inputs)
    if is_on():
        with harmless():
            manifest = client.manifest(commit)
            output = _written(client, manifest, conn_id)
            found = Lineage(inputs, (replace(output, sources=_sources(config, manifest, inputs)),))
    return found


def joined(of_each: Iterable[Lineage]) -> Lineage:
    """The inputs and outputs of several commits."""
    found = list(of_each)
    inputs, outputs = ([each for one in found for each in getattr(one, side)] for side in ("inputs", "outputs"))
    return Lineage(tuple(inputs), tuple(outputs))


def of_restore(client: PersistClient, shard: str, new_shard: str | None, conn_id: str) -> Lineage:
    """A restore or a fork that was committed."""
    found = Lineage()
    if is_on():
        with harmless():
            newest = client.state(new_shard or shard).newest_commit
            if newest is not None:
                output = _written(client, client.manifest(newest), conn_id)
                found = Lineage((_of_shard(client, shard, conn_id),) if new_shard else (), (output,))
    return found


def of_correction(client: PersistClient, config: CollectionConfig, commit: Commit, conn_id: str) -> Lineage:
    """A correction: the shard as its commit wrote it, made of the folder of the collection's files."""
    folder = Dataset(*_name_of_folder(config.source_pattern().root))
    return of_commit(client, config, commit, conn_id, (folder,))


def _inputs(
    client: PersistClient, config: ShardConfig, description: BatchDescription, conn_id: str
) -> Iterator[Dataset]:
    for each in source_of(client, config).inputs(str(description.input_key)):
        if each.as_of is not None:
            yield replace(_of_shard(client, each.name, conn_id), version=str(each.as_of))
        else:
            yield Dataset(
                *_name_of_folder(each.name),
                size_bytes=each.size_bytes,
                files=len(each.files),
                locations=each.files[:MAX_LOCATIONS],
            )


def _name_of_folder(name: str) -> tuple[str, str]:
    """Namespace and name of a folder of files."""
    bucket, _, path = name.removeprefix(S3).partition("/")
    return (f"{S3}{bucket}", path or "/") if name.startswith(S3) else ("file", name)


def _of_shard(client: PersistClient, shard: str, conn_id: str) -> Dataset:
    """The shard's dataset, with its schema."""
    schema = client.state(shard).schema
    columns = tuple((column.name, column.type) for column in schema.columns) if schema else ()
    return Dataset(*name_of(client.blob.uri, shard), columns, asset=(f"persist://{conn_id}", shard))


def _written(client: PersistClient, manifest: BatchManifest, conn_id: str) -> Dataset:
    """The shard, and what its commit with this manifest wrote."""
    return Dataset(
        *name_of(client.blob.uri, manifest.shard),
        tuple((column.name, column.type) for column in manifest.schema.columns),
        version=manifest.checkpoint_id,
        rows=manifest.counts.rows,
        size_bytes=manifest.size_bytes,
        files=len(manifest.parts),
        asset=(f"persist://{conn_id}", manifest.shard),
    )


def name_of(blob_uri: str, shard: str) -> tuple[str, str]:
    """Namespace and name of a shard's dataset in the location of this blob URI, credentials and parameters left out."""
    uri = urlsplit(blob_uri)
    path = unquote(uri.path).strip("/")
    if uri.scheme == "file":
        return "file", "/" + "/".join(filter(None, (path, shard)))
    if uri.scheme == "s3":
        return f"s3://{uri.netloc}", "/".join(filter(None, (path, shard)))
    return uri.scheme, "/".join(filter(None, (path, shard)))


def _sources(
    config: ShardConfig, manifest: BatchManifest, inputs: tuple[Dataset, ...]
) -> dict[str, list[tuple[Dataset, str]]]:
    """For each column of a view, the columns of its inputs; nothing for other shards, and for views by a function."""
    if not isinstance(config, ViewConfig) or config.query is None:
        return {}
    from persist_core.config.view_query import column_sources

    by_shard = {each.asset[1]: each for each in inputs if each.asset is not None}
    columns_of = {shard: [name for name, _ in each.columns] for shard, each in by_shard.items()}
    found = {output.lower(): sources for output, sources in column_sources(config.query, columns_of).items()}
    names = [column.name for column in manifest.schema.columns]
    return {
        name: [(by_shard[shard], column) for shard, column in found[name.lower()]]
        for name in names
        if found.get(name.lower())
    }


def as_openlineage(found: Lineage) -> OperatorLineage[Any, Any]:
    """The datasets as OpenLineage's objects."""
    from airflow.providers.openlineage.extractors import OperatorLineage

    return OperatorLineage(
        inputs=[_input_dataset(each) for each in found.inputs],
        outputs=[_output_dataset(each) for each in found.outputs],
    )


def _input_dataset(read: Dataset) -> Any:
    from airflow.providers.common.compat.openlineage.facet import InputDataset
    from openlineage.client.generated.base_subset_dataset import InputSubsetInputDatasetFacet, LocationSubsetCondition
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    facets: dict[str, Any] = {}
    if read.files is not None:
        facets["inputStatistics"] = InputStatisticsInputDatasetFacet(size=read.size_bytes, fileCount=read.files)
    if read.locations:
        facets["subset"] = InputSubsetInputDatasetFacet(LocationSubsetCondition(list(read.locations)))
    return InputDataset(read.namespace, read.name, facets=_facets(read), inputFacets=facets)


def _output_dataset(written: Dataset) -> Any:
    from airflow.providers.common.compat.openlineage.facet import OutputDataset, OutputStatisticsOutputDatasetFacet

    statistics = OutputStatisticsOutputDatasetFacet(
        rowCount=written.rows, size=written.size_bytes, fileCount=written.files
    )
    return OutputDataset(
        written.namespace, written.name, facets=_facets(written), outputFacets={"outputStatistics": statistics}
    )


def _facets(of: Dataset) -> dict[str, Any]:
    """The facets that inputs and outputs share."""
    from openlineage.client.generated import (
        column_lineage_dataset,
        dataset_version_dataset,
        schema_dataset,
        symlinks_dataset,
    )

    facets: dict[str, Any] = {}
    if of.columns:
        fields = [schema_dataset.SchemaDatasetFacetFields(name, type_name) for name, type_name in of.columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields)
    if of.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(of.version)
    if of.asset is not None:
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(
            [symlinks_dataset.Identifier(*of.asset, SYMLINK_TYPE)]
        )
    if of.sources:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(
            {
                name: column_lineage_dataset.Fields(
                    [
                        column_lineage_dataset.InputField(source.namespace, source.name, column)
                        for source, column in sources
                    ]
                )
                for name, sources in of.sources.items()
            }
        )
    return facets
