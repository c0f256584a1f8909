"""Services for tools and extensions of the older version (002 §4.3, §8.1, §11.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic.alias_generators import to_camel

from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.bundle import BoundTool
from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.oauth_app_spec import scopes_beyond
from goondan_tasks.bundle.v1_resources import V1ToolExport, V1ToolSpec
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.wording import hint
from goondan_tasks.oauth.manager import MIN_TTL_SECONDS
from workers.extensions.events import running_for
from workers.extensions.services import SwarmBundleService, ask_for_token, token_error
from workers.extensions.state import ExtensionState, StateStore
from workers.oauth import WorkerOAuth


def fields_of(request: Any, first: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that was given as one object or as keyword arguments.

    ``named`` has the keyword arguments, ``None`` if left out. ``request`` is a mapping of the same fields in
    snake_case or camelCase, or the value of the field ``first``.

    Raises:
        TypeError: ``request`` has an unknown field, or one that is also given as a keyword argument.
    """
    if request is None:
        return dict(named)
    if not isinstance(request, Mapping):
        request = {first: request}
    spelled = {to_camel(name): name for name in named} | {name: name for name in named}
    fields = dict(named)
    for key, value in request.items():
        name = spelled.get(key)
        if name is None:
            raise TypeError(f"there is no field {key!r:.100}. {hint(str(key), list(spelled))}".strip())
        if fields[name] is not None and value is not None:
            raise TypeError(f"{name} is given twice")
        fields[name] = value if value is not None else fields[name]
    return fields


def _level(name: str) -> Callable[..., None]:
    def log(self: "ConsoleLogger", event: Any, *values: Any, **fields: Any) -> None:
        getattr(self.lines, name)(str(event), **_with(values, {**self.bound, **fields}))

    return log


