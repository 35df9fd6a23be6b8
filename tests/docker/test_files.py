"""The files of docker/ agree with each other and with the code. `make check` lints them, `make test-docker` runs
them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.cli.cli_parser import get_parser
from airflow.configuration import retrieve_configuration_description
from packaging.requirements import Requirement

from persist_core.location.settings import ENV_BLOB_URI, ENV_CONSENSUS_URI
from persist_core.location.uri import parse_uri
from persist_core.spark_job.process import connect_environment
from tests.servers.lifeline import wait_until

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
OWN = [name for name, service in COMPOSE["services"].items() if "airflow-persist" in str(service["image"])]
ALL_SECRETS = set(COMPOSE["secrets"])
EMBEDDED = "../plugins/persist_airflow/embedded/home.py"
AIRFLOW_SETTINGS = ("compose.yaml", "airflow.Dockerfile", "kubernetes/airflow-values.yaml", EMBEDDED)


def test_every_secret_is_declared_made_and_used() -> None:
    made = set(re.findall(r"^put (\w+) ", (DOCKER / "secrets.sh").read_text(), re.MULTILINE))
    used = {name for service in COMPOSE["services"].values() for name in service.get("secrets", ())}
    assert made == ALL_SECRETS == used
    text = (DOCKER / "compose.yaml").read_text()
    assert set(re.findall(r"/run/secrets/(\w+)", text)) <= ALL_SECRETS


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_has_the_secrets_that_it_reads(name: str) -> None:
    service = COMPOSE["services"][name]
    named = set(re.findall(r"/run/secrets/(\w+)", json.dumps([service.get("environment"), service.get("command")])))
    assert named <= set(service.get("secrets", ()))


def test_no_secret_and_no_open_port_is_in_the_compose_file() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for variable in service.get("environment", {}):
            assert not re.search(
                r"(PASSWORD|SECRET_KEY|SECRET_ACCESS_KEY|FERNET_KEY|JWT_SECRET|SQL_ALCHEMY_CONN)$", variable
            )


def test_volumes_and_networks_are_declared() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{name}: {volume}"
            else:
                assert source in COMPOSE["volumes"], f"{name}: {volume}"
        assert service["networks"] == ["stack"], name


def test_our_services_are_locked_down() -> None:
    for name in OWN:
        service = COMPOSE["services"][name]
        if name != "s3":
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name


def test_the_location_of_the_stack_can_be_opened() -> None:
    for name in ("scheduler", "demo", "spark-connect"):
        environment = COMPOSE["services"][name]["environment"]
        for variable, role in ((ENV_BLOB_URI, "blob"), (ENV_CONSENSUS_URI, "consensus")):
            known = {"s3": frozenset({"endpoint", "region"}), "postgresql": frozenset[str]()}
            assert parse_uri(environment[variable], role, known).scheme in known
    connection = json.loads(COMPOSE["services"]["scheduler"]["environment"]["AIRFLOW_CONN_SPARK_DEFAULT"])
    url = f"sc://{connection['host']}:{connection['port']}"
    assert connect_environment(url)["SPARK_REMOTE"] in (DOCKER / "demo.sh").read_text()


def test_the_demo_calls_commands_that_airflow_has() -> None:
    found = re.findall(r"airflow ((?:[a-z][a-z-]+ )+)", (DOCKER / "demo.sh").read_text())
    assert len(found) == 3
    for words in found:
        with pytest.raises(SystemExit, match="0"):
            get_parser().parse_args([*words.split(), "--help"])


@pytest.mark.parametrize("file", AIRFLOW_SETTINGS)
def test_every_setting_of_airflow_is_one_that_it_has(file: str) -> None:
    """Airflow takes any name, and ignores the ones that it does not know."""
    known = retrieve_configuration_description(include_providers=False)
    named = re.findall(r"AIRFLOW__([A-Z_]+?)__([A-Z_]+)", (DOCKER / file).read_text())
    assert named
    for section, option in named:
        found = known.get(section.lower(), {}).get("options", {})
        assert option.lower() in found or option.removesuffix("_CMD").lower() in found, option


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE))
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        assert base in stages or base.strip("${}") in arguments, f"{base}: a base comes from a build argument"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    for source in " ".join(copied).split():
        path = re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], source)
        assert (ROOT / path).exists(), path
        assert _reaches_the_build(path), f"{path}: .dockerignore leaves it out"
    assert re.search(r"^USER \d+", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
    assert "org.opencontainers.image.licenses" in text


def test_the_airflow_image_has_every_extra_that_fits_it() -> None:
    """The lock satisfies the extras, so each example of the documents has its provider in the image."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lock = (ROOT / "requirements" / "image-airflow.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    needed = [text for name in extras.keys() - {"airflow", "embedded", "spark", "testing"} for text in extras[name]]
    for requirement in map(Requirement, needed):
        if requirement.name != "airflow-persist":
            assert locked[requirement.name] in requirement.specifier, requirement


