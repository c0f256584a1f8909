"""Texts that may be bundles: no YAML, no resource, and resources of both versions with fields at random."""

import json

from hypothesis import strategies as st

from goondan_tasks.bundle.resources import RESOURCE_MODELS

FIELDS = st.sampled_from(
    ["name", "labels", "entry", "exports", "parameters", "type", "retry", "idempotencyKey"]
)
OLDER = st.sampled_from(
    [
        "runtime",
        "python",
        "auth",
        "scopes",
        "oauthAppRef",
        "hooks",
        "entrypoint",
        "liveConfig",
        "a.b",
        "prompts",
    ]
)
REFS = st.sampled_from(["tools", "selector", "overrides", "ref", "package", "agents", "entryAgent", "policy"])
VALUES = st.sampled_from(["Tool", "Agent", "Tool/echo", "Agent/coder", "./echo.py", "object", "dependencies"])
WORDS = FIELDS | OLDER | REFS | VALUES
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
KINDS = sorted(RESOURCE_MODELS)
DOCUMENTS = st.builds(
    lambda version, kind, name, spec: {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    },
    st.sampled_from(["goondan.ai/v1", "agents.example.io/v1alpha1"]),
    st.sampled_from(
        ["Tool", "Agent", "Swarm", "Package", "Extension", "Model", "Connection", "Connector", "OAuthApp"]
    ),
    st.sampled_from(["echo", "coder", "__"]),
    st.dictionaries(WORDS, JSON, max_size=6),
)
YAML_TEXT = st.text(st.sampled_from(list("ab:-[]{}&*!|>'\"%@#,?<~\n\t 0.é\x00")), max_size=60)
TEXTS = (
    YAML_TEXT
    | st.text()
    | st.lists(DOCUMENTS | JSON, max_size=3).map(lambda documents: "\n---\n".join(map(json.dumps, documents)))
)
