"""What operators do about bundles: revisions, files, and the consents of users to OAuthApps."""

from typing import TYPE_CHECKING

from goondan_tasks.client.acts import OF_BUNDLES
from goondan_tasks.client.arguments import checking_arguments
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.contract.errors import (
    BundleRevisionUnavailableError,
    ConfigError,
    ToolInputValidationError,
    extra,
)
from goondan_tasks.contract.messages import JsonObject, WireModel, iso_time, wall_clock
from goondan_tasks.contract.wording import hint
from goondan_tasks.fleet.audit import recording
from goondan_tasks.revisions.active import (
    Activation,
    ActiveRevision,
    RevisionChange,
    RevisionState,
    UnreadableRevisionsError,
)

if TYPE_CHECKING:
    from goondan_tasks.oauth.apps import OAuthApp
    from goondan_tasks.oauth.records import GrantSummary


class BundleAgent(WireModel):
    """An agent of a bundle, and the tools that it may call."""

    name: str
    swarm: str
    tools: tuple[str, ...]


class BundleState(WireModel):
    """A bundle, as its workspace knows it: its agents, and its revisions."""

    workspace: str
    agents: tuple[BundleAgent, ...]
    #: absent if no worker follows revisions
    revisions: RevisionState | None = None
    #: why the record of the revisions cannot be read
    fault: str | None = None
    #: the live workers by name, each with the revision that it runs
    workers: dict[str, str | None]


class BundleFiles(WireModel):
    """The files of a bundle on this machine, checked without running any of their code."""

    path: str
    valid: bool
    #: ``{"kind", "name", "file", "line"}`` of each
    resources: tuple[JsonObject, ...]
    #: as ``goondan validate --json`` has them
    findings: tuple[JsonObject, ...]


@recording(OF_BUNDLES)
@checking_arguments
class BundleClient(ClientConnection):
    """The operations on bundles."""

    def bundles(self) -> list[BundleState]:
        """Return the bundles of all agents that can be called, by workspace, with their revisions."""
        with self.broker_errors():
            agents, workers = self._known_agents.all().values(), self._agent_registry.workers()
            states = {one: self._revisions(one) for one in sorted({agent.workspace for agent in agents})}
        return [
            BundleState(
                workspace=workspace,
                agents=tuple(
                    BundleAgent(
                        name=one.name, swarm=one.swarm, tools=tuple(item["name"] for item in one.catalog)
                    )
                    for one in agents
                    if one.workspace == workspace
                ),
                revisions=state if isinstance(state, RevisionState) else None,
                fault=state if isinstance(state, str) else None,
                workers={one.name: one.bundle_ref for one in workers if one.workspace == workspace},
            )
            for workspace, state in states.items()
        ]

    def _revisions(self, workspace: str) -> RevisionState | str | None:
        try:
            return ActiveRevision(self._redis, self._ledger.keys, workspace).state()
        except UnreadableRevisionsError as error:
            return error.message

    def activate_revision(self, workspace: str, ref: str) -> Activation:
        """Propose a revision, ``git:<commit>``, to a bundle's workers, such as one that was active before.

        The first worker that has loaded it makes it active, so it may be ``proposed`` at first; one that does
        not load fails, with the reason, and the workers keep theirs.

        Raises:
            ToolInputValidationError: there is no such bundle, or no commit is named.
            BundleRevisionUnavailableError: no worker follows its revisions, or their record cannot be read.
        """
        name, _, digest = ref.partition(":")
        if name != "git" or len(digest) != 40 or not set(digest) <= set("0123456789abcdef"):
            raise ToolInputValidationError(
                f"{ref[:100]!r} names no commit.", suggestion="Write git: and its 40 digits."
            )
        known = {one.workspace for one in self.agents().values()}
        if workspace not in known:
            raise ToolInputValidationError(
                f"No bundle has the workspace {workspace[:100]!r}.",
                suggestion=hint(workspace, known, "Start a worker of the bundle."),
            )
        with self.broker_errors():
            revisions = ActiveRevision(self._redis, self._ledger.keys, workspace)
            revisions.propose(RevisionChange(new_ref=ref, timestamp=iso_time(wall_clock())))
            activation = Activation.of(ref, revisions.state())
        if activation.status == "unfollowed":
            raise BundleRevisionUnavailableError(
                f"No worker follows the revisions of {workspace!r}.",
                suggestion="Workers run the revision of their folder when they start.",
            )
        return activation

    def bundle_files(self) -> BundleFiles | None:
        """Check the files of ``GOONDAN_BUNDLE`` on this machine; ``None`` if it is not set.

        None of the bundle's code is run, so faults of entry files are left to `goondan validate`.
        """
        from goondan_tasks.bundle.bundle import inspect_resources  # reading YAML takes a while to import

        path = self.settings.bundle
        if path is None:
            return None
        _, findings, scope = inspect_resources(path, import_entries=False, import_typed=False)
        return BundleFiles(
            path=str(path),
            valid=all(one.level != "error" for one in findings),
            resources=tuple(
                {
                    "kind": one.kind,
                    "name": one.name,
                    "file": one.document.file,
                    "line": one.document.line_of(("metadata", "name")),
                }
                for one in scope.own.declarations
            ),
            findings=tuple(one.to_wire() for one in findings),
        )

    def grants(self) -> list["GrantSummary"]:
        """Return the consents of users to OAuthApps, without tokens; unreadable ones are left out."""
        from goondan_tasks.oauth.crypto import Keyring  # few programs need what it imports
        from goondan_tasks.oauth.manager import open_store
        from goondan_tasks.oauth.store import leave_out

        with self.broker_errors():
            return list(open_store(self.settings, self._redis, Keyring(())).grants(leave_out))

    def revoke_grant(self, app: str, subject: str) -> bool:
        """Revoke a subject's consent to an OAuthApp; return whether the provider was told.

        It is told if the client's bundle has the app, with a ``revokeUrl``. It is revoked here first.

        Without such a consent the error has the code ``grant_not_found``.

        Raises:
            OAuthStoreError: the grant cannot be read: :meth:`forget_grant` removes it.
            ConfigError: the extra ``oauth`` is not installed.
        """
        with extra("oauth"):  # optional: only now
            from goondan_tasks.oauth.manager import open_store, revoke_grant
            from goondan_tasks.oauth.provider import Provider

        known = self._oauth_app(app)
        with self.broker_errors():
            store = open_store(self.settings, self._redis)
            return revoke_grant(store, Provider(), wall_clock, oauth_app=app, subject=subject, app=known)

    def forget_grant(self, name: str) -> bool:
        """Remove a grant or a session by the name of its record, readable or not; return whether it was."""
        from goondan_tasks.oauth.crypto import Keyring
        from goondan_tasks.oauth.manager import open_store

        with self.broker_errors():
            return open_store(self.settings, self._redis, Keyring(())).forget(name)

    def _oauth_app(self, name: str) -> "OAuthApp | None":
        """Return an app of the bundle; one that is not valid must not keep a grant from being revoked."""
        from goondan_tasks.bundle import load_bundle
        from goondan_tasks.oauth.apps import apps_of

        if self.settings.bundle is None:
            return None
        try:
            return apps_of(load_bundle(self.settings.bundle).oauth_apps).get(name)
        except ConfigError as error:
            self._warn(f"The bundle {self.settings.bundle} cannot be loaded: {error}")
            return None
