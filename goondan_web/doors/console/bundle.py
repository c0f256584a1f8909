"""The page about bundles: agents, revisions, findings in files, and the consents of users."""

from typing import Any

from goondan_tasks.contract.errors import ConfigError, OAuthStoreError
from goondan_tasks.fleet.http_tokens import ADMIN
from goondan_tasks.oauth.records import GrantNotFoundError
from goondan_web.doors.console.asking import Act, Acting, Asking, View, after
from goondan_web.doors.console.rendering import PATH, Shown

#: how many resources, findings and consents are shown
_MOST_ROWS = 50


def show_bundles(asking: Asking) -> Shown:
    """Show the bundles of all agents; the files of one, if this server has them."""
    client = asking.client
    try:
        grants, trouble = client.grants(), None
    except (ConfigError, OAuthStoreError) as error:
        grants, trouble = [], str(error)
    data: dict[str, Any] = {
        "bundles": client.bundles(),
        "files": client.bundle_files(),
        "grants": grants[:_MOST_ROWS],
        "grantCount": len(grants),
        "trouble": trouble,
        "most": _MOST_ROWS,
    }
    return Shown("bundle.html", "Bundle", data)


def activate(acting: Acting) -> str:
    """Propose a revision to the workers."""
    acting.require(ADMIN)
    acting.client.activate_revision(acting.path["workspace"], acting.text("ref"))
    return after("proposed", "bundle")


def revoke(acting: Acting) -> str:
    """Revoke a grant, by the name of its record; one that cannot be read is removed."""
    acting.require(ADMIN)
    client, name = acting.client, acting.path["name"]
    for grant in client.grants():
        if grant.name == name:
            try:
                client.revoke_grant(grant.oauth_app, grant.subject)
            except OAuthStoreError:
                client.forget_grant(name)
            return after("revoked", "bundle")
    raise GrantNotFoundError(f"There is no grant {name[:200]!r}.")


PAGES = (View(f"{PATH}/bundle", show_bundles),)
ACTS = (
    Act(f"{PATH}/bundle/{{workspace}}/activate", activate),
    Act(f"{PATH}/grants/{{name}}/revoke", revoke),
)
