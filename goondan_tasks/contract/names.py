"""Names on the wire: tools, agents, the identity of a call, its callback and its span.

Sources: 001 §12.2, 003 §3; DESIGN "Names on the wire" and "Records", §6 (callbacks); W3C Trace Context.
OpenTelemetry is not imported here: a program that has not imported it has no span.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote, urlsplit

from broker_config.serializer import quote
from goondan_tasks.contract.trace_context import sound_context

SEPARATOR = "__"

#: the Tool of the system's own exports; bundles may not declare it
SYSTEM_TOOL = "goondan"
#: reads part of a large output; every worker has it, no catalog lists it
READ_OUTPUT_TOOL = f"{SYSTEM_TOOL}{SEPARATOR}read-output"
#: opens a Step for a producer: runs its middlewares and stores its catalog; no catalog lists it
STEP_TOOL = f"{SYSTEM_TOOL}{SEPARATOR}step"
#: prefix of the tools that send requests to models; the Model's name follows
MODEL_TOOLS = f"{SYSTEM_TOOL}{SEPARATOR}model-"
#: the tool of a dead letter whose message held no call; not a valid tool name
NO_CALL_TOOL = "(no call)"
#: in the ledger an event is a call of one of these
DELEGATE_TOOL = f"{SYSTEM_TOOL}{SEPARATOR}delegate"
DELEGATE_RESULT_TOOL = f"{SYSTEM_TOOL}{SEPARATOR}delegate-result"
EVENT_TOOL = f"{SYSTEM_TOOL}{SEPARATOR}event"
EVENT_TOOLS = frozenset({DELEGATE_TOOL, DELEGATE_RESULT_TOOL, EVENT_TOOL})

#: the sender of work that comes from a client; no agent may have this name
OUTSIDE = "client"

_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9-])?")
_AGENT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

_SPAN_IDS = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

_URL_OF_CALLS = uuid.NAMESPACE_URL.bytes + b"goondan:"


class ToolName(NamedTuple):
    resource: str
    export: str

    def __str__(self) -> str:
        return f"{self.resource}{SEPARATOR}{self.export}"


def folder_workspace(folder: Path, swarm: str | None = None) -> str:
    """Return the workspace of a bundle without a Package: its folder's name and a digest of its path.

    Folders of the same name have different workspaces; a link to a folder has the folder's workspace. The
    name is valid for a directory. ``swarm``, the name of one of several Swarms, is added (DESIGN §6).
    """
    folder = folder.resolve()
    name = re.sub("[^a-z0-9_]+", "-", folder.name.lower())[:48].strip("-") or "bundle"
    workspace = f"{name}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
    return workspace if swarm is None else f"{workspace}-{swarm}"


def is_name_part(text: str) -> bool:
    """Return whether ``text`` may name a Tool or an export; ``__`` is not allowed (003 §3.2 rule 3)."""
    return SEPARATOR not in text and _PART.fullmatch(text) is not None


def is_agent_name(text: str) -> bool:
    """Return whether ``text`` may name an agent: ``[a-z0-9][a-z0-9-]*``, at most 63, except ``client``."""
    return _AGENT.fullmatch(text) is not None and text != OUTSIDE


def parse_tool_name(full_name: str) -> ToolName | None:
    """Split ``resource__export``; ``None`` unless there is exactly one separator with a name on each side."""
    resource, separator, export = full_name.partition(SEPARATOR)
    if separator and is_name_part(resource) and is_name_part(export):
        return ToolName(resource, export)
    return None


def is_v1_name(full_name: str) -> bool:
    """Return whether only a tool of the older version can have this name: it has no ``__`` (002 §3.2)."""
    return bool(full_name) and SEPARATOR not in full_name


def build_tool_name(resource: str, export: str) -> str:
    """Join a Tool's name and an export's name into the name that the model sees (003 §3.1).

    Raises:
        ValueError: one of them is not a valid name.
    """
    for name in (resource, export):
        if not is_name_part(name):
            raise ValueError(
                f"{name!r:.200} cannot name a Tool or an export: write letters, digits, '-' and '_', begin "
                f"with a letter or digit, do not end with '_', and have no '{SEPARATOR}' inside"
            )
    return str(ToolName(resource, export))


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def call_identity(agent_name: str, instance_key: str, turn_id: str, tool_call_id: str) -> str:
    """Return the identity of a call: its Celery task id and its key in the ledger.

    Models repeat their toolCallIds (``call_1``), so the identity spans the Turn too.
    """
    try:
        parts = f"[{quote(agent_name)},{quote(instance_key)},{quote(turn_id)},{quote(tool_call_id)}]"
    except TypeError:  # a call that is refused because a name is not text needs an identity too
        parts = _compact([agent_name, instance_key, turn_id, tool_call_id])
    # likewise a name with a lone surrogate, which has no UTF-8 form
    return _uuid5(_URL_OF_CALLS + parts.encode("utf-8", "backslashreplace"))


def _uuid5(space_and_name: bytes) -> str:
    """Return the same as ``str(uuid.uuid5(…))`` in a fifth of the time (RFC 9562 §5.5)."""
    digits = hashlib.sha1(space_and_name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


@dataclass(frozen=True, slots=True)
class CallbackToken:
    """The token that authorizes the completion of one run over HTTP."""

    text: str
    #: the claim token that it was derived from; empty if the record stores the callback
    claim_token: str = ""


#: for completions that do not come over HTTP
NO_CALLBACK = CallbackToken("")


def callback_token(call_id: str, claim_token: str) -> str:
    """Return the secret of a run's callback, 43 characters: an HMAC of the call's id.

    Its key is the run's claim token, which holds 128 random bits and is in the ledger during the run, so the
    secret needs no storage.
    """
    digest = hmac.digest(claim_token.encode(), f"callback {call_id}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def callback_url(public_url: str, call_id: str, claim_token: str) -> str:
    """Return the address of a run's callback below ``public_url``."""
    path = f"{percent_encoded(call_id, safe='')}/{callback_token(call_id, claim_token)}"
    return f"{public_url.rstrip('/')}/callbacks/{path}"


