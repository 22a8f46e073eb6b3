# One image with all programs: percolator, percolator-tso, percolator-tablet, percolator-gc-master.
#
#   docker build -t percolator .
#   docker run --rm percolator --version
#   docker run --rm --entrypoint percolator-tso percolator --help
#
# `cargo xtask test` doesn't build it yet: that needs a container engine, which not every machine has.

# Both images are of one Debian release: the programs need the C library that they were linked with.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked \
    && mkdir /programs \
    && cd target/release \
    && cp percolator percolator-tso percolator-tablet percolator-gc-master /programs/

# No shell, no package manager, and a user who isn't root.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /programs/ /usr/local/bin/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/percolator"]
