"""Bundles: their agents and revisions, and the consents of users to OAuthApps."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from goondan_tasks.client import AsyncClient
from goondan_tasks.client.bundles import BundleState
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, OAuthStoreError
from goondan_tasks.contract.messages import WireModel
from goondan_tasks.oauth.records import GrantNotFoundError, GrantSummary
from goondan_tasks.revisions.active import Activation
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.wire import Listing, Page, Sent, page_of


class ActivationBody(Sent):
    """A revision to be activated."""

    ref: str = Field(description="`git:` and the 40 digits of a commit.")


class RevocationBody(Sent):
    """A consent to be revoked."""

    oauth_app: str
    subject: str


class Revocation(WireModel):
    """What was revoked."""

    oauth_app: str
    subject: str
    #: whether the provider has revoked the tokens, too
    provider_told: bool


@dataclass(frozen=True, slots=True)
class Bundles:
    """The operations on bundles."""

    client: AsyncClient

    async def list_bundles(self, asked: Asked) -> Reply:
        """List the bundles of all agents, by workspace, with their revisions."""
        found = await self.client.bundles()
        return Reply(page_of(found, asked.query, lambda one: [one.workspace], lambda one: one))

    async def activate_revision(self, asked: Asked) -> Reply:
        """Propose a revision to the workers of a bundle; the first that has loaded it makes it active."""
        body: ActivationBody = asked.body
        return Reply(await self.client.activate_revision(asked.path["workspace"], body.ref), 202)

    async def list_grants(self, asked: Asked) -> Reply:
        """List the consents of users to OAuthApps, without tokens."""
        found = await self.client.grants()
        return Reply(page_of(found, asked.query, lambda one: [one.name], lambda one: one))

    async def revoke_grant(self, asked: Asked) -> Reply:
        """Revoke a user's consent, also at the provider if the server's bundle has the app."""
        body: RevocationBody = asked.body
        told = await self.client.revoke_grant(body.oauth_app, body.subject)
        return Reply(Revocation(oauth_app=body.oauth_app, subject=body.subject, provider_told=told))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        bundles, grants, tag = {200: Content("A page.", Page[BundleState])}, Page[GrantSummary], "bundles"
        proposed, revoked = Content("What has become of it.", Activation), Content("It is.", Revocation)
        activate, unavailable = "/v1/bundles/{workspace}/activate", (BundleRevisionUnavailableError,)
        return [
            Operation("GET", "/v1/bundles", tag, "read", self.list_bundles, bundles, query=Listing),
            Operation(
                "POST",
                activate,
                tag,
                "admin",
                self.activate_revision,
                {202: proposed},
                unavailable,
                body=ActivationBody,
            ),
            Operation(
                "GET",
                "/v1/grants",
                tag,
                "read",
                self.list_grants,
                {200: Content("A page.", grants)},
                (OAuthStoreError,),
                query=Listing,
            ),
            Operation(
                "POST",
                "/v1/grants/revoke",
                tag,
                "admin",
                self.revoke_grant,
                {200: revoked},
                (GrantNotFoundError, OAuthStoreError),
                body=RevocationBody,
            ),
        ]
