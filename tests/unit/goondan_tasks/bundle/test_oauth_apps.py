"""OAuthApps: their fields, what a flow needs, and scopes."""

from pathlib import Path

import pytest

from goondan_tasks.bundle.binding import scope_faults
from goondan_tasks.bundle.bundle import load_bundle
from goondan_tasks.bundle.oauth_apps import RESERVED_PARAMETERS
from goondan_tasks.contract.wording import written
from tests.unit.goondan_tasks.bundle.writing import found_in, told, write

APP = """apiVersion: goondan.ai/v1
kind: OAuthApp
metadata: { name: slack-bot }
spec:
  provider: slack
  flow: authorizationCode
  subjectMode: global
  client:
    clientId: { value: our-id }
    clientSecret: { valueFrom: { secretRef: { ref: Secret/slack, key: client_secret } } }
  endpoints:
    authorizationUrl: https://slack.example/oauth/authorize?tenant=7
    tokenUrl: https://slack.example/oauth/token
    revokeUrl: https://slack.example/oauth/revoke
    userInfoUrl: http://127.0.0.1:9000/userinfo
  scopes: ["chat:write", "channels:read"]
  redirect: { callbackPath: /oauth/callback, baseUrl: "https://agents.example/base" }
  options: { access_type: offline, slack: { tokenMode: bot }, goondan: { subject: "slack:team:{team.id}" } }
"""
_SUBJECT = 'goondan: { subject: "slack:team:{team.id}" }'
DEVICE_URL = "    deviceAuthorizationUrl: https://slack.example/device"


def test_oauth_app_is_read_with_all_its_fields(tmp_path: Path) -> None:
    app = load_bundle(write(tmp_path, {"goondan.yaml": APP})).oauth_apps["slack-bot"].spec

    assert (app.provider, app.flow, app.subject_mode) == ("slack", "authorizationCode", "global")
    assert app.scopes == ("chat:write", "channels:read")
    assert app.redirect is not None
    assert app.redirect.base_url == "https://agents.example/base"
    assert app.options.query == {"access_type": "offline"}


def test_secret_in_wrong_form_is_not_repeated(tmp_path: Path) -> None:
    source = "{ valueFrom: { secretRef: { ref: Secret/slack, key: client_secret } } }"
    [found] = found_in(write(tmp_path, {"goondan.yaml": APP.replace(source, "hunter2-of-slack")}))

    assert found.path == "spec.client.clientSecret"
    assert "hunter2" not in f"{found.message} {found.suggestion}"


def test_older_oauth_app_obeys_same_rules(tmp_path: Path) -> None:
    old = APP.replace("goondan.ai/v1", "agents.example.io/v1alpha1")
    faulty = old.replace("subjectMode: global", "subjectMode: team")

    assert load_bundle(write(tmp_path / "old", {"goondan.yaml": old})).oauth_apps["slack-bot"].spec.scopes
    assert [one.path for one in found_in(write(tmp_path / "faulty", {"goondan.yaml": faulty}))] == [
        "spec.subjectMode"
    ]


@pytest.mark.parametrize(
    ("field", "instead", "path"),
    [
        ("provider: slack", 'provider: ""', "spec.provider"),
        ("flow: authorizationCode", "flow: implicit", "spec.flow"),
        ("subjectMode: global", "subjectMode: team", "spec.subjectMode"),
        ("    clientId: { value: our-id }\n", "", "spec.client.clientId"),
        ("{ value: our-id }", "our-id", "spec.client.clientId"),
        ('["chat:write", "channels:read"]', "[]", "spec.scopes"),
        ('"chat:write", ', '"chat:write channels:read", ', "spec.scopes[0]"),
        ("https://slack.example/oauth/token", "http://slack.example/oauth/token", "spec.endpoints.tokenUrl"),
        ("https://slack.example/oauth/token", "https:///oauth/token", "spec.endpoints.tokenUrl"),
        ("https://slack.example/oauth/token", "https://a:b@slack.example/", "spec.endpoints.tokenUrl"),
        ("https://slack.example/oauth/token", "'https://slack.example/#x'", "spec.endpoints.tokenUrl"),
        ("https://slack.example/oauth/token", "https://slack.example:port/", "spec.endpoints.tokenUrl"),
        ("https://slack.example/oauth/token", "file:///etc/passwd", "spec.endpoints.tokenUrl"),
        ("http://127.0.0.1:9000", "http://127.0.0.1.evil.example", "spec.endpoints.userInfoUrl"),
        ("/oauth/callback,", "oauth/callback,", "spec.redirect.callbackPath"),
        ("/oauth/callback,", "/oauth/../admin,", "spec.redirect.callbackPath"),
        ("https://agents.example/base", "https://agents.example/?x=1", "spec.redirect.baseUrl"),
        ("access_type: offline", "redirect_uri: https://evil.example", "spec.options.redirect_uri"),
        ("access_type: offline", "State: mine", "spec.options.State"),
    ],
)
def test_unworkable_field_is_finding_at_its_place(
    tmp_path: Path, field: str, instead: str, path: str
) -> None:
    assert field in APP

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": APP.replace(field, instead)}))

    assert (finding.level, finding.code, finding.path) == ("error", "E_CONFIG_SCHEMA_INVALID", path)


