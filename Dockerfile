# One image for workers, Flower and the command line. Redis is not inside: docker-compose.yml brings it.
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --prefix=/install '.[mcp,serve]'

FROM python:3.12-slim
# git and ssh fetch the revisions of a bundle that changes while workers run
RUN apt-get update && apt-get install --yes --no-install-recommends git openssh-client \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /install /usr/local

# Tools run as this user: keep everything they must not change out of its reach (docs/security.md).
RUN useradd --uid 1000 --create-home goondan && install -d -o goondan -g goondan /state /cache
USER goondan
WORKDIR /home/goondan

ENV PYTHONUNBUFFERED=1 \
    GOONDAN_BUNDLE=/bundle \
    GOONDAN_STATE_ROOT=/state \
    GOONDAN_CACHE_DIR=/cache \
    GOONDAN_LOG_FORMAT=json
VOLUME /state /cache
STOPSIGNAL SIGTERM
ENTRYPOINT ["goondan"]
CMD ["worker", "--help"]
