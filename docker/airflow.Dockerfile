# Airflow with airflow-persist, as a client of Spark Connect. It contains neither Java nor a Spark.
#
#   docker build -f docker/airflow.Dockerfile -t airflow-persist .        (from the top folder of the project)
#
# Build arguments: PYTHON_IMAGE, for production by digest (python:3.13-slim-trixie@sha256:...); REQUIREMENTS, a locked and
# hashed file that replaces ours; PIP_INDEX_URL, a mirror for pip; VERSION and REVISION for the labels.
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

FROM ${PYTHON_IMAGE} AS environment
ARG PIP_INDEX_URL
ARG REQUIREMENTS=requirements/image-airflow.txt
RUN python -m venv /opt/venv
COPY requirements/build.txt ${REQUIREMENTS} /tmp/requirements/
# pyspark-client is published as a source distribution only; the tools that build it are the locked ones.
# hadolint ignore=DL3042 # the cache is a mount of the build, not in the image
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/venv/bin/pip install --cache-dir /var/cache/pip --require-hashes -r /tmp/requirements/build.txt \
    && /opt/venv/bin/pip install --cache-dir /var/cache/pip --require-hashes --no-build-isolation -r "/tmp/requirements/$(basename "${REQUIREMENTS}")"
COPY --from=wheel /wheel /wheel
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /wheel/*.whl && /opt/venv/bin/pip check

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="airflow-persist: Airflow" \
      org.opencontainers.image.description="Airflow with airflow-persist, as a client of Spark Connect" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Group 0 may write AIRFLOW_HOME, so that a platform may choose any user id. Airflow writes no configuration of its own,
# which would contain keys, because the file exists. So the root file system may be read-only: only logs/ and /tmp need
# to be writable.
RUN useradd --uid 50000 --gid 0 --home-dir /opt/airflow --create-home --shell /usr/sbin/nologin airflow \
    && mkdir -p /opt/airflow/dags /opt/airflow/logs /opt/airflow/plugins \
    && touch /opt/airflow/airflow.cfg \
    && chown -R airflow:0 /opt/airflow && chmod -R g=u /opt/airflow
COPY --from=environment /opt/venv /opt/venv
COPY docker/entrypoint.sh docker/healthy.py docker/make_bucket.py docker/demo.sh docker/clean_logs.sh /usr/local/bin/
# Airflow's Helm chart calls these, as its own image has them: in probes, and in the sidecar that deletes old logs.
RUN ln -s /usr/local/bin/entrypoint.sh /entrypoint && ln -s /usr/local/bin/clean_logs.sh /clean-logs
ENV PATH=/opt/venv/bin:$PATH \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 50000:0
WORKDIR /opt/airflow
EXPOSE 8080
ENTRYPOINT ["entrypoint.sh"]
CMD ["airflow", "api-server"]
HEALTHCHECK --interval=15s --timeout=10s --start-period=400s --retries=12 CMD ["python", "/usr/local/bin/healthy.py"]
