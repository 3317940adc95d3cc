# Copyright The Kolocate Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Kolocate's images for users with an image registry; hack/images/build.sh builds
# the same images where none answers. All base images are arguments.
#
#   docker build --target kolocate    --tag kolocate:TAG .
#   docker build --target partitioner --tag kolocate-partitioner:TAG .
#   docker build --target envoy       --tag kolocate-envoy:TAG .

ARG GO_IMAGE=golang:1.26-bookworm
ARG BASE_IMAGE=scratch
ARG ENVOY_IMAGE=envoyproxy/envoy:distroless-v1.40.0

FROM ${GO_IMAGE} AS source
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .

FROM source AS build-kolocate
ARG VERSION=unknown
RUN VERSION=${VERSION} hack/build.sh kolocate

FROM ${BASE_IMAGE} AS kolocate
COPY --from=build-kolocate /src/bin/kolocate /usr/local/bin/kolocate
ENV PATH=/usr/local/bin:/usr/bin:/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/kolocate"]

# KaHIP comes as a Python wheel, so this stage alone needs pip.
FROM source AS build-partitioner
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ python3-pip \
    && rm -rf /var/lib/apt/lists/*
ARG VERSION=unknown
RUN VERSION=${VERSION} hack/build.sh kolocate-partitioner

FROM ${BASE_IMAGE} AS partitioner
COPY --from=build-partitioner /src/bin/kolocate-partitioner /usr/local/bin/kolocate-partitioner
ENV PATH=/usr/local/bin:/usr/bin:/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/kolocate-partitioner"]

# Envoy as published; only the user is set, so that it needs no privilege.
FROM ${ENVOY_IMAGE} AS envoy
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/envoy"]
