"""OAuthApps of the authorization server, as a bundle would declare them."""

from typing import Any

from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.oauth.apps import OAuthApp
from tests.oauth_server.accounts import CLIENT_ID, CLIENT_SECRET

CALLBACK = "/oauth/callback"


def app_document(server_url: str, **spec: Any) -> JsonObject:
    """Return the resource of an OAuthApp; fields of ``spec`` replace the usual ones."""
    usual = {
        "provider": "slack",
        "flow": "authorizationCode",
        "subjectMode": "user",
        "client": {"clientId": {"value": CLIENT_ID}, "clientSecret": {"value": CLIENT_SECRET}},
        "endpoints": {
            "authorizationUrl": f"{server_url}/authorize",
            "tokenUrl": f"{server_url}/token",
            "revokeUrl": f"{server_url}/revoke",
            "userInfoUrl": f"{server_url}/userinfo",
            "deviceAuthorizationUrl": f"{server_url}/device_authorization",
        },
        "scopes": ["chat:write", "channels:read"],
        "redirect": {"callbackPath": CALLBACK},
    }
    return {
        "apiVersion": "goondan.ai/v1",
        "kind": "OAuthApp",
        "metadata": {"name": "slack-bot"},
        "spec": usual | spec,
    }


def make_oauth_app(server_url: str, **spec: Any) -> OAuthApp:
    """Return such an OAuthApp as the flows see it."""
    return OAuthApp.of(OAuthAppResource.model_validate(app_document(server_url, **spec)))
