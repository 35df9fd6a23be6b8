# airflow-persist. `make help` lists the targets. The first use of any of them installs what it needs, from the locked
# files in requirements/, into .venv (and .cache); later uses start at once.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:

# Runs a command inside the virtual environment $(1). Nothing leaks in from the caller's PYTHONPATH or SPARK_HOME.
in = env -u PYTHONPATH -u SPARK_HOME VIRTUAL_ENV="$(CURDIR)/$(1)" PATH="$(CURDIR)/$(1)/bin:$$PATH"
IN = $(call in,.venv)

LOCKS := uv build java go airflow-3.3 airflow-2.11 spark-3.5 spark-4.1 bench image-airflow image-spark lint
CODE := persist_core jobs plugins dags tests
SPARKS := 3.5 4.1
INSTALLER := .cache/uv/installed
BUILD_INPUTS := requirements/build.txt requirements/java.txt pyproject.toml tests/env/install.sh $(INSTALLER)
# Downloads trust whom the machine trusts, where it says so: companies and their proxies have certificates of their own.
export UV_SYSTEM_CERTS ?= $(if $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt),true,false)
# More pytest arguments, for one test: make test ARGS='-k upsert'
ARGS ?=
BENCH ?= aims
# Tests run in two processes: many of them wait for a server or a scheduler. ARGS='-n 0' runs them in one, ARGS='-n 3'
# in three, for a machine with more than two cores.
TWO := -n 2 --dist loadscope --no-loadscope-reorder
# What `make check` has of the tests, and `make test` does not repeat.
RULES := tests/test_house.py tests/test_documents.py tests/test_prose.py

.PHONY: help install check spark-jars s3-servers minio statsd-exporter test test-airflow-2.11 test-spark-matrix test-package \
    test-docker bench demo up down airflow clean lock format docs

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9.-]*:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed ## the whole path on seven bundled days: a real Airflow scheduler, Spark, tables as of two days
	@$(IN) python -m persist_airflow.embedded.run demo

up: .venv/installed ## Airflow's UI and scheduler on 127.0.0.1, with the DAGs of dags/ in it
	@$(IN) python -m persist_airflow.embedded.run up

airflow: .venv/installed ## Airflow's own command line in the home of `make up`: make airflow ARGS='dags list'
	@$(IN) python -m persist_airflow.embedded.run airflow $(ARGS)

down: ## stops what `make up` and `make demo` started
	@if [ -e .venv/installed ]; then $(IN) python -m persist_airflow.embedded.run down; else echo "nothing is installed, so nothing runs"; fi

