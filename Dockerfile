# One image with all programs: percolator, percolator-operator, and percolator under the names of the servers, which
# it then is: percolator-tso, percolator-tablet, percolator-gc-master.
#
#   docker build -t percolator .
#   docker run --rm percolator --version
#   docker run --rm percolator up --ephemeral -- percolator bank --duration 10s
#   docker run --rm -v percolator:/data percolator up       data in a volume of its own
#   docker run --rm --entrypoint percolator-tso percolator --help
#
# `cargo xtask image` makes the same image without a container engine; that one is tested on a Kubernetes.

# Both images are of one Debian release: the programs need the C library that they were linked with.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
# The commit, for percolator_build_info: docker build --build-arg PERCOLATOR_REVISION=$(git rev-parse HEAD) .
ARG PERCOLATOR_REVISION=unknown
ENV PERCOLATOR_REVISION=$PERCOLATOR_REVISION
RUN cargo build --release --locked \
    && mkdir /programs /data \
    && cd target/release \
    && cp percolator percolator-operator /programs/ \
    && strip /programs/* \
    && cd /programs \
    && ln -s percolator percolator-tso \
    && ln -s percolator percolator-tablet \
    && ln -s percolator percolator-gc-master

# No shell, no package manager, and a user who isn't root.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /programs/ /usr/local/bin/
# What servers keep, ./percolator-data unless they are told otherwise, lies in a volume: not in the container,
# and in a folder that their user may write to.
COPY --from=build --chown=65532:65532 /data /data
VOLUME /data
WORKDIR /data
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/percolator"]
