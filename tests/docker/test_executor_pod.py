"""The pod that Spark makes for an executor of `docker/kubernetes`, by its own classes: no test has a cluster."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

KUBERNETES = Path(__file__).resolve().parents[2] / "docker" / "kubernetes"
POD_IP = "10.1.2.3"


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A JVM with Spark's classes, and the environment of the server's container. No Spark runs in it."""
    jars = Path(importlib.import_module("pyspark").__path__[0]) / "jars"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp")
    (py4j,) = jars.glob("py4j-*.jar")
    gateways: Any = importlib.import_module("py4j.java_gateway")  # it has no types
    gateway = gateways.JavaGateway.launch_gateway(classpath=f"{jars}/*", jarpath=str(py4j), die_on_exit=True)
    with gateway.java_process as process:
        yield gateway.jvm
        gateway.shutdown()
        process.kill()


def test_the_cluster_takes_it_and_it_finds_the_driver(jvm: Any, tmp_path: Path) -> None:
    objects = list(yaml.safe_load_all((KUBERNETES / "spark-connect.yaml").read_text()))
    template = next(each for each in objects if each["metadata"]["name"] == "spark-executor-template")
    (tmp_path / "executor.yaml").write_text(template["data"]["executor.yaml"])
    (server,) = next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"]
    given = dict(each.split("=", 1) for each in server["args"] if each.startswith("spark."))
    given |= {"spark.kubernetes.executor.podTemplateFile": str(tmp_path / "executor.yaml")}
    given |= {"spark.master": server["args"][server["args"].index("--master") + 1], "spark.app.name": "server"}
    conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in given.items():
        conf.set(name, value.replace("$(POD_IP)", POD_IP).replace("$(POD_NAME)", "server-0"))
    made = _executor_pod(jvm, conf)
    assert made["env"]["SPARK_DRIVER_URL"] == f"spark://CoarseGrainedScheduler@{POD_IP}:7078"
    assert sorted(made["paths"]) == ["/opt/spark/conf", "/tmp"], "a path that is there twice is refused"


def _executor_pod(jvm: Any, conf: Any) -> dict[str, Any]:
    def constant(of: str) -> Any:
        return jvm.java.lang.Class.forName(f"org.apache.spark.{of}$").getField("MODULE$").get(None)

    nothing = jvm.scala.Option.empty()
    executor = jvm.org.apache.spark.deploy.k8s.KubernetesExecutorConf(conf, "app", "1", nothing, 0)
    secret_file = constant("internal.config.package").AUTH_SECRET_FILE()
    security = jvm.org.apache.spark.SecurityManager(conf, nothing, secret_file)
    security.initializeAuth()
    profile = constant("resource.ResourceProfile").getOrCreateDefaultProfile(conf)
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    builder = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    container = builder.buildFromFeatures(executor, security, client, profile).pod().container()
    return {
        "env": {each.getName(): each.getValue() for each in container.getEnv()},
        "paths": [each.getMountPath() for each in container.getVolumeMounts()],
    }
