# Spark with the jars for S3 and with airflow-persist: for the master, workers, drivers and the Connect server.
#
#   docker build -f docker/spark.Dockerfile -t airflow-persist-spark .    (from the top folder of the project)
#
# Build arguments: PYTHON_IMAGE, for production by digest; PIP_INDEX_URL, a mirror for pip; DEFAULT_ARTIFACT_REPOSITORY, a
# mirror of Maven's repository; VERSION and REVISION for the labels.
ARG PYTHON_IMAGE=python:3.13-slim-trixie

FROM ${PYTHON_IMAGE} AS wheel
ARG PIP_INDEX_URL
WORKDIR /source
COPY requirements/build.txt requirements/build.txt
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY persist_core persist_core
COPY jobs jobs
COPY plugins plugins
COPY dags dags
COPY docker/metrics docker/metrics
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel .

FROM ${PYTHON_IMAGE} AS java
# hadolint ignore=DL3008 # the release's current security updates, not one frozen version
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-21-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/*

FROM java AS environment
ARG PIP_INDEX_URL
ARG DEFAULT_ARTIFACT_REPOSITORY
WORKDIR /source
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY requirements/build.txt requirements/image-spark.txt requirements/
# pyspark is published as a source distribution only; the tools that build it are the locked ones.
# hadolint ignore=DL3042 # the cache is a mount of the build, not in the image
RUN --mount=type=cache,target=/var/cache/pip \
    pip install --cache-dir /var/cache/pip --require-hashes -r requirements/build.txt \
    && pip install --cache-dir /var/cache/pip --require-hashes --no-build-isolation -r requirements/image-spark.txt
# S3A's jars, each with the SHA-256 that requirements/spark-jars says, into Spark's own folder.
COPY requirements/spark-jars requirements/spark-jars
COPY tests/env/spark_jars.py tests/env/
COPY persist_core/__init__.py persist_core/errors.py persist_core/
COPY persist_core/spark_job/__init__.py persist_core/spark_job/jars.py persist_core/spark_job/
RUN python -m tests.env.spark_jars \
    && cp .cache/spark-jars/*/*.jar "$(python -c 'import pyspark; print(*pyspark.__path__)')/jars/"
COPY --from=wheel /wheel /wheel
RUN pip install --no-cache-dir --no-deps --no-index /wheel/*.whl && pip check

FROM java
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="airflow-persist: Spark" \
      org.opencontainers.image.description="Spark with S3A and airflow-persist: master, worker, driver, Connect server" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN useradd --uid 50001 --gid 0 --home-dir /opt/home --create-home --shell /usr/sbin/nologin spark
COPY --from=environment /opt/venv /opt/venv
RUN ln -s "$(/opt/venv/bin/python -c 'import pyspark; print(*pyspark.__path__)')" /opt/spark
COPY docker/entrypoint.sh docker/listening.py /usr/local/bin/
# Everything that Spark writes is below /tmp, so that the root file system may be read-only.
ENV PATH=/opt/venv/bin:$PATH \
    SPARK_HOME=/opt/spark \
    SPARK_WORKER_DIR=/tmp/spark-work \
    SPARK_LOCAL_DIRS=/tmp \
    PYTHONDONTWRITEBYTECODE=1
USER 50001:0
WORKDIR /tmp
# master 7077 (page 8080), worker page 8081, Connect server 15002 (page 4040)
EXPOSE 7077 8080 8081 15002 4040
ENTRYPOINT ["tini", "--", "entrypoint.sh"]
CMD ["spark-submit", "--version"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=400s --retries=12 CMD ["python", "/usr/local/bin/listening.py"]
