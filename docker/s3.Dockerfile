# versitygw, an S3-speaking gateway over a folder, built from its source: the store of compose.yaml. For trying out.
#
# Build arguments: GO_IMAGE and BASE_IMAGE, for production by digest; GOPROXY, a mirror of Go's modules; BINARY, an image
# that has /out/versitygw already, instead of building it.
ARG GO_IMAGE=golang:1.25-trixie
ARG BASE_IMAGE=debian:trixie-slim
ARG BINARY=build

FROM ${GO_IMAGE} AS build
ARG GOPROXY
ARG VERSITYGW_VERSION=v1.8.0
RUN CGO_ENABLED=0 GOBIN=/out go install -trimpath -ldflags='-s -w' \
    "github.com/versity/versitygw/cmd/versitygw@${VERSITYGW_VERSION}"

FROM ${BINARY} AS binary

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="airflow-persist: S3 for trying out" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 50002 --create-home --shell /usr/sbin/nologin s3 && mkdir /data && chown s3 /data
COPY --from=binary /out/versitygw /usr/local/bin/versitygw
COPY docker/s3.sh /usr/local/bin/s3.sh
USER 50002
EXPOSE 7070
VOLUME /data
ENTRYPOINT ["/usr/local/bin/s3.sh"]
HEALTHCHECK --interval=5s --timeout=3s --retries=12 CMD ["/bin/bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7070"]
