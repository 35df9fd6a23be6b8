"""Random histories of a collection that changes, by commands, beside the oracle `tests.oracle.changing`.

    step: drop, replace or take out files; run; evolve the file; merge, collect garbage; reprocess; rebuild, swap back;
          restore, fork, erase; refresh a view
    check: plain reads, the command line and (in Spark) its frames are the oracle's, at all times that can be read

A command may refuse what the oracle cannot know (`REFUSALS`); then it has changed nothing. The write stage is Spark's,
or, without a session, plain Python's: it decodes and drains as the oracle does, and all else is real.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persist_core.cli import reprocess as cli_reprocess
from persist_core.cli import run as cli_run
from persist_core.cli.main import run_command
from persist_core.config.view import ViewConfig
from persist_core.contents.batch import BatchDescription
from persist_core.handles.client import PersistClient
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.maintenance.fsck import fsck
from persist_core.protocol import stages
from persist_core.spark_job.spec import JobSpec
from persist_core.time_text import parse_time
from persist_spark.upsert.job import run_write_job
from persist_spark.view.refresh import run_view_job
from tests.oracle.changing import DAY_MS, Collection, Definition, Drop, Field, History, Point
from tests.oracle.sequence import OrderMemory
from tests.spark.change_columns import BEGIN, OP, SEQ, SHOP, WEIGHT, WIDTH, Columns
from tests.spark.change_files import loaded, written
from tests.spark.change_plain import write_plain
from tests.spark.change_reads import Reads, shown

NAME, VIEW = "things", "seen"
START = parse_time("2026-01-01")
REFUSALS = {  # of each command: why it may change nothing
    "restore": "has no checkpoint|from another generation|keys were erased|cannot be (restored|read)|below since",
    "reprocess": "expected a time before the upper|are no longer known|keys were erased|closed or empty"
    "|another reprocess of things has ended this one|restored or dropped in the meantime",
    "rebuild": "keys were erased|closed or empty|does not fit",
    "erase": "shares files|holds contents of|is due first",
}


class World:
    """See the module. `spark`: the session of the write stage, if there is one."""

    def __init__(self, folder: Path, seed: int, spark: SparkSession | None, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.spark, self.chance = folder, spark, random.Random(f"change {seed}")
        where = PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db")
        self.options = ["--blob-uri", where.blob_uri, "--consensus-uri", where.consensus_uri]
        self.client = PersistClient(open_location(where))
        self.reads = Reads(self.client, self.chance, lambda *command: self.persist(*command) or "", spark)
        patch.setattr(cli_run, "write_batches", self._write_all)
        patch.setattr(cli_reprocess, "write_batch", self._write)
        is_log = spark is None or self.chance.random() < 0.5
        fields = [Field(SHOP, "shop", "string"), Field(OP, "op", "string"), Field(WEIGHT, "weight", "int")]
        fields += [] if is_log else [Field(SEQ, "seq", "bigint")]
        fields += BEGIN
        history = self.chance.choice(["all", "all", "3 days"])
        definition = Definition(("id",), "int", tuple(fields), history=history)
        orders = None if is_log else OrderMemory()
        self.model = Collection(History(definition, orders, WIDTH), definition, is_dated=self.chance.random() < 0.6)
        self.columns = Columns(self.chance)
        kinds = ["json", "csv", "debezium-json"] if spark else ["json"]
        self.kind = self.chance.choice(kinds)
        self.day = self.files = 0
        self.refreshed: dict[int, Counter[Any]] = {}
        self.earlier: dict[int, tuple[int, Any]] = {}  # of a schema version, a time, and the rows as of then
        self.forks: dict[str, tuple[History, int]] = {}
        self.told: list[str] = []
        self.said = ""  # by the last command
        self.meanwhile: list[Callable[[], None]] = []  # what happens within the next job for a hidden shard
        (folder / "views").mkdir()
        (folder / "views" / f"{VIEW}.yaml").write_text(
            f"query: SELECT to_json(struct(*)) AS row FROM {NAME}\nschedule: null\n"
        )
        self.define(definition)

    # What a user does.

    def steps(self, count: int) -> None:
        """Random ones, each of which is checked."""
        self.drop()
        self.run()
        actions: list[Callable[[], None]] = [
            self.days, self.days, self.days, self.run, self.replace_one, self.take_out, self.evolve, self.evolve,
            self.merge, self.merge, self.collect, self.reprocess, self.reprocess, self.rebuild, self.swap_back,
            self.restore, self.fork, self.erase, self.refresh, self.refresh,
        ]  # fmt: skip
        for _ in range(count):
            action = self.chance.choice(actions)
            self.told.append(action.__name__)
            action()
            self.check()

    def define(self, definition: Definition) -> None:
        """Write the file."""
        self.model.definition = definition
        columns = {"id": {"type": definition.id_type}}
        for each in definition.fields:
            renamed = {} if each.renamed_from is None else {"renamed_from": each.renamed_from}
            columns[each.name] = {"type": each.type, **renamed}
        dated = "in/date={date:%Y-%m-%d}/*.jsonl"
        body: dict[str, Any] = {
            "source": {"path": dated if self.model.is_dated else "in/*.jsonl", "format": self.kind},
            "key": list(definition.key),
            "columns": columns,
            "dropped": list(definition.dropped),
            "history": definition.history,
            "limits": {"max_errors": None},
            "retention": {"keep_last": 100, "snapshot_every": 2},
        }
        if self.kind != "debezium-json":
            body["delete"] = {"column": "op", "values": ["D"]}
        if self.model.is_dated:
            body["time"] = {"source": "path", "late": "lift"}
        if not self.model.is_log:
            by: Any = {"by": {"type": "bigint", "field": "ts_ms"}} if self.kind == "debezium-json" else ["seq"]
            body["order"] = {"mode": "sequence", "by": by}
        elif self.kind == "debezium-json":
            body["order"] = {"mode": "log"}
        (self.folder / f"{NAME}.yaml").write_text(json.dumps(body))

    def drop(self, day: int | None = None) -> None:
        """A new file, of this day or a late one."""
        if day is None:
            day = self.day if self.chance.random() < 0.8 else self.chance.randrange(self.day + 1)
        name = f"{self.files}.jsonl"
        self.files += 1
        if self.model.is_dated:
            name = f"date={_day(day)}/{name}"
        date_ms = START + day * DAY_MS if self.model.is_dated else None
        count = self.chance.randrange(1, 6)
        self._put(name, Drop(0, date_ms, tuple(self.columns.record(self.model.definition) for _ in range(count))))

    def days(self) -> None:
        """Some files, and a run."""
        for _ in range(self.chance.randrange(3)):
            self.drop()
        self.run()

    def run(self) -> None:
        self.day += self.chance.choice([0, 1, 1, 2])
        until = START + self.day * DAY_MS
        expected = self.model.run(until)
        planned = self.persist("plan", NAME, *self._files) or ""
        versions = len(self.client.ensure_shard(NAME).schemas.versions)
        self.persist("run", NAME, "--until", str(until), *self._files)
        if expected and versions:
            is_evolved = len(self.client.state(NAME).schemas.versions) > versions
            assert is_evolved == ("evolves the schema" in planned), planned
        if expected:
            self._committed()

    def replace_one(self) -> None:
        """Other bytes under the same name: some records changed, some gone, some new."""
        if not self.model.files:
            return
        name = self.chance.choice(sorted(self.model.files))
        drop = self.model.files[name]
        kept = [each for each in drop.records if self.chance.random() < 0.8]
        changed = [{**each, "weight": self.columns.value("i")} if self.chance.random() < 0.5 else each for each in kept]
        new = [self.columns.record(self.model.definition) for _ in range(self.chance.randrange(2))]
        self._put(name, Drop(drop.version + 1, drop.date_ms, (*changed, *new)))

    def take_out(self) -> None:
        if len(self.model.files) > 2:
            name = self.chance.choice(sorted(self.model.files))
            del self.model.files[name]
            (self.folder / "in" / name).unlink()

    def evolve(self) -> None:
        """Change the file; the next commit is by it."""
        self.define(self.columns.evolved(self.model.definition, self.model.now.definition))

    def merge(self) -> None:
        """In steps as small as they can be."""
        size = self.chance.choice(["1", "3000", "1000000"])
        self.persist("maintain", NAME, "--max-merge-bytes", size, "--max-merges", self.chance.choice(["1", "3"]))

    def collect(self) -> None:
        """Garbage, without any grace: no job runs."""
        for _ in range(2):
            self.persist("gc", "--grace-hours", "0", "--intent-hours", "0")

    def reprocess(self) -> None:
        from_ms = START + self.chance.randrange(self.day + 1) * DAY_MS
        command = ["reprocess", NAME, "--from", str(max(from_ms, 1)), "--take-back-gone", *self._files]
        if self.chance.random() < 0.4:
            self.persist(*command, "--dry-run", refused=REFUSALS["reprocess"])
            if self.chance.random() < 0.5:
                return
            if self.chance.random() < 0.5:
                self.replace_one()
        if self.chance.random() < 0.3:
            self.meanwhile = [self.chance.choice([self.run, self.restore, self.reprocess, self.fork, self.merge])]
        said = self.persist(*command, "--yes", refused=REFUSALS["reprocess"])
        self.meanwhile = []
        if said is None:
            return
        found = re.search(r"replaying things from (?:the beginning|checkpoint (\S+)) \(", self.said)
        assert found, self.said
        point = self.model.now.points[found[1]] if found[1] else None
        replay = self.model.replayed(point)
        replaced, gone = self.model.differing(point.progress if point else {})
        new = replay.progress.keys() - self.model.now.progress.keys()
        shown = self.model.now.copy()
        shown.evolve(self.model.definition)
        is_changed = replay.contents(replay.upper - 1) != shown.contents(shown.upper - 1)
        is_committed = self.client.state(NAME).upper.time != self.model.now.upper
        assert is_committed or not (replaced or gone or new or is_changed), (replaced, gone, new)
        if is_committed:
            self.model.correct(replay)
            self._committed()

    def rebuild(self) -> None:
        """By another key, or another type."""
        definition = self.model.definition
        key = self.chance.choice([("id",), ("shop", "id")])
        self.define(replace(definition, key=key, id_type=self.chance.choice(["int", "bigint"])))
        if self.chance.random() < 0.3:
            self.persist("rebuild", NAME, "--dry-run", "--take-back-gone", *self._files, refused=REFUSALS["rebuild"])
            if self.chance.random() < 0.5:
                self.define(definition)
                return
        if self.chance.random() < 0.3:
            self.meanwhile = [self.chance.choice([self.restore, self.fork, self.merge, self.drop])]
        said = self.persist("rebuild", NAME, "--yes", "--take-back-gone", *self._files, refused=REFUSALS["rebuild"])
        self.meanwhile = []
        if said is None:
            self.define(definition)
            return
        if said.startswith("nothing to do"):  # repeated
            return
        self.model.swap(self.model.rebuilt())
        self.earlier = {}
        self._committed()

    def swap_back(self) -> None:
        """By the file as it was then."""
        if not self.model.kept:
            return
        number, definition = max(self.model.kept), self.model.definition
        self.define(self.model.kept[number].definition)
        back = f"--swap-back --generation {number} --yes --take-back-gone".split()
        if self.persist("rebuild", NAME, *back, *self._files, refused=REFUSALS["rebuild"]) is None:
            self.define(definition)
            return
        self.model.swap(self.model.back(number))
        self.earlier = {}
        self._committed()

    def restore(self) -> None:
        if self.model.now.points:
            name = self.chance.choice(sorted(self.model.now.points))
            newest = self.client.state(NAME).newest_commit
            is_there = newest is None or name in (newest.checkpoint_id, newest.restored_from)
            if self.persist("restore", NAME, "--to", name, refused=REFUSALS["restore"]) is not None and not is_there:
                self.model.restore(self.model.now.points[name])
                self._committed()

    def fork(self) -> None:
        """One is dropped for each that is made."""
        for each in self.forks:
            self.persist("drop", each, "--yes", "--force")
        self.forks = {}
        if self.model.now.points:
            name, fork = self.chance.choice(sorted(self.model.now.points)), f"fork{len(self.told)}"
            if self.persist("restore", NAME, "--to", name, "--as", fork, refused=REFUSALS["restore"]) is not None:
                self.forks[fork] = self.model.now.copy(), self.model.now.points[name].upper - 1

    def erase(self) -> None:
        """A key that there is, or was; generations and forks are given up first."""
        slots = sorted({update.slot for update in self.model.now.updates}, key=repr)
        if not slots:
            return
        slot = self.chance.choice(slots)
        for number in list(self.model.kept):
            self.persist("rebuild", NAME, "--give-up", "--generation", str(number), *self._files)
            del self.model.kept[number]
        self.persist("rebuild", NAME, "--give-up", *self._files)
        self.persist("reprocess", NAME, "--give-up", *self._files)
        for each in self.forks:
            self.persist("drop", each, "--yes", "--force")
        self.forks = {}
        keys = [text for cell in slot for text in ("--key", str(cell))]
        before = self.client.state(NAME).upper
        if self.persist("erase", NAME, *keys, "--reason", "asked", refused=REFUSALS["erase"]) is not None:
            after = self.client.state(NAME).upper
            self.model.erase(slot, after.time or 0)
            self.earlier = {}
            if after != before:
                self._committed()

    def refresh(self) -> None:
        """The view, as of now."""
        if self.spark is None:
            return
        upper = self.model.now.upper
        if self.refreshed and upper - 1 <= max(self.refreshed):
            return
        self.persist("run", VIEW, "--until", str(upper), *self._files, "--views", str(self.folder / "views"))
        found = Counter({loaded(dict(row)): count for row, count in shown(self.model.now, upper - 1)[0].items()})
        self.refreshed[upper - 1] = found

    def check(self) -> None:
        """All reads."""
        state, reads = self.client.state(NAME), self.reads
        assert state.upper.time == self.model.now.upper
        report = fsck(self.client, NAME)
        assert report.is_clean, report.violations
        reads.check(state, self.model.now, NAME)
        version, time = len(state.schemas.versions), self.model.now.upper - 1
        self.earlier = {each: told for each, told in self.earlier.items() if each < version and told[0] < time}
        for each, (then, rows) in self.earlier.items():
            reads.check_earlier(state, each, then, rows)
        self.earlier[version] = time, shown(self.model.now, time)[0]
        for number, kept in self.model.kept.items():
            name = state.origin.swaps[number].kept
            reads.check(self.client.state(name), kept, name)
        for fork, (model, time) in self.forks.items():
            reads.check_plain(fork, time, model)
        since = self.client.state(VIEW).since.time or 0 if self.refreshed else 0
        for time, rows in self.refreshed.items():
            if time >= since:
                found = self.client.open_reader(VIEW).snapshot(time).to_pylist()
                assert Counter(loaded(json.loads(row["row"])) for row in found) == rows, time

    # How it is done.

    @property
    def _files(self) -> tuple[str, ...]:
        return ("--collections", str(self.folder))

    def persist(self, *command: str, refused: str | None = None) -> str | None:
        """Its output; `None` if it was refused."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command([*command, *self.options])
        self.told.append(" ".join(command[:4]) + f": {code}")
        if code in (2, 3, 5) and refused is not None and re.search(refused, err.getvalue()):
            self.told.append(err.getvalue().strip().splitlines()[-1][:200])
            return None
        assert code == 0, f"{' '.join(command)}: {code}\n{out.getvalue()}\n{err.getvalue()}"
        self.said = err.getvalue()
        return out.getvalue()

    def _committed(self) -> None:
        newest = self.client.state(NAME).newest_commit
        assert newest is not None
        now = self.model.now
        now.points[newest.checkpoint_id] = Point(now.upper, dict(now.progress), now.orders)

    def _put(self, name: str, drop: Drop) -> None:
        self.model.files[name] = drop
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(self.kind, drop.records))
        os.utime(path, (1_700_000_000 + drop.version,) * 2)

    def _write_all(self, client: PersistClient, start: object, asked: list[tuple[Any, BatchDescription]]) -> Any:
        return [self._write(client, start, *each) for each in asked]

    def _write(self, client: PersistClient, _start: object, config: Any, description: BatchDescription) -> str:
        if "~" in description.shard and self.meanwhile:
            action = self.meanwhile.pop()
            self.told.append(f"meanwhile {action.__name__}")
            action()
        if self.spark is None:
            with stages.outdated_first(client, description):
                return write_plain(client, config, description, self.model)
        item = JobSpec(description, config, client.ids.uuid7())
        (run_view_job if isinstance(config, ViewConfig) else run_write_job)(self.spark, item, client.location)
        return item.answer_key


def _day(day: int) -> str:
    return f"2026-{1 + day // 28:02}-{1 + day % 28:02}"