@dataclass(frozen=True, slots=True)
class ConsoleLogger:
    """A logger with the documents' ``Console`` methods (002 §4.3, §5.4).

    Values after the text are logged as the field ``values``; for an exception among them, its traceback.
    """

    lines: Logger
    #: fields of every line
    bound: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, **fields: Any) -> "ConsoleLogger":
        return ConsoleLogger(self.lines, {**self.bound, **fields})

    debug = _level("debug")
    info = log = _level("info")
    warning = warn = _level("warning")
    error = _level("error")

    def exception(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self.error(event, *values, **{"exc_info": True, **fields})


def _with(values: Sequence[Any], fields: dict[str, Any]) -> dict[str, Any]:
    errors = [value for value in values if isinstance(value, BaseException)]
    others = [value for value in values if not isinstance(value, BaseException)]
    if errors:
        fields = {**fields, "exc_info": errors[0]}
    return {"values": others, **fields} if others else fields


#: names that no Extension can have
_SHARED = "#shared"
_OBJECT = "#state"
_KEY = "object"


@dataclass(frozen=True, slots=True)
class Memory:
    """The state of one extension of an agent in each instance; methods block as those of ExtensionState."""

    #: ``api.state``
    state: ExtensionState
    #: ``api.instance.shared``, common to all extensions of the agent
    shared: ExtensionState
    _object: ExtensionState
    _agent: str

    @classmethod
    def of(cls, store: StateStore, agent: str, extension: str) -> "Memory":
        own, shared = ExtensionState(store, agent, extension), ExtensionState(store, agent, _SHARED)
        return cls(own, shared, ExtensionState(store, agent, f"{extension}{_OBJECT}"), agent)

    def get_state(self) -> Any:
        self._require_instance()
        return self._object.get(_KEY, {})

    def set_state(self, state: JsonObject) -> Any:
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of an extension is an object, not {type(state).__name__}")
        self._require_instance()
        return self._object.set(_KEY, dict(state))

    def _require_instance(self) -> None:
        if running_for(self._agent) is None:
            raise RuntimeError(
                "no Turn, Step or tool call is running here, so the instance is not known: call this in a "
                "handler or a pipeline, or name the instance in api.state.get(key, instance_key=…)"
            )


@dataclass(frozen=True, slots=True)
class ToolAuth:
    """A Tool's ``auth``: its default app, and the scopes it may request there."""

    app: str | None = None
    scopes: tuple[str, ...] | None = None

    @classmethod
    def of(cls, bound: BoundTool) -> "ToolAuth":
        """Return the auth of an export: its own scopes, else its Tool's, else all of the app's."""
        spec, export = bound.tool.spec, bound.export
        auth = spec.auth if isinstance(spec, V1ToolSpec) else None
        if auth is None:
            return cls()
        own = export.auth if isinstance(export, V1ToolExport) else None
        narrowed = own.scopes if own is not None and own.scopes is not None else auth.scopes
        return cls(str(auth.oauth_app_ref), narrowed)

    def is_about(self, oauth_app_ref: Any) -> bool:
        """Return whether a request names this auth's app."""
        try:
            return self.app is not None and str(parse_ref(oauth_app_ref)) == self.app
        except FieldError:
            return False


@dataclass(frozen=True, slots=True)
class V1OAuth:
    """``ctx.oauth`` and ``api.oauth``: see :class:`goondan_tasks.authoring.v1_api.OAuthApi`."""

    #: ``None`` if the bundle has no OAuthApp, or without a worker
    _tokens: WorkerOAuth | None
    #: returns the call that requests a token, if any
    call_of: Callable[[], ToolCall | None]
    auth: ToolAuth = ToolAuth()

    def get_access_token(
        self,
        request: Mapping[str, Any] | None = None,
        *,
        oauth_app_ref: str | Mapping[str, str] | None = None,
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Any:
        named = {"oauth_app_ref": oauth_app_ref, "scopes": scopes, "min_ttl_seconds": min_ttl_seconds}
        fields = fields_of(request, "oauth_app_ref", named)
        ref = self.auth.app if fields["oauth_app_ref"] is None else fields["oauth_app_ref"]
        wanted, limits = fields["scopes"], self.auth.scopes
        if limits is not None and self.auth.is_about(ref):
            refused = _first_refused(wanted, limits)
            if refused is not None:
                return token_error("scopeNotAllowed", f"The tool's own auth allows no scope{refused}.")
            wanted = limits if wanted is None else wanted
        ttl = MIN_TTL_SECONDS if fields["min_ttl_seconds"] is None else fields["min_ttl_seconds"]
        return ask_for_token(self._tokens, self.call_of(), ref, scopes=wanted, min_ttl_seconds=ttl)


def _first_refused(wanted: Any, limits: Sequence[str]) -> str | None:
    """Return the first scope that is not allowed; anything but a list of strings is refused elsewhere."""
    if not limits:
        return ""
    is_list = isinstance(wanted, list | tuple) and all(isinstance(scope, str) for scope in wanted)
    beyond = scopes_beyond(wanted, limits) if is_list else ()
    return f" '{beyond[0][:80]}'" if beyond else None


@dataclass(frozen=True, slots=True)
class V1SwarmBundle:
    """``ctx.swarm_bundle`` and ``api.swarm_bundle``, with the documents' request objects (002 §11.2)."""

    service: SwarmBundleService

    def open_changeset(
        self, request: Mapping[str, Any] | str | None = None, *, reason: str | None = None
    ) -> Any:
        return self.service.open_changeset(fields_of(request, "reason", {"reason": reason})["reason"])

    def commit_changeset(
        self,
        request: Mapping[str, Any] | str | None = None,
        message: str | None = None,
        *,
        changeset_id: str | None = None,
    ) -> Any:
        fields = fields_of(request, "changeset_id", {"changeset_id": changeset_id, "message": message})
        if not isinstance(fields["changeset_id"], str):
            raise TypeError(f"changesetId must be a string, not {fields['changeset_id']!r:.200}")
        return self.service.commit_changeset(fields["changeset_id"], fields["message"])

    def get_active_ref(self) -> Any:
        return self.service.get_active_ref()
