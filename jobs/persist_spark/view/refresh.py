"""The write stage of a view: a frozen time and its inputs become a staged batch (docs/semantics.md, sections 5 and 6).

    JobSpec -> still valid? -> inputs as of r -> query -> schema fits? -> difference to what is persisted -> stage
                                     └ errs as of r: kinds and digests ──────┘
    digest of what is persisted, by the same action == digest that the last refresh left?   no: count the corrections

May run any number of times, at the same time, anywhere, and may die at any point. A dry run (read-only) does the same,
and stages nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchManifest, HollowBatch
from persist_core.contents.pieces import all_errs, oks_as_of
from persist_core.contents.stats import DryRun, show_bytes
from persist_core.errors import CorruptArtifact, InvalidInput, NotReadable, RunFailed, TooManyUpdates
from persist_core.handles.client import PersistClient
from persist_core.keys import dry_run_key
from persist_core.location.open import OpenLocation
from persist_core.protocol.stages import check_not_outdated
from persist_core.schema import DIFF, ERR_KIND, ERR_MESSAGE, CollectionSchema
from persist_core.shard.state import ShardState
from persist_core.sources.frozen import load_frozen
from persist_core.sources.shards import FrozenShards, Refreshed, ShardSource
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import show_time
from persist_spark import progress
from persist_spark.compat import ENGINE_ERRORS
from persist_spark.frame import part_type, quoted
from persist_spark.read.damage import check_sizes, named_damage, part_sizes
from persist_spark.read.frames import error_updates, snapshot
from persist_spark.read.parts import scan_pieces
from persist_spark.session import listing, own_session, stage_settings, use
from persist_spark.stage import Planned, stage
from persist_spark.view.difference import EMPTY, Contents, Refresh, inherited, install_desired_into_persist
from persist_spark.view.rows import failed, queried, refused, shaped

_UNREPEATABLE: tuple[type[Exception], ...] = (NotReadable, CorruptArtifact, InvalidInput, RunFailed, *ENGINE_ERRORS)
SAMPLE_ROWS = 20  # of a dry run
_SHOWN_OF_ERRS = (ERR_KIND, ERR_MESSAGE)
# A query may join anything, so Spark decides what to broadcast. It may have another result when the work of a lost
# executor is done again (the last digits of a sum): then Spark, from 4.1 on, does all that follows again, or fails.
_OF_QUERIES = {
    "spark.sql.autoBroadcastJoinThreshold": "10485760",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableQueryLevelRollbackOnMismatch": "true",
}


@dataclass(frozen=True)
class _View:
    spark: SparkSession
    client: PersistClient
    location: OpenLocation
    config: ViewConfig
    state: ShardState
    committed: Sequence[tuple[HollowBatch, BatchManifest]]

    def desired(self, frozen: FrozenShards) -> tuple[CollectionSchema, DataFrame, DataFrame | None]:
        """Schema, rows and errs at the frozen time. Inputs have the columns that they had when they were frozen, unless
        another generation was swapped in since: it has versions of its own."""
        name, as_of = self.config.name, frozen.as_of
        now = {each: self.client.state(each) for each in frozen.uppers}
        versions = {each: frozen.schemas[each] for each in now if now[each].origin.life == frozen.lives[each]}
        inputs = {
            each: snapshot(self.spark, self.location, each, as_of, schema=versions.get(each) or None) for each in now
        }
        with refused(name, "the query"):
            schema, rows = shaped(name, queried(self.spark, name, frozen.definition, inputs))
        errs = [
            found.selectExpr(*inherited(each), DIFF)
            for each in frozen.uppers
            if (found := error_updates(self.spark, self.location, each, as_of)) is not None
        ]
        return schema, rows, reduce(DataFrame.union, errs) if errs else None

    def persisted(self, schema: CollectionSchema) -> tuple[DataFrame | None, DataFrame | None]:
        frame = part_type(schema)
        blob = self.client.blob
        oks = [piece for batch, manifest in self.committed for piece in oks_as_of(batch, manifest, batch.last_time)]
        errs = [piece for batch, manifest in self.committed for piece in all_errs(batch, manifest)]
        return scan_pieces(self.spark, blob, oks, frame), scan_pieces(self.spark, blob, errs, frame)

    def held(self, schema: CollectionSchema) -> Contents:
        """The counts of what is persisted, in the columns of `schema`."""
        oks, errs = self.persisted(schema)
        nothing = self.spark.createDataFrame([], part_type(schema))
        planned = install_desired_into_persist(nothing, None, oks, errs, schema=schema, at=0)
        run_without_output(planned.updates)
        return planned.outcome(planned.updates).before

    def plan(self, frozen: FrozenShards, at: int) -> tuple[CollectionSchema, Planned[Refresh]]:
        """The updates at time `at`. Raises `SchemaMismatch` if the rows do not fit the shard."""
        schema, rows, errs = self.desired(frozen)
        schema = self.state.schemas.placed(self.config.declared(schema))
        oks, known_errs = self.persisted(schema)
        return schema, install_desired_into_persist(rows, errs, oks, known_errs, schema=schema, at=at)


def run_view_job(spark: SparkSession, spec: JobSpec, location: OpenLocation) -> BatchManifest | None:
    """Stage the refresh that `spec` describes; its manifest is under `persist_core.contents.batch.manifest_key`.

    Returns `None` for a dry run, which leaves its report under `keys.dry_run_key` and stages nothing.
    Raises `OutdatedDescription`, `ConfigError` (Spark refuses the query), `SchemaMismatch`, `NotReadable` before
    anything is staged; `RunFailed` (evaluation failed), `TooManyUpdates` after. Nothing is committed in any case.
    """
    config = spec.config
    assert isinstance(config, ViewConfig)
    client, description = PersistClient(location), spec.description
    if spec.dry_run_as_of is not None:
        frozen = ShardSource(client, config).frozen_at(spec.dry_run_as_of)
        state = client.machine.fetch(config.name) or ShardState(config.name)
    else:
        state = client.state(config.name)
        check_not_outdated(state, description)
        if description.input_key is None:
            raise InvalidInput(f"description {description.interval} of view {config.name} has no input to read")
        frozen = load_frozen(client.blob, description.input_key, FrozenShards)
    below = [batch for batch in state.batches if batch.lower < description.lower]
    manifests = client.manifests(below)
    check_sizes(client.blob, part_sizes(manifests))
    moved_bytes = description.input_bytes + sum(manifest.size_bytes for manifest in manifests)
    with (
        own_session(spark, spec) as own,
        failed(config.name, f"the refresh as of {show_time(frozen.as_of)}"),
        named_damage(client.blob, client),
    ):
        progress.enter("plan", f"{len(frozen.uppers)} inputs, {show_bytes(description.input_bytes)}")
        use(own, {**stage_settings(moved_bytes), **listing(client.blob), **_OF_QUERIES})
        view = _View(own, client, location, config, state, list(zip(below, manifests, strict=True)))
        schema, installed = view.plan(frozen, frozen.as_of)
        if spec.dry_run_as_of is not None:
            dry_run = _dry_run(view, schema, installed, frozen.as_of)
            client.blob.set(dry_run_key(config.name, spec.attempt), dry_run.encode())
            return None
        return stage(
            client.blob,
            description,
            schema,
            spec.attempt,
            lambda _: replace(installed, outcome=partial(_corrected, view, schema, installed)),
            check=lambda refresh: check_limits(config, refresh),
        )


def _corrected(view: _View, schema: CollectionSchema, installed: Planned[Refresh], written: DataFrame) -> Refresh:
    """The counts of the action; they say how many of the updates are corrections."""
    refresh = installed.outcome(written)
    return replace(refresh, report={**refresh.report, "corrections": _corrections(view, schema, refresh)})


def _corrections(view: _View, schema: CollectionSchema, refresh: Refresh) -> int:
    """Rows that the target held more or fewer of than the last refresh left: usually 0, at no cost.

    If the digests differ, the last refresh is evaluated again and compared. If that is no longer possible, the
    difference of the counts is a lower bound. With other columns the target is read once more, in its own.
    """
    last, left = Refreshed.of(view.state.sources), _left(view)
    newest = view.state.schema
    if refresh.before == left or (newest and newest.columns != schema.columns and view.held(newest) == left):
        return 0
    if last is None:
        return refresh.misplaced
    try:
        again = replace(load_frozen(view.client.blob, last.input_key, FrozenShards), as_of=last.as_of)
        _, installed = view.plan(again, again.as_of)
        run_without_output(installed.updates)
        found = installed.outcome(installed.updates).report
        differing = sum(found[name] for name in ("inserted", "retracted", "errs_inserted", "errs_retracted"))
    except _UNREPEATABLE as error:
        sys.stderr.write(f"the last refresh cannot be evaluated again: {error}\n")
        if left is None:  # its commit is forgotten: no difference is known
            return 0
        differing = abs(refresh.before.rows - left.rows) + abs(refresh.before.errs - left.errs)
        differing = max(differing, 1)
    return differing


def _left(view: _View) -> Contents | None:
    """The counts of the newest refresh, as its manifest says; empty before the first. `None`: it is no longer known."""
    for commit in reversed(view.state.commits):
        stats = view.client.manifest(commit).stats
        if "contents_0" in stats:
            return Contents(stats["rows"], stats["errs"], (stats["contents_0"], stats["contents_1"]))
    return EMPTY if Refreshed.of(view.state.sources) is None else None


def run_without_output(frame: DataFrame) -> None:
    """Compute every row, for what is observed on the way."""
    progress.enter("write")
    frame.write.format("noop").mode("overwrite").save()


def check_limits(config: ViewConfig, refresh: Refresh) -> None:
    """Raise `TooManyUpdates` if the refresh exceeds the view's limits."""
    limits, counts = config.limits, refresh.report
    for what, most in (("updates", limits.max_updates), ("rows", limits.max_rows)):
        found = counts[what]
        if most is not None and found > most:
            raise TooManyUpdates(
                f"view {config.name}: the refresh has {found} {what}; at most {most} are allowed"
                f" (limits.max_{what}). Nothing was committed: look at it with `persist run {config.name} --read-only`,"
                " then correct the query or raise the limit"
            )


def _dry_run(view: _View, schema: CollectionSchema, installed: Planned[Refresh], as_of: int) -> DryRun:
    run_without_output(installed.updates)
    stats = _corrected(view, schema, installed, installed.updates).report
    columns = [quoted(column.name) for column in schema.columns]
    shown = [DIFF, *columns, *_SHOWN_OF_ERRS]
    ordered = installed.updates.orderBy(ERR_KIND, *columns, DIFF).limit(SAMPLE_ROWS)
    texts = ordered.selectExpr(
        f"to_json(struct({', '.join(shown)}), map('ignoreNullFields', 'false')) AS row"
    ).collect()
    return DryRun(as_of, stats, tuple(_for_people(json.loads(text["row"])) for text in texts))


def _for_people(update: dict[str, Any]) -> dict[str, Any]:
    """Without the half that is always empty: an update is of a row or of an err."""
    is_err = update[ERR_KIND] is not None
    return {name: value for name, value in update.items() if name == DIFF or (name in _SHOWN_OF_ERRS) == is_err}
