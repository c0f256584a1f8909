"""Grants and sessions as the documents write them, secrets encrypted (000 §12.5.4, §12.5.5).

Ours are ``v``, ``generation``, ``redirectUri``, ``device``, ``reason``, ``alsoResume`` and the trace.
"""

import contextlib
import json
from collections.abc import Callable
from typing import TypeVar

from pydantic import SecretStr, ValidationError

from goondan_tasks.messages import WIRE_VERSION, JsonObject
from goondan_tasks.oauth.crypto import Cipher, Place
from goondan_tasks.oauth.oauth_errors import OAuthStoreError
from goondan_tasks.oauth.records import AuthSession, GrantSummary, OAuthGrant, Resume, SessionSummary
from goondan_tasks.oauth.store import UnreadableRecord

_Record = TypeVar("_Record", OAuthGrant, GrantSummary, AuthSession, SessionSummary)

API_VERSION = "agents.example.io/v1alpha1"
GRANT = "OAuthGrantRecord"
SESSION = "AuthSessionRecord"


def write_grant(grant: OAuthGrant, cipher: Cipher) -> str:
    """Write a grant as JSON."""
    token = grant.token
    spec = {
        **grant.to_wire(),
        "oauthAppRef": _app_ref(grant.oauth_app),
        "token": {
            **token.to_wire(),
            "accessToken": cipher.encrypt(token.access_token, _grant_place(grant.name, "accessToken")),
        },
    }
    if token.refresh_token is not None:
        place = _grant_place(grant.name, "refreshToken")
        spec["token"]["refreshToken"] = cipher.encrypt(token.refresh_token, place)
    del spec["oauthApp"]
    return _written(GRANT, grant.name, spec)


def read_grant(text: str | bytes, name: str, cipher: Cipher) -> OAuthGrant:
    """Read the grant that is kept under ``name``.

    Raises:
        OAuthStoreError: it is damaged, or its key is not here.
    """

    def build(spec: JsonObject) -> OAuthGrant:
        token = dict(spec["token"])
        for field in ("accessToken", "refreshToken"):
            if field in token:
                token[field] = cipher.decrypt(token[field], _grant_place(name, field))
        return OAuthGrant.from_wire({**spec, "oauthApp": spec["oauthAppRef"]["name"], "token": token})

    grant = _read(text, GRANT, name, build)
    if grant.name != name:
        raise OAuthStoreError.of_record(name, f"{GRANT} {name} is damaged: it is of another app or subject.")
    return grant


def read_summary(text: str | bytes, name: str) -> GrantSummary:
    """Read what may be shown of a grant; raises as :func:`read_grant` does."""

    def build(spec: JsonObject) -> GrantSummary:
        token = spec["token"]
        facts = {
            **spec,
            "name": name,
            "oauthApp": spec["oauthAppRef"]["name"],
            "expiresAt": token.get("expiresAt"),
            "hasRefreshToken": "refreshToken" in token,
            "keyIds": sorted(_key_ids(text)),
        }
        return GrantSummary.from_wire(facts)

    return _read(text, GRANT, name, build)


def write_session(session: AuthSession, cipher: Cipher) -> str:
    """Write a session as JSON."""
    wire = session.to_wire()
    for field in ("id", "oauthApp", "codeVerifier", "codeChallenge", "state", "redirectUri", "device"):
        wire.pop(field, None)
    spec = {
        **wire,
        "oauthAppRef": _app_ref(session.oauth_app),
        "flow": _flow(session, cipher),
        "resume": None if session.resume is None else write_resume(session.resume),
        "alsoResume": [write_resume(one) for one in session.also_resume],
    }
    return _written(SESSION, session.id, spec)


def read_session(text: str | bytes, name: str, cipher: Cipher) -> AuthSession:
    """Read the session that is kept under ``name``; raises as :func:`read_grant` does."""

    def build(spec: JsonObject) -> AuthSession:
        flow = spec["flow"]
        pkce = flow.get("pkce", {})
        device = dict(flow["device"]) if "device" in flow else None
        if device is not None:
            device["deviceCode"] = cipher.decrypt(device["deviceCode"], _session_place(name, "deviceCode"))
        fields = {
            **spec,
            "id": name,
            "oauthApp": spec["oauthAppRef"]["name"],
            "flow": flow["type"],
            "codeVerifier": _decrypted(pkce, "codeVerifier", cipher, name),
            "codeChallenge": pkce.get("codeChallenge"),
            "state": _decrypted(flow, "state", cipher, name),
            "redirectUri": flow.get("redirectUri"),
            "device": device,
            "resume": read_resume(spec["resume"]) if spec.get("resume") else None,
            "alsoResume": [read_resume(one) for one in spec.get("alsoResume", ())],
        }
        return AuthSession.from_wire(fields)

    return _read(text, SESSION, name, build)