def public_paths(path: str, base_url: str | None) -> frozenset[str]:
    """Return ``path``, and the same below the path of a base URL, which a proxy may leave or remove.

    A server compares paths without percent-encoding, so they are returned so.
    """
    return frozenset({path, unquote(urlsplit(base_url or "").path).rstrip("/") + path})


class SpanIds(NamedTuple):
    """A span and its trace."""

    trace_id: str
    span_id: str

    @property
    def are_valid(self) -> bool:
        """Whether W3C allows them: lower-case hex digits, not all zeros."""
        is_hex = _SPAN_IDS.fullmatch(f"{self.trace_id}-{self.span_id}") is not None
        return is_hex and bool(self.trace_id.strip("0") and self.span_id.strip("0"))


def write_traceparent(trace_id: str, span_id: str) -> str | None:
    """Return a call's ``traceparent``; ``None`` if its ids, which producers may choose, do not fit."""
    ids = f"{trace_id}-{span_id}"
    return f"00-{ids}-01" if _SPAN_IDS.fullmatch(ids) else None


def read_traceparent(header: object) -> SpanIds | None:
    """Read a ``traceparent``: the span that sent a message; ``None`` if it is malformed.

    Versions after 00 may have more fields at the end; version ff is invalid.
    """
    found = _TRACEPARENT.fullmatch(header) if isinstance(header, str) else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[4] is not None):
        return None
    ids = SpanIds(found[2], found[3])
    return ids if ids.are_valid else None


def open_telemetry() -> Any:
    """Return ``opentelemetry.trace`` if the program has imported it, else ``None``."""
    return sys.modules.get("opentelemetry.trace")


def current_span() -> SpanIds | None:
    """Return the current span, if there is one."""
    api = open_telemetry()
    return None if api is None else span_ids(api.get_current_span())


def span_ids(span: Any) -> SpanIds | None:
    """Return a span's ids for the wire; ``None`` if the span is not valid."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")


def current_context() -> dict[str, str] | None:
    """Return what goes with the current span; ``None`` without OpenTelemetry, or if there is nothing."""
    if open_telemetry() is None:
        return None
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    W3CBaggagePropagator().inject(carrier)
    return sound_context(carrier)
