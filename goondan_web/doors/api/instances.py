"""Instances: list them, read their conversations and files, delete them."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field
from starlette.responses import Response

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    ConversationError,
    InstanceBusyError,
    InstanceFileError,
    InstanceNotFoundError,
)
from goondan_tasks.contract.messages import Message, WireModel, epoch_milliseconds
from goondan_tasks.history.mailbox import Mailbox
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.instances.workdir_files import FilePart, InstanceFile
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.outputs import RANGE, RangeError, Source, ranged_answer
from goondan_web.doors.api.wire import (
    MOST_ITEMS,
    USUAL_ITEMS,
    AgentListing,
    Listing,
    Page,
    Query,
    page_of,
)

#: a browser saves it, and does not guess what it is
_AS_A_FILE = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}


class Removals(WireModel):
    """What was deleted: one entry for each workspace with such an instance."""

    items: list[InstanceRemoval]


class MailboxQuery(Query):
    """How much of a mailbox to return."""

    limit: int = Field(USUAL_ITEMS, ge=1, le=MOST_ITEMS, description="The most events, from the first on.")


class Rehearsal(Query):
    """Whether to say only what would be done."""

    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Instances:
    """The operations on instances of agents."""

    client: AsyncClient

    async def list_instances(self, asked: Asked) -> Reply:
        """List the instances, the one used last first."""
        query: AgentListing = asked.query
        found = await self.client.instances(query.agent)
        return Reply(page_of(found, query, _place, lambda one: one))

    async def get_instance(self, asked: Asked) -> Reply:
        """Show an instance."""
        agent, key = asked.path["agent"], asked.path["key"]
        for info in await self.client.instances(agent, key):
            return Reply(info)
        raise InstanceNotFoundError(f"Agent {agent[:200]!r} has no instance {key[:200]!r}.")

    async def list_messages(self, asked: Asked) -> Reply:
        """List the messages of an agent that thinks, the first first."""
        messages = await self.client.conversation(asked.path["agent"], asked.path["key"])
        numbered = list(enumerate(messages))
        return Reply(page_of(numbered, asked.query, lambda one: [one[0]], lambda one: one[1]))

    async def get_mailbox(self, asked: Asked) -> Reply:
        """Show the events that wait for an instance, in order."""
        query: MailboxQuery = asked.query
        return Reply(await self.client.mailbox(asked.path["agent"], asked.path["key"], query.limit))

    async def list_files(self, asked: Asked) -> Reply:
        """List the files of an instance's workdir."""
        files = await self.client.files(asked.path["agent"], asked.path["key"])
        return Reply(page_of(files, asked.query, lambda one: [one.path], lambda one: one))

    async def read_file(self, asked: Asked) -> Response:
        """Read a file of an instance's workdir, whole or a range of its bytes."""
        agent, key, path = (asked.path[name] for name in ("agent", "key", "path"))
        first = await self.client.read_file(agent, key, path, 0, 1)

        async def read(offset: int, limit: int | None) -> FilePart:
            part = await self.client.read_file(agent, key, path, offset, limit)
            if not part.is_of(first):
                raise InstanceFileError(
                    f"{path[:200]!r} was replaced while it was read.", suggestion="Read it again."
                )
            return part

        source = Source(read, f'"{first.changed_at}-{first.size}"', _AS_A_FILE, "application/octet-stream")
        return await ranged_answer(source, asked.request.headers)

    async def delete_instance(self, asked: Asked) -> Reply:
        """Delete an instance with its files."""
        query: Rehearsal = asked.query
        removed = await self.client.delete_instance(
            asked.path["key"], asked.path["agent"], dry_run=query.dry_run
        )
        return Reply(Removals(items=removed))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        path, tag, unknown = "/v1/instances/{agent}/{key}", "instances", (InstanceNotFoundError,)
        listed = {200: Content("A page.", Page[InstanceInfo])}
        shown = {200: Content("The instance.", InstanceInfo)}
        messages = {200: Content("A page.", Page[Message])}
        removed = {200: Content("What was deleted.", Removals)}
        return [
            Operation("GET", "/v1/instances", tag, "read", self.list_instances, listed, query=AgentListing),
            Operation("GET", path, tag, "read", self.get_instance, shown, unknown),
            Operation(
                "GET",
                f"{path}/messages",
                tag,
                "read",
                self.list_messages,
                messages,
                (*unknown, ConversationError),
                query=Listing,
            ),
            Operation(
                "GET",
                f"{path}/mailbox",
                tag,
                "read",
                self.get_mailbox,
                {200: Content("The mailbox.", Mailbox)},
                (AgentNotFoundError,),
                query=MailboxQuery,
            ),
            *self._files(path, tag),
            Operation(
                "DELETE",
                path,
                tag,
                "admin",
                self.delete_instance,
                removed,
                (*unknown, InstanceBusyError),
                query=Rehearsal,
            ),
        ]

    def _files(self, path: str, tag: str) -> Sequence[Operation]:
        errors = (InstanceNotFoundError, ConversationError, InstanceFileError)
        listed = {200: Content("A page.", Page[InstanceFile])}
        media_type = "application/octet-stream"
        read = {
            200: Content("The file.", None, media_type),
            206: Content("The range.", None, media_type),
        }
        return [
            Operation("GET", f"{path}/files", tag, "read", self.list_files, listed, errors, query=Listing),
            Operation(
                "GET",
                f"{path}/files/{{path}}",
                tag,
                "read",
                self.read_file,
                read,
                (*errors, RangeError),
                headers=RANGE,
            ),
        ]


def _place(info: InstanceInfo) -> Sequence[str | float]:
    return [-epoch_milliseconds(info.last_used_at), info.workspace, info.target, info.instance_key]
