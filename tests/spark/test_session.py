"""A job has a Spark session of its own: it changes nothing in the user's, and the user's changes nothing in it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import functions as F

from persist_core.config.collection import CollectionConfig
from persist_core.handles.client import PersistClient
from persist_core.keys import manifest_key
from persist_core.location.open import open_location
from persist_core.location.settings import PersistLocation
from persist_core.protocol import stages
from persist_core.protocol.stages import Minted
from persist_core.shard.state import Committed
from persist_core.spark_job.installation import HUGE_METHODS
from persist_core.spark_job.spec import JobSpec
from persist_spark.compat import SPARK_VERSION
from persist_spark.connect import quiet_client
from persist_spark.decode.formats import decode
from persist_spark.messages import names_set, send_fewer
from persist_spark.session import FASTER, METHOD_LIMIT, OUR_PLANS, REQUIRED, STATIC, method_limit, own_session
from persist_spark.upsert import job
from persist_spark.upsert.job import run_write_job
from tests.spark.view_shards import BY_COLOUR, ITEMS, ViewShards, texts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


@pytest.fixture
def of_user(spark: SparkSession) -> SparkSession:
    """A user's session, which is not as ours."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    session.conf.set("spark.sql.shuffle.partitions", "7")
    return session


def settings_of(spark: SparkSession) -> dict[str, str]:
    return {row["key"]: row["value"] for row in spark.sql("SET").collect()}


class Collections:
    """Collections of one record each, whose time of day has no zone, in one location."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = open_location(PersistLocation(f"file://{folder}/blobs", f"sqlite:///{folder}/consensus.db"))
        self.client = PersistClient(self.location)

    def spec(self, name: str) -> JobSpec:
        """The job of a first batch."""
        body: dict[str, Any] = {
            "name": name,
            "source": {"path": f"{name}/*.jsonl", "format": "json"},
            "key": "id",
            "columns": {"id": "bigint", "at": "timestamp"},
            "time": {"field": "at"},
            "delete": "none",
            "base_dir": str(self.folder),
        }
        config = CollectionConfig.model_validate(body)
        (self.folder / name).mkdir()
        (self.folder / name / "1.jsonl").write_text('{"id": 1, "at": "1970-01-01 12:00:00"}\n')
        minted = stages.mint(self.client, config, until=DAY_MS, writer="test")
        assert isinstance(minted, Minted)
        return JobSpec(minted.description, config, self.client.ids.uuid7())

    def times(self, spec: JobSpec) -> list[str]:
        """The job's rows, once they are committed."""
        shard = spec.description.shard
        key = manifest_key(shard, spec.attempt)
        assert isinstance(stages.append(self.client, spec.description, key), Committed)
        return [row["at"].isoformat() for row in self.client.open_reader(shard).snapshot().to_pylist()]


