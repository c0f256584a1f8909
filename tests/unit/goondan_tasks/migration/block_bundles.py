"""Valid bundles of the older version, written in block style as people write it, in many ways."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from goondan_tasks.bundle.resource import V1_API_VERSION
from goondan_tasks.bundle.yaml import plain_scalar

Draw = Callable[[st.SearchStrategy[Any]], Any]

NAMESPACES = ["", "slack.", "misc.", "goondan.", "null.", "123.", "a.b."]
NAMES = ["post", "list-all", "x_y", "1", "null", "true", "1e5", "step", "x.y"]
TOOL_NAMES = st.sampled_from(["slack", "slackToolkit", "misc", "my.kit", "kit", "one", "null", "1"])
OBJECT = {"type": "object"}
OPTIONS: list[tuple[str, Any]] = [
    ("queueMode", "serial"),
    ("liveConfig", {"enabled": True}),
    ("retry", {"maxRetries": 2}),
    ("lifecycle", {"autoPauseIdleSeconds": 5}),
    ("lifecycle", {"autoPauseIdleSeconds": 5, "ttlSeconds": 60}),
    ("maxStepsPerTurn", 8),
]


def ref(draw: Draw, kind: str, name: str) -> Any:
    """Return a reference in one of its forms."""
    fields = {"apiVersion": V1_API_VERSION, "kind": kind, "name": name}
    short = {"kind": kind, "name": name}
    return draw(st.sampled_from([f"{kind}/{name}", fields, short, {"ref": fields}]))


@st.composite
def resources(draw: Draw) -> list[dict[str, Any]]:
    """Draw the resources of a bundle with one Agent that uses all Tools."""
    tools = draw(st.lists(TOOL_NAMES, min_size=1, max_size=3, unique=True))
    spaces = draw(st.lists(st.sampled_from(NAMESPACES), min_size=3, max_size=3, unique=True))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    exports = [space + name for space in spaces[: len(tools)] for name in names]
    own = {"template": {"apiVersion": V1_API_VERSION, "kind": "Tool", "runtime": "python"}}
    policy = dict(draw(st.lists(st.sampled_from(OPTIONS), max_size=3)))
    named = draw(st.lists(st.sampled_from(exports), max_size=2, unique=True))
    agent = {"tools": [ref(draw, "Tool", tool) for tool in tools], "requiredTools": named}
    agent |= draw(st.sampled_from([{}, {"hooks": [{"point": "turn.pre"}]}]))
    swarm = {"entrypoint": ref(draw, "Agent", "clerk"), "agents": ["Agent/clerk"]}
    specs: list[tuple[str, str, dict[str, Any]]] = [
        ("Extension", "e", {"runtime": "python", "entry": "./e.py", "config": own}),
        ("Agent", "clerk", agent),
        ("Swarm", "s", {**swarm, "policy": {**policy, "toolCalls": {"approval": named}}}),
    ]
    for space, tool in zip(spaces, tools, strict=False):
        items = [{"name": space + name, "parameters": OBJECT} for name in names]
        specs.append(("Tool", tool, {"runtime": "python", "entry": "./t.py", "exports": items}))
    return [
        {"apiVersion": V1_API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, name, spec in specs
    ]


@st.composite
def block_text(draw: Draw, documents: list[dict[str, Any]]) -> str:
    """Draw a text of the documents: order of fields, comments, quotes, indents and line ends at random."""
    border = st.sampled_from(["---\n", "--- # next\n", "...\n---\n", "---\n\n---\n"])
    text = ""
    for document in draw(st.permutations(documents)):
        text += (draw(border) if text else "") + "\n".join(_lines(draw, document, 0)) + "\n"
    end = draw(st.sampled_from(["", "\n", "# end\n"]))
    whole = text.removesuffix("\n") if end == "" else text + end
    return whole.replace("\n", draw(st.sampled_from(["\n", "\n", "\r\n"])))


def _lines(draw: Draw, value: Any, indent: int) -> Iterator[str]:
    margin = " " * indent
    if isinstance(value, list):
        for item in value:
            lines = list(_entry(draw, margin + "-", item, indent + 2))
            yield from lines
        return
    for key in draw(st.permutations(list(value))):
        if draw(st.integers(0, 5)) == 0:
            yield draw(st.sampled_from(["", f"{margin}# about it", "# runtime: python"]))
        name = draw(st.sampled_from([key, key, key, f'"{key}"']))
        if draw(st.integers(0, 14)) == 0:
            yield f"{margin}? {name}"
            name = ""
        yield from _entry(draw, f"{margin}{name}:", value[key], indent + draw(st.integers(1, 3)))


def _entry(draw: Draw, head: str, value: Any, indent: int) -> Iterator[str]:
    """Yield a value behind ``head``, a key or a dash, or below it."""
    tail = draw(st.sampled_from(["", "", " # why", "  # entry: x"]))
    if isinstance(value, dict | list) and value and draw(st.integers(0, 4)):
        lines = list(_lines(draw, value, indent))
        is_beside = head.endswith("-") and lines[0].strip() and not lines[0].lstrip().startswith("#")
        if is_beside and draw(st.booleans()):
            yield f"{head} {lines.pop(0)[indent:]}"
        else:
            yield f"{head}{tail}"
        yield from lines
        return
    forms = [json.dumps(value)]
    if isinstance(value, str):
        forms += [f"'{value}'", f"|-{tail}\n{' ' * (indent + 1)}{value}", f">-\n{' ' * (indent + 2)}{value}"]
        forms += [value] * 6 if plain_scalar(value) == value else []
    form = draw(st.sampled_from(forms))
    yield f"{head}{draw(st.sampled_from([' ', '   ']))}{form}{'' if form[0] in '|>' else tail}"
