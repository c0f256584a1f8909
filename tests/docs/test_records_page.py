"""docs/reference/records.md lists every field of the records on the wire, and of the context of a handler."""

from dataclasses import fields

import pytest

from goondan_tasks.authoring.agent_api import AgentContext, AgentEvent
from goondan_tasks.authoring.tool_api import (
    CatalogResult,
    ProcessOutcome,
    RequestResult,
    SendResult,
    SpawnedAgentInfo,
    SpawnResult,
    ToolContext,
)
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.contract.messages import (
    IpcMessage,
    Message,
    ResultMeta,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    WireModel,
)
from goondan_tasks.contract.output import Progress
from goondan_tasks.history.attempts import Attempt
from goondan_tasks.history.trace import CallStory, Excerpt, RelatedCall, Trace, TraceNode, TraceSummary
from tests.docs.pages import page

RECORDS = page("docs/reference/records.md")

#: what a received event holds for its answer
INNER = {"claim", "started_at"}


RECORDS_ON_THE_WIRE = (
    AgentEvent,
    Attempt,
    CallStory,
    CatalogResult,
    Excerpt,
    IpcMessage,
    Message,
    Progress,
    RelatedCall,
    RequestResult,
    ResultMeta,
    SendResult,
    SpawnResult,
    SpawnedAgentInfo,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    Trace,
    TraceNode,
    TraceSummary,
)


@pytest.mark.parametrize("record", RECORDS_ON_THE_WIRE)
def test_page_lists_every_field_of_record(record: type[WireModel]) -> None:
    names = [field.alias or name for name, field in record.model_fields.items()]

    assert sorted(RECORDS.section(record.__name__).first_cells()) == sorted(names)


@pytest.mark.parametrize("context", [AgentContext, ProcessOutcome, ReceivedEvent, ToolContext])
def test_page_lists_every_field_that_handler_sees(context: type) -> None:
    names = [
        field.name for field in fields(context) if not field.name.startswith("_") and field.name not in INNER
    ]
    names += [name for name, member in vars(context).items() if isinstance(member, property)]

    assert sorted(RECORDS.section(context.__name__).first_cells()) == sorted(names)