def test_the_airflow_image_has_what_the_chart_expects() -> None:
    """Its probes call /entrypoint and its sidecars /clean-logs; it configures the auth manager FAB; and its values
    offer an executor."""
    lock = (ROOT / "requirements" / "image-airflow.txt").read_text()
    for provider in ("fab", "cncf-kubernetes"):
        assert re.search(rf"^apache-airflow-providers-{provider}==", lock, re.MULTILINE), provider
    dockerfile = (DOCKER / "airflow.Dockerfile").read_text()
    for script, called in (("entrypoint.sh", "/entrypoint"), ("clean_logs.sh", "/clean-logs")):
        assert re.search(rf"ln -s /usr/local/bin/{script} {called}\s", dockerfile)
        assert f"docker/{script} " in dockerfile
    values = yaml.safe_load((DOCKER / "kubernetes" / "airflow-values.yaml").read_text())
    assert values["createUserJob"] == {"enabled": False}, "it makes a user whose password is known"
    given = {each["name"]: each["value"] for each in values["env"]}
    parallel = COMPOSE["services"]["scheduler"]["environment"]["AIRFLOW__CORE__PARALLELISM"]
    assert f":-{given['AIRFLOW__CORE__PARALLELISM']}}}" in parallel, "the pod has memory for as many (docs/deploy.md)"


def test_old_logs_are_deleted(tmp_path: Path) -> None:
    old, young = (tmp_path / "logs" / name / "attempt=1.log" for name in ("old", "young"))
    for each in (old, young):
        each.parent.mkdir(parents=True)
        each.touch()
    for each in (old, old.parent):
        os.utime(each, (0, 0))
    groomer = subprocess.Popen([DOCKER / "clean_logs.sh"], env={**os.environ, "AIRFLOW_HOME": str(tmp_path)})
    try:
        wait_until(lambda: not old.exists(), what="an old log is gone")
    finally:
        groomer.terminate()
    assert groomer.wait(10) == 0
    assert young.exists()


def _reaches_the_build(path: str) -> bool:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    return any(path == each or path.startswith(f"{each}/") for each in allowed)


def test_scripts_are_valid_and_executable_where_they_are_started() -> None:
    for script in sorted([*DOCKER.glob("*.sh"), *(ROOT / "tests" / "docker").glob("*.sh")]):
        shell = script.read_text().partition("\n")[0].removeprefix("#!").split()[-1]
        subprocess.run([shell.rpartition("/")[2], "-n", str(script)], check=True, timeout=30)
    for started in ("entrypoint.sh", "s3.sh", "secrets.sh"):
        assert (DOCKER / started).stat().st_mode & 0o111, started


