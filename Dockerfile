# One image with all programs: percolator, percolator-operator, and percolator under the names of the servers, which
# it then is: percolator-tso, percolator-tablet, percolator-master, percolator-proxy.
#
#   docker build -t percolator .
#   docker run --rm percolator --version
#   docker run --rm percolator up --ephemeral -- percolator bank --duration 10s
#   docker run --rm -v percolator:/data percolator up       data in a volume of its own
#   docker run --rm --entrypoint percolator-tso percolator --help
#
# A bill of materials: docker buildx build --sbom=true, or the SPDX file that `cargo xtask image` writes.
#
# `cargo xtask image` makes the same image without a container engine; that one is tested on a Kubernetes.

# The base of the programs' build, by its exact version; a digest pins it further:
#   docker build --build-arg RUST=rust:1.95.0-slim-bookworm@sha256:... .
ARG RUST=rust:1.95.0-slim-bookworm
FROM $RUST AS build
WORKDIR /src
COPY . .
# The commit, for percolator_build_info: docker build --build-arg PERCOLATOR_REVISION=$(git rev-parse HEAD) .
ARG PERCOLATOR_REVISION=unknown
ENV PERCOLATOR_REVISION=$PERCOLATOR_REVISION
RUN cargo build --release --locked
# All that there is in the image: the programs, the libraries that they were linked with, the certificates by which webhooks of
# https are known, a user who isn't root, and a folder that every user may write to.
RUN mkdir -p /image/usr/local/bin /image/etc /image/tmp /image/data \
    && chmod 1777 /image/tmp /image/data \
    && cd target/release \
    && cp percolator percolator-operator /image/usr/local/bin/ \
    && strip /image/usr/local/bin/* \
    && ldd /image/usr/local/bin/* | grep -o '/[^ :]*[.]so[^ :]*' | sort -u | xargs cp -L --parents -t /image \
    && cp -L --parents -t /image /etc/ssl/certs/ca-certificates.crt \
    && printf 'root:x:0:0::/:/\nnonroot:x:65532:65532::/:/\n' > /image/etc/passwd \
    && cd /image/usr/local/bin \
    && ln -s percolator percolator-tso \
    && ln -s percolator percolator-tablet \
    && ln -s percolator percolator-master \
    && ln -s percolator percolator-proxy

# No shell, no package manager.
FROM scratch
ARG PERCOLATOR_REVISION=unknown
LABEL org.opencontainers.image.title="Percolator" \
    org.opencontainers.image.description="Distributed transactions on Kubernetes: operator, servers and command." \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="https://github.com/percolator-dev/percolator" \
    org.opencontainers.image.documentation="https://github.com/percolator-dev/percolator/tree/main/docs" \
    org.opencontainers.image.vendor="The Percolator authors" \
    org.opencontainers.image.revision="$PERCOLATOR_REVISION"
COPY --from=build /image/ /
ENV PATH=/usr/local/bin
# What servers keep, ./percolator-data unless they are told otherwise, lies in a volume: not in the container.
VOLUME /data
WORKDIR /data
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/percolator"]
