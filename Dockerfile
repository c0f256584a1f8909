# One image for workers, Flower and the command line. Valkey, or Redis 6.2 or newer, is not inside: docker-compose.yml
# brings one.
FROM python:3.12-slim AS build
WORKDIR /source
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# a layer of its own, here and below: it stays until `make lock` pins other versions
COPY constraints.txt build-constraints.txt ./
RUN pip install --only-binary :all: --require-hashes --requirement build-constraints.txt
RUN pip install --prefix=/packages --only-binary :all: --require-hashes --requirement constraints.txt
COPY . .
RUN pip install --prefix=/project --no-deps --no-build-isolation .

FROM python:3.12-slim
# git and ssh fetch the revisions of a bundle that changes while workers run; bubblewrap is for tools with a sandbox
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap git openssh-client \
    && rm -rf /var/lib/apt/lists/*
# Tools run as this user: keep everything they must not change out of its reach (docs/security.md).
RUN useradd --uid 1000 --create-home goondan && install -d -o goondan -g goondan /state /cache
COPY --from=build /packages /usr/local
COPY --from=build /project /usr/local

USER goondan
# Python imports from the current directory and from the home directory: tools must not be able to add modules
WORKDIR /
ENV PYTHONSAFEPATH=1 \
    PYTHONNOUSERSITE=1 \
    PYTHONUNBUFFERED=1 \
    GOONDAN_BUNDLE=/bundle \
    GOONDAN_STATE_ROOT=/state \
    GOONDAN_CACHE_DIR=/cache \
    GOONDAN_LOG_FORMAT=json
VOLUME /state /cache
STOPSIGNAL SIGTERM
ENTRYPOINT ["goondan"]
CMD ["worker", "--help"]