def test_two_concurrent_jobs_leave_a_users_session_as_it_was(
    of_user: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, before = Collections(tmp_path), settings_of(of_user)
    both = threading.Barrier(2, timeout=60)

    def together(*arguments: Any, **named: Any) -> Any:
        both.wait()  # each has its settings
        return decode(*arguments, **named)

    monkeypatch.setattr(job, "decode", together)
    specs = [found.spec(name) for name in ("one", "other")]
    with ThreadPoolExecutor(2) as threads:
        for staged in [threads.submit(run_write_job, of_user, spec, found.location) for spec in specs]:
            staged.result()
    assert [found.times(spec) for spec in specs] == [["1970-01-01T12:00:00+00:00"]] * 2
    assert settings_of(of_user) == before


@pytest.mark.parametrize(
    ("master", "name", "limit"),
    [
        ("local", "driver.extra", "20000"),
        ("local[2]", "driver.default", "20000"),
        ("local[2]", "executor.extra", "8000"),
        ("spark://localhost:7077", "driver.extra", "8000"),
        ("yarn", "executor.extra", "20000"),
        ("k8s://host", "executor.default", "20000"),
    ],
)
def test_large_methods_if_the_jvms_of_tasks_compile_them(master: str, name: str, limit: str) -> None:
    conf = {"spark.master": master, f"spark.{name}JavaOptions": f"-XX:+UseSerialGC {HUGE_METHODS}"}
    assert method_limit(cast("SparkSession", SimpleNamespace(conf=conf))) == limit
    conf[f"spark.{name}JavaOptions"] = "-XX:+DontCompileHugeMethods"
    assert method_limit(cast("SparkSession", SimpleNamespace(conf=conf))) == "8000"


def test_a_job_of_a_jvm_of_ours_has_large_methods(spark: SparkSession, tmp_path: Path) -> None:
    with own_session(spark, Collections(tmp_path).spec("things")) as own:
        assert own.conf.get(METHOD_LIMIT) == "20000"


def test_a_view_does_not_read_a_users_temporary_view(of_user: SparkSession, tmp_path: Path) -> None:
    of_user.range(3).createTempView("items")
    shards = ViewShards(of_user, tmp_path)
    shards.commit("items", ITEMS, 10, [((1, "red", 5), 1, 1)])
    shards.refresh(BY_COLOUR)
    assert shards.rows("by_colour") == texts([{"colour": "red", "total": 5}])
    assert of_user.table("items").count() == 3


def test_a_job_description_names_its_shard_and_is_reset(
    of_user: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Collections(tmp_path)
    spec = found.spec("described")
    context: Any = of_user.sparkContext
    context.setLocalProperty("spark.jobGroup.id", None)  # another test's: jobs are found by it below
    context.setJobDescription("the user's")

    def run_one(own: SparkSession, *rest: Any, **named: Any) -> Any:
        own.range(3).count()
        return decode(own, *rest, **named)

    monkeypatch.setattr(job, "decode", run_one)
    before = max(context.statusTracker().getJobIdsForGroup(None), default=-1)
    try:
        run_write_job(of_user, spec, found.location)
        assert context.getLocalProperty("spark.job.description") == "the user's"
    finally:
        context.setJobDescription(None)
    store = context._jsc.sc().statusStore()
    started = [store.job(number) for number in context.statusTracker().getJobIdsForGroup(None) if number > before]
    assert {each.description().get() for each in started} == {f"persist described {spec.description.interval}"}


def test_sparks_client_stays_quiet_after_logging_was_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`logging.config.dictConfig`, with which a task of Airflow sets logging up, switches every logger on."""
    pytest.importorskip("grpc")  # of pyspark[connect]
    core: Any = importlib.import_module("pyspark.sql.connect.client.core")
    monkeypatch.setattr(core.logger, "disabled", False)
    quiet_client({"SPARK_CONNECT_LOG_LEVEL": "info"})
    assert not core.logger.disabled, "a user wants it"
    quiet_client({})
    assert core.logger.disabled


def test_a_job_asks_py4j_for_a_class_of_spark_once(spark: SparkSession, tmp_path: Path) -> None:
    with own_session(spark, Collections(tmp_path).spec("asked")) as own:
        jvm: Any = own.sparkContext._jvm
        for name in ("functions", "org.apache.spark.sql.functions", "PythonUtils"):
            assert getattr(jvm, name) is getattr(jvm, name)
        assert jvm.functions.col is jvm.functions.col


def test_ansi_mode_does_not_follow_the_environment(spark: SparkSession, tmp_path: Path) -> None:
    """Its default in a JVM is what SPARK_ANSI_SQL_MODE says: without it a sum that overflows is a wrong number."""
    with own_session(spark, Collections(tmp_path).spec("sums")) as own:
        assert settings_of(own)["spark.sql.ansi.enabled"] == str(SPARK_VERSION >= (4, 0)).lower()


@pytest.mark.family("Sparks")
def test_code_for_many_collections_is_compiled_once(spark: SparkSession) -> None:
    own = spark.newSession()
    metrics: Any = own._jvm
    compiled = metrics.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    counts = []
    for _ in range(2):
        before = compiled.getCount()
        for number in range(120):  # Spark keeps 100 classes by default
            own.range(1).selectExpr(f"id + {number}").collect()
        counts.append(compiled.getCount() - before)
    assert counts[0] >= 120
    assert counts[1] == 0


def test_a_list_of_columns_takes_few_messages(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway: Any = importlib.import_module("py4j.java_gateway")
    own = spark.newSession()
    send_fewer(own)
    F.col("id")
    sent, send = list[str](), gateway.GatewayClient.send_command

    def counted(client: Any, command: str, *arguments: Any, **options: Any) -> Any:
        sent.append(command)
        return send(client, command, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(gateway.GatewayClient, "send_command", counted)
        both = F.struct(*[F.col("id") for _ in range(25)], F.lit(1), F.lit(True))
    assert len([command for command in sent if not command.startswith("m")]) < 15, sent  # `m` lets go of what is gone
    (row,) = own.range(1).select(both.alias("all")).collect()
    assert list(row["all"]) == [*[0] * 25, 1, True]
    assert row["all"][26] is True


def test_the_names_of_a_sessions_settings_are_read_at_once(spark: SparkSession) -> None:
    if SPARK_VERSION < (4, 0):
        pytest.skip("Spark 3.5 lists its settings by SQL")
    own = spark.newSession()
    own.conf.set("spark.sql.catalog.odd", "a, b=c, [spark.sql.ansi.enabled=d]")
    assert sorted(names_set(own)) == sorted(own.conf.getAll)


@pytest.mark.skipif(SPARK_VERSION < (4, 1), reason="older releases do not have all of them")
def test_every_setting_is_one_that_spark_reads() -> None:
    """Spark takes any name, and ignores the ones that it does not know."""
    package = importlib.util.find_spec("pyspark")
    assert package is not None
    assert package.origin is not None
    declared = b""
    for jar in (Path(package.origin).parent / "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as classes:
            places = re.compile(r"/(config/\w+\$|SQLConf\$|StaticSQLConf\$|SqlApiConfHelper\$)\.class$")
            declared += b"".join(classes.read(name) for name in classes.namelist() if places.search(name))
    names = {*REQUIRED, *FASTER, *OUR_PLANS, *STATIC, METHOD_LIMIT}
    unknown = {name for name in names if name.encode() not in declared}
    assert {name for name in unknown if not name.startswith("spark.hadoop.")} == set()