def test_the_entrypoint_reads_secrets_and_starts_executors(tmp_path: Path) -> None:
    """Spark on Kubernetes starts its executors as `executor`, with numbered JVM options in the environment."""
    (tmp_path / "password").write_text("pass word\n")
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$PGPASSWORD" "${PGPASSWORD_FILE:-unset}" "$@"\n')
    java.chmod(0o755)
    names = ("DRIVER_URL", "APPLICATION_ID", "EXECUTOR_ID", "EXECUTOR_CORES", "EXECUTOR_POD_IP", "EXECUTOR_POD_NAME")
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "PGPASSWORD_FILE": str(tmp_path / "password"),
        "SPARK_HOME": "/opt/spark",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        **{f"SPARK_{name}": f"the {name}" for name in names},
        **{f"SPARK_JAVA_OPT_{number}": f"-Doption{number}=a b" for number in range(11)},
    }
    done = subprocess.run(
        [DOCKER / "entrypoint.sh", "executor"], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    password, file, *arguments = done.stdout.splitlines()
    assert (password, file) == ("pass word", "unset")
    assert arguments[:11] == [f"-Doption{number}=a b" for number in range(11)]
    assert arguments[11:15] == ["-Xms1g", "-Xmx1g", "-cp", "/opt/spark/conf::/opt/spark/jars/*"]
    assert arguments[15].endswith(".KubernetesExecutorBackend")
    given = dict(zip(arguments[16::2], arguments[17::2], strict=True))
    assert given["--driver-url"] == "the DRIVER_URL"
    assert given["--podName"] == "the EXECUTOR_POD_NAME"
    assert len(given) == 7


def test_secrets_are_made_once(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_text((DOCKER / "secrets.sh").read_text())
    made = []
    (tmp_path / ".env").write_text("PERSIST_STATSD=True")
    for _ in range(2):
        subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=60)
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert made[0] == made[1]
    env = (tmp_path / ".env").read_text().splitlines()
    assert env == ["PERSIST_STATSD=True", "COMPOSE_PROJECT_NAME=airflow-persist"], "not the name of its folder"
    assert set(made[0]) == ALL_SECRETS
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert all(made[0].values())


def test_the_chart_uses_the_images_and_secrets_of_the_manifest() -> None:
    values = yaml.safe_load((DOCKER / "kubernetes" / "airflow-values.yaml").read_text())
    objects = list(yaml.safe_load_all((DOCKER / "kubernetes" / "spark-connect.yaml").read_text()))
    service = next(
        each for each in objects if each["kind"] == "Service" and each["metadata"]["name"] == "spark-connect"
    )
    given = {each["name"]: each["value"] for each in values["env"]}
    connection = json.loads(given["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert (connection["host"], connection["port"]) == (
        f"spark-connect.{service['metadata']['namespace']}.svc",
        service["spec"]["ports"][0]["port"],
    )
    (stores,) = yaml.safe_load(values["extraEnvFrom"])
    server = next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert stores in server["envFrom"]


def test_airflow_sends_metrics_to_the_exporter() -> None:
    """In the chart's values and in the compose file: the same settings, and a service that has this name and port."""
    values = yaml.safe_load((DOCKER / "kubernetes" / "airflow-values.yaml").read_text())
    given = {each["name"]: each["value"] for each in values["env"] if "METRICS" in each["name"]}
    composed = {k: v for k, v in COMPOSE["services"]["scheduler"]["environment"].items() if "METRICS" in k}
    assert composed.pop("AIRFLOW__METRICS__STATSD_ON") == "${PERSIST_STATSD:-False}"
    assert given == composed | {"AIRFLOW__METRICS__STATSD_ON": "True"}
    service, deployment, _ = yaml.safe_load_all((DOCKER / "kubernetes" / "statsd.yaml").read_text())
    assert service["metadata"]["name"] == given["AIRFLOW__METRICS__STATSD_HOST"]
    assert given["AIRFLOW__METRICS__STATSD_HOST"] in COMPOSE["services"]
    assert service["spec"]["ports"][0]["port"] == int(given["AIRFLOW__METRICS__STATSD_PORT"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] in COMPOSE["services"]["statsd"]["image"]


def kubernetes_objects() -> list[dict[str, Any]]:
    files = yaml.safe_load((DOCKER / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    return [each for file in files for each in yaml.safe_load_all((DOCKER / "kubernetes" / file).read_text())]


@pytest.mark.parametrize("file", sorted(DOCKER.rglob("*.yaml")), ids=lambda path: path.name)
def test_no_key_is_there_twice(file: Path) -> None:
    """PyYAML takes the last one; kustomize refuses the whole folder."""
    found = [root for root in yaml.compose_all(file.read_text(), yaml.SafeLoader) if root is not None]
    while found:
        node = found.pop()
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value]
            assert len(names) == len(set(names)), f"{file.name}: {names} at line {node.start_mark.line + 1}"
            found += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            found += node.value


def test_spark_creates_pods_apart_from_airflows_secrets() -> None:
    objects = kubernetes_objects()
    spark = {each["metadata"]["namespace"] for each in objects if each["kind"] in ("Role", "RoleBinding")}
    assert spark == {"persist-spark"}
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    (role,) = (each for each in objects if each["kind"] == "Role")
    rights = {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
    watched = {"create", "delete", "deletecollection", "get", "list", "watch"}
    assert rights == {"pods": watched, "configmaps": {"create", "deletecollection"}}, "as Spark 4.3 uses them"
    values = (DOCKER / "kubernetes" / "airflow-values.yaml").read_text()
    assert "--namespace persist " in values
    for secret in re.findall(r"SecretName: (\S+)", values):
        assert secret not in (DOCKER / "kubernetes" / "spark-connect.yaml").read_text()


def test_sparks_processes_ask_each_other_for_a_secret(tmp_path: Path) -> None:
    """On Kubernetes Spark makes one. Elsewhere it is the same for all, in a file: argv is for all to see."""
    script = tmp_path / "secrets.sh"
    script.write_text((DOCKER / "secrets.sh").read_text())
    subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=60)
    lines = (tmp_path / "secrets" / "spark_properties").read_text().splitlines()
    properties = dict(line.split(" ") for line in lines)
    assert properties.pop("spark.master.rest.enabled") == "false", "it takes jobs without a secret"
    assert properties.pop("spark.authenticate") == "true"
    assert len(properties.pop("spark.authenticate.secret")) >= 32
    assert not properties, "a properties file replaces Spark's defaults"
    spark = [service["command"] for name, service in COMPOSE["services"].items() if name.startswith("spark-")]
    assert len(spark) == 4
    for command in spark:
        assert command[command.index("--properties-file") + 1] == "/run/secrets/spark_properties"
    server = next(each for each in kubernetes_objects() if each["kind"] == "Deployment" and "connect" in str(each))
    arguments = server["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "spark.authenticate=true" in arguments
    assert not any("authenticate.secret" in each for command in [arguments, *spark] for each in command)


def test_executors_are_locked_down_as_the_server_is() -> None:
    objects = kubernetes_objects()
    template = next(each for each in objects if each["metadata"]["name"] == "spark-executor-template")
    executor = yaml.safe_load(template["data"]["executor.yaml"])["spec"]
    deployment = next(
        each for each in objects if each["metadata"]["name"] == "spark-connect" and each["kind"] == "Deployment"
    )
    server = deployment["spec"]["template"]["spec"]
    (inside,), (container,) = executor["containers"], server["containers"]
    assert executor["securityContext"] == server["securityContext"]
    assert inside["securityContext"] == container["securityContext"]
    assert executor["automountServiceAccountToken"] is False
    given = dict(each.split("=", 1) for each in container["args"] if "=" in each)
    folder, _, file = given["spark.kubernetes.executor.podTemplateFile"].rpartition("/")
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volume = next(each for each in server["volumes"] if each["name"] == mounted[folder])
    assert (volume["configMap"]["name"], file in template["data"]) == ("spark-executor-template", True)
    assert given["spark.kubernetes.executor.podTemplateContainerName"] == inside["name"]
    # Executors get one of the two, by Spark's version: both have to lead to the driver.
    assert given["spark.driver.host"] == given["spark.driver.bindAddress"] == "$(POD_IP)"
    fields = {each["name"]: each.get("valueFrom", {}).get("fieldRef") for each in container["env"]}
    assert fields["POD_IP"] == {"fieldPath": "status.podIP"}
    account = given["spark.kubernetes.authenticate.executor.serviceAccountName"]
    found = next(each for each in objects if each["kind"] == "ServiceAccount" and each["metadata"]["name"] == account)
    assert found["automountServiceAccountToken"] is False
    local = re.search(r"SPARK_LOCAL_DIRS=(\S+)", (DOCKER / "spark.Dockerfile").read_text())
    assert local is not None
    # Spark mounts a volume of its own there unless it finds one with this name: two at one path are refused.
    assert {"name": "spark-local-dir-1", "mountPath": local[1]} in inside["volumeMounts"]


def test_every_pod_has_a_network_policy() -> None:
    """The name of each port that a pod offers, and of the executors'."""
    policies = [each for each in kubernetes_objects() if each["kind"] == "NetworkPolicy"]
    chosen = {tuple(each["spec"]["podSelector"].get("matchLabels", {}).items()): each["spec"] for each in policies}
    assert chosen[()].get("ingress") is None, "the namespace of Spark is closed unless a policy opens it"
    opened = {
        labels: {port["port"] for rule in spec.get("ingress", ()) for port in rule["ports"]}
        for labels, spec in chosen.items()
    }
    assert opened[(("app", "statsd"),)] == {9125, 9102}
    assert opened[(("app", "spark-connect"),)] == {15002, 7078, 7079}
    assert opened[(("spark-role", "executor"),)] == {7079}


def test_every_image_can_be_given_by_digest() -> None:
    kustomization = yaml.safe_load((DOCKER / "kubernetes" / "kustomization.yaml").read_text())
    names = {each["name"] for each in kustomization["images"]}
    used = {
        container["image"].partition(":")[0]
        for each in kubernetes_objects()
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert used == names
    text = (DOCKER / "kubernetes" / "spark-connect.yaml").read_text()
    assert "spark.kubernetes.container.image=$(EXECUTOR_IMAGE)" in text
    ((source, target),) = [(each["source"], each["targets"][0]) for each in kustomization["replacements"]]
    assert source["fieldPath"].endswith("[name=server].image")
    assert target["fieldPaths"] == ["spec.template.spec.containers.[name=server].env.[name=EXECUTOR_IMAGE].value"]
