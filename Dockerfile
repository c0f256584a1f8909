# One image for workers, Flower and the command line. Redis is not inside: docker-compose.yml brings it.
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --prefix=/install '.[mcp,serve]'

FROM python:3.12-slim
COPY --from=build /install /usr/local

# Tools run as this user: keep everything they must not change out of its reach (docs/security.md).
RUN useradd --uid 1000 --create-home goondan && install -d -o goondan -g goondan /state
USER goondan
WORKDIR /home/goondan

ENV PYTHONUNBUFFERED=1 \
    GOONDAN_BUNDLE=/bundle \
    GOONDAN_STATE_ROOT=/state \
    GOONDAN_LOG_FORMAT=json
VOLUME /state
STOPSIGNAL SIGTERM
ENTRYPOINT ["goondan"]
CMD ["worker", "--help"]
