"""How agents ask for changes of their bundle, in whatever spelling."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_config.settings import Settings
from goondan_tasks.authoring.changesets_api import ChangesetError, SwarmBundleApi
from goondan_tasks.authoring.v1_api import SwarmBundle
from goondan_tasks.bundle import BoundExtension, load_bundle
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ToolCall
from tests.unit.workers.runs import job_of
from tests.unit.workers.v1.gallery import V1_PROFILE_BUNDLE
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import running, running_for
from workers.extensions.services import SwarmBundleService, no_swarm_bundle
from workers.javascript.tools import Hosts
from workers.processes.isolation import Children
from workers.revisions.factory import make_extensions, make_registry
from workers.v1.services import V1SwarmBundle

CALL = new_call("coder", "bash__exec", {}, {})


@dataclass
class Bundle:
    """Notes what it is asked for."""

    asked: list[Any] = field(default_factory=list)

    def open_changeset(self, reason: str | None = None) -> Any:
        self.asked.append(("open", reason))
        return {"changesetId": "cs-1"}

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> Any:
        self.asked.append(("commit", changeset_id, message))
        return {"status": "ok"}

    def get_active_ref(self) -> str:
        return "git:0"


@pytest.fixture
def bundle() -> Bundle:
    return Bundle()


@pytest.fixture
def service(bundle: Bundle) -> SwarmBundleService:
    return SwarmBundleService(lambda call: bundle, lambda: CALL)


def test_request_is_arguments_or_object_in_either_spelling(
    service: SwarmBundleService, bundle: Bundle
) -> None:
    api: SwarmBundleApi = service
    older: SwarmBundle = V1SwarmBundle(service)
    for answer in (
        api.open_changeset("why"),
        older.open_changeset("why"),
        older.open_changeset({"reason": "why"}),
        older.open_changeset(reason="why"),
        older.open_changeset({"reason": None}),
    ):
        assert answer == {"changesetId": "cs-1"}
    api.commit_changeset("cs-1", "done")
    older.commit_changeset({"changesetId": "cs-1", "message": "done"})
    older.commit_changeset({"changeset_id": "cs-1"})

    assert [asked[1] for asked in bundle.asked[:5]] == ["why", "why", "why", "why", None]
    assert [asked[2] for asked in bundle.asked[5:]] == ["done", "done", None]


def test_async_code_awaits_answer(service: SwarmBundleService) -> None:
    async def ask() -> Any:
        return await service.get_active_ref(), await service.open_changeset()

    assert asyncio.run(ask()) == ("git:0", {"changesetId": "cs-1"})


@pytest.mark.parametrize(
    "request_object", [{"changesetID": "cs-1"}, {"changesetId": 7}, {"message": "no id"}, None]
)
def test_commit_without_id_is_refused(service: SwarmBundleService, request_object: Any) -> None:
    with pytest.raises(TypeError):
        V1SwarmBundle(service).commit_changeset(request_object)


def test_unchangeable_bundle_error_says_what_is_missing() -> None:
    with pytest.raises(ChangesetError, match=r"The bundle cannot be changed here\.") as raised:
        SwarmBundleService(no_swarm_bundle, lambda: CALL).open_changeset()
    assert "git repository" in (raised.value.suggestion or "")


def test_extension_changes_bundle_for_call_that_is_running(bundle: Bundle) -> None:
    seen: list[ToolCall] = []

    def bundle_for(call: ToolCall) -> SwarmBundleApi:
        seen.append(call)
        return bundle

    running.set(None)  # runs of earlier tests may have left theirs on this thread
    service = SwarmBundleService(bundle_for, partial(running_for, "coder"))
    with pytest.raises(ChangesetError, match="no Turn, Step or tool call is running here"):
        service.get_active_ref()
    token = running.set(job_of(CALL))
    service.get_active_ref()
    running.reset(token)

    assert seen == [CALL]


def test_extensions_of_both_versions_get_swarm_bundle(bundle: Bundle, tmp_path: Path) -> None:
    loaded = load_bundle(V1_PROFILE_BUNDLE)
    event_loop = EventLoopThread()
    event_loop.start()
    with Children() as children:
        registry = make_registry(Settings.load(state_root=tmp_path), loaded, children, Hosts())
        made = make_extensions(loaded, registry, event_loop, swarm_bundle_for=lambda call: bundle)
    running.set(job_of(new_call("curator", "calc.add", {}, {})))

    apis = [
        made.services.api("curator", BoundExtension("ext", {}, tmp_path / "x.py", is_v1), loaded)
        for is_v1 in (False, True)
    ]

    assert [api.swarm_bundle.get_active_ref() for api in apis] == ["git:0", "git:0"]
    running.set(None)
    event_loop.stop()