check: .venv/installed .venv-lint/installed ## style, types, layers, house rules, prose; docker/ and .github/
	@$(IN) ruff check .
	@$(IN) ruff format --check .
	@$(IN) mypy $(CODE)
	@$(IN) lint-imports --no-cache
	@.venv-lint/bin/hadolint docker/*.Dockerfile
	@.venv-lint/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml
	@.venv-lint/bin/kubernetes-validate --strict --quiet docker/kubernetes/spark-connect.yaml docker/kubernetes/statsd.yaml
	@.venv-lint/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@.venv-lint/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/*_*.yml
	@.venv-lint/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(IN) python -m pytest -q -p no:cacheprovider $(RULES)

spark-jars: .venv/installed ## the jars with which Spark reads and writes S3, into .cache/spark-jars (docs/spark-on-s3.md)
	@$(IN) python -m tests.env.spark_jars

# Without the jars the tests on S3 are skipped, and the closing list of real parts names what is missing.
test: .venv/installed s3-servers ## all tests but those of `make check`, on Airflow 3.3 and the newest Spark (ARGS='-k upsert' picks some)
	@$(IN) python -m tests.env.spark_jars || echo "no jars for S3: its tests with Spark are skipped" >&2
	@$(IN) python -m tests.env.spark_jars debezium || echo "no jars of Debezium: tests of its feeds are skipped" >&2
	@$(IN) python -m pytest $(TWO) $(RULES:%=--ignore=%) $(ARGS)

test-airflow-2.11: .venv-airflow-2.11/installed ## parses and runs the DAGs on Airflow 2.11
	@$(call in,.venv-airflow-2.11) python -m tests.env.spark_jars || echo "no jars for S3: its tests are skipped" >&2
	@$(call in,.venv-airflow-2.11) python -m pytest $(TWO) -m airflow_2_11 tests/airflow $(ARGS)

test-spark-matrix: $(SPARKS:%=.venv-spark-%/installed) ## the Spark tests on Spark 3.5 and 4.1
	@failed=; for spark in $(SPARKS); do \
	    echo "Spark $$spark"; \
	    $(call in,.venv-spark-$$spark) python -m tests.env.spark_jars || echo "no jars for S3: its tests are skipped" >&2; \
	    $(call in,.venv-spark-$$spark) python -m pytest tests/spark $(ARGS) || failed="$$failed $$spark"; \
	done; if [ -n "$$failed" ]; then echo "failed on Spark$$failed"; exit 1; fi

# A test server that can't be built does not stop the tests: they skip what needs it and name it at their end.
s3-servers: .venv/installed ## the S3-speaking server that the tests use, built once into .cache (`make test` does it)
	@[ -x .cache/servers/versitygw ] || tests/env/go_server.sh versitygw || true

minio: .venv/installed ## MinIO, a second S3-speaking server: where it is built, the tests use it too
	@[ -x .cache/servers/minio ] || tests/env/go_server.sh minio

statsd-exporter: .venv/installed ## Prometheus' StatsD exporter: where it is built, tests of metrics and dashboards use it
	@[ -x .cache/servers/statsd_exporter ] || tests/env/go_server.sh statsd_exporter

test-package: .venv/installed ## builds the wheel and tries it in new environments, installed by plain pip (10 minutes)
	@$(IN) python -m pytest -v tests/env/check_wheel.py $(ARGS)

test-docker: s3-servers statsd-exporter ## builds the images and runs the main job on the whole compose stack (root; 15 minutes)
	@tests/docker/stack.sh

bench: .venv-bench/installed ## the benchmarks of docs/benchmarks.md (ARGS='--help' for presets; BENCH=upl or views for one)
	@$(call in,.venv-bench) python -m tests.env.spark_jars iceberg
	@$(call in,.venv-bench) python -m tests.benchmarks.$(BENCH) $(ARGS)

docs: .venv/installed ## writes the pages of docs/reference that are made from the code
	@$(IN) python -m tests.env.reference

format: .venv/installed ## rewrites the code in the house's format
	@$(IN) ruff check --fix . && $(IN) ruff format .

lock: $(INSTALLER) ## resolves requirements/*.in into the locked files again (ARGS=--upgrade takes newer versions)
	@for lock in $(LOCKS); do \
	    echo "requirements/$$lock.txt"; \
	    UV_CUSTOM_COMPILE_COMMAND="make lock" .cache/uv/bin/uv pip compile --quiet requirements/$$lock.in \
	        -o requirements/$$lock.txt --generate-hashes --universal \
	        $$([ $$lock = image-airflow ] || echo --override requirements/overrides.txt) \
	        --python-version 3.11 --no-emit-index-url --no-emit-find-links $(ARGS); \
	done

install: .venv/installed ## only installs

clean: ## stops what runs; removes environments, caches, the local Airflow home and the demo's data
	-@$(MAKE) down
	rm -rf .venv .venv-* .cache .airflow .persist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(INSTALLER): requirements/uv.txt tests/env/uv.sh
	@tests/env/uv.sh
	@touch $@

.venv/installed: requirements/airflow-3.3.txt $(BUILD_INPUTS)
	@tests/env/install.sh .venv airflow-3.3
	@touch $@

.venv-lint/installed: requirements/lint.txt $(INSTALLER)
	@.cache/uv/bin/uv venv --quiet --clear --no-python-downloads --python "$$(cat .cache/python)" .venv-lint
	@VIRTUAL_ENV=.venv-lint .cache/uv/bin/uv pip sync --quiet --require-hashes --only-binary :all: requirements/lint.txt
	@touch $@

.venv-%/installed: requirements/%.txt $(BUILD_INPUTS)
	@tests/env/install.sh .venv-$* $*
	@touch $@