def read_session_summary(text: str | bytes, name: str) -> SessionSummary:
    """Read what needs no key; raises as :func:`read_grant` does."""
    return _read(
        text,
        SESSION,
        name,
        lambda spec: SessionSummary.from_wire({**spec, "oauthApp": spec["oauthAppRef"]["name"]}),
    )


def unreadable_session(text: str | bytes, name: str, error: OAuthStoreError) -> UnreadableRecord:
    """Return what there is to say of a session that was not read because of ``error``."""
    with contextlib.suppress(OAuthStoreError):
        return UnreadableRecord(name, error, read_session_summary(text, name))
    return UnreadableRecord(name, error)


def write_resume(resume: Resume) -> JsonObject:
    """Write a ``resume`` as the documents do."""
    wire = resume.to_wire()
    return {"swarmRef": {"kind": "Swarm", "name": wire.pop("swarm")}, **wire}


def read_resume(document: JsonObject) -> Resume:
    """Read a ``resume`` of a session."""
    return Resume.from_wire({**document, "swarm": document["swarmRef"]["name"]})


def is_current(text: str | bytes, name: str, cipher: Cipher) -> bool:
    """Say whether a record's secrets are encrypted with the current key.

    Raises:
        OAuthStoreError: it is damaged.
    """
    try:
        return _key_ids(text) <= {cipher.keys.current.id}
    except ValueError:
        raise OAuthStoreError.of_record(name, f"The record {name} is damaged.") from None


def _key_ids(text: str | bytes) -> set[str]:
    found: set[str] = set()

    def notice(value: JsonObject) -> JsonObject:
        if "keyId" in value and "ciphertext" in value:
            found.add(str(value["keyId"]))
        return value

    json.loads(text, object_hook=notice)
    return found


def _flow(session: AuthSession, cipher: Cipher) -> JsonObject:
    flow: JsonObject = {"type": session.flow}
    if session.redirect_uri is not None:
        flow["redirectUri"] = session.redirect_uri
    if session.code_verifier is not None:
        verifier = cipher.encrypt(session.code_verifier, _session_place(session.id, "codeVerifier"))
        flow["pkce"] = {
            "method": "S256",
            "codeVerifier": verifier,
            "codeChallenge": session.code_challenge,
        }
    if session.state is not None:
        flow["state"] = cipher.encrypt(session.state, _session_place(session.id, "state"))
    if session.device is not None:
        code = cipher.encrypt(session.device.device_code, _session_place(session.id, "deviceCode"))
        flow["device"] = {**session.device.to_wire(), "deviceCode": code}
    return flow


def _app_ref(name: str) -> JsonObject:
    return {"kind": "OAuthApp", "name": name}


def _grant_place(name: str, field: str) -> Place:
    return Place(GRANT, name, field)


def _session_place(name: str, field: str) -> Place:
    return Place(SESSION, name, field)


def _decrypted(holder: JsonObject, field: str, cipher: Cipher, name: str) -> SecretStr | None:
    return cipher.decrypt(holder[field], _session_place(name, field)) if field in holder else None


def _written(kind: str, name: str, spec: JsonObject) -> str:
    document = {
        "v": WIRE_VERSION,
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    return json.dumps(document, separators=(",", ":"))


def _read(text: str | bytes, kind: str, name: str, build: Callable[[JsonObject], _Record]) -> _Record:
    try:
        document = json.loads(text)
        stands = (document["kind"], document["metadata"]["name"], document["v"])
        if stands[2] > WIRE_VERSION:
            raise OAuthStoreError(
                f"{kind} {name} is of version {stands[2]}, newer than {WIRE_VERSION}.",
                suggestion="Upgrade goondan-workers here.",
            )
        if stands[:2] != (kind, name):
            message = f"{kind} {name} is damaged: it says that it is {stands[0]} {stands[1]}."
            raise OAuthStoreError.of_record(name, message)
        return build(document["spec"])
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as error:
        # neither the text nor pydantic's words, which may repeat it
        message = f"{kind} {name} is damaged: {type(error).__name__}."
        raise OAuthStoreError.of_record(name, message) from None