@pytest.mark.requirement("oauth.flow.subject-checked")
@pytest.mark.parametrize("options", ["", "goondan: {}", "goondan: { anyone: false }"])
def test_global_app_must_say_whose_account_may_consent(tmp_path: Path, options: str) -> None:
    [finding] = found_in(write(tmp_path, {"goondan.yaml": APP.replace(_SUBJECT, options)}))

    assert (finding.level, finding.path) == ("error", "spec.subjectMode")
    assert finding.suggestion is not None
    assert "options.goondan.subject" in finding.suggestion and "anyone: true" in finding.suggestion


def test_global_app_may_be_for_anyone(tmp_path: Path) -> None:
    bundle = load_bundle(
        write(tmp_path, {"goondan.yaml": APP.replace(_SUBJECT, "goondan: { anyone: true }")})
    )

    assert bundle.oauth_apps["slack-bot"].spec.options.goondan.anyone


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("user", "goondan: { anyone: true }"),
        ("global", 'goondan: { subject: "slack:team:{team.id}", anyone: true }'),
    ],
)
def test_anyone_option_contradicts_comparison_of_account(tmp_path: Path, mode: str, options: str) -> None:
    text = APP.replace(_SUBJECT, options).replace("subjectMode: global", f"subjectMode: {mode}")

    [finding] = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert (finding.level, finding.path) == ("error", "spec.options.goondan.anyone")


def two_apps(
    folder: Path, token_url: str, first: str, second: str, path: str = "/oauth/callback"
) -> list[str]:
    """Return the places of the findings in a bundle with two apps, with these issuers."""
    other = APP.replace("slack-bot", "other").replace("https://slack.example/oauth/token", token_url)
    other = other.replace("/oauth/callback,", f"{path},")
    texts = [
        app.replace("goondan: { ", f"goondan: {{ issuer: {issuer}, ") if issuer else app
        for app, issuer in ((APP, first), (other, second))
    ]
    return [one.path or "" for one in found_in(write(folder, {"goondan.yaml": "---\n".join(texts)}))]


OTHER = "https://other.example/token"
ISSUERS = "https://slack.example", "https://other.example"


def test_apps_of_two_providers_cannot_share_callback(tmp_path: Path) -> None:
    assert two_apps(tmp_path / "none", OTHER, "", "") == ["spec.redirect.callbackPath"]
    assert two_apps(tmp_path / "one", OTHER, ISSUERS[0], "") == ["spec.redirect.callbackPath"]
    assert two_apps(tmp_path / "same", OTHER, ISSUERS[0], ISSUERS[0]) == ["spec.redirect.callbackPath"]


def test_known_provider_or_issuer_lets_apps_share_callback(tmp_path: Path) -> None:
    assert two_apps(tmp_path / "path", OTHER, "", "", path="/oauth/other") == []
    assert two_apps(tmp_path / "provider", "https://slack.example/oauth/token", "", "") == []
    assert two_apps(tmp_path / "issuers", OTHER, *ISSUERS) == []


def test_parameters_of_flow_cannot_be_replaced_by_options() -> None:
    assert {"client_id", "redirect_uri", "state", "scope", "response_type"} <= RESERVED_PARAMETERS
    assert {"code_challenge", "code_challenge_method", "request_uri"} <= RESERVED_PARAMETERS


@pytest.mark.parametrize(
    ("gone", "path"),
    [
        ("    authorizationUrl: https://slack.example/oauth/authorize?tenant=7\n", "spec.endpoints"),
        (
            '  redirect: { callbackPath: /oauth/callback, baseUrl: "https://agents.example/base" }\n',
            "spec.redirect",
        ),
    ],
)
def test_authorization_code_flow_needs_endpoint_and_path(tmp_path: Path, gone: str, path: str) -> None:
    assert gone in APP

    found = told(found_in(write(tmp_path, {"goondan.yaml": APP.replace(gone, "")})))

    assert [(code, place) for _, code, place in found] == [("E_CONFIG_SCHEMA_INVALID", path)]


@pytest.mark.requirement("oauth.device-code.refused-if-unsupported")
def test_unservable_device_code_flow_is_refused(tmp_path: Path) -> None:
    device = APP.replace("flow: authorizationCode", "flow: deviceCode")

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": device}))
    assert "deviceAuthorizationUrl" in finding.message

    served = device.replace("  endpoints:\n", f"  endpoints:\n{DEVICE_URL}\n")
    assert found_in(write(tmp_path, {"goondan.yaml": served})) == []


def test_scopes_narrow_from_app_to_tool_to_export() -> None:
    app = ("read", "write", "admin")

    def faults(tool: tuple[str, ...] | None, *exports: tuple[str, ...]) -> list[tuple[str, str]]:
        found = scope_faults(app, tool, dict(enumerate(exports)), app="slack", tool="chat")
        return [(written(fault.path, ""), fault.error.message) for fault in found]

    assert faults(("read", "write"), ("write",), ()) == []
    assert faults(None) == []
    own, first, second = (f"spec.{place}auth.scopes" for place in ("", "exports[0].", "exports[1]."))
    assert faults(("read", "wriet")) == [(own, "the scope 'wriet' is not among those of OAuthApp/slack")]
    assert faults(("read",), (), ("admin",)) == [
        (second, "the scope 'admin' is not among those of Tool/chat")
    ]
    assert faults(None, ("read",)) == [(first, "an export's scopes need scopes of its Tool")]
