"""What the forms of the console do. Each leads back to a page that says what was done."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.fleet.http_tokens import ADMIN, CALL
from goondan_web.doors.console.asking import Act, Acting, after
from goondan_web.doors.console.rendering import PATH

#: what each act says afterwards, by the word in the address of the page that it leads to
_SAID: Mapping[str, str] = MappingProxyType(
    {
        "cancelled": "The call is cancelled; a running one is told to stop.",
        "completed": "The call is completed.",
        "approved": "The call is approved, and runs.",
        "denied": "The call is denied, and has ended.",
        "approved-all": "The calls that still waited are approved, and run.",
        "denied-all": "The calls that still waited are denied, and have ended.",
        "replayed": "The dead letter runs again, as a new call.",
        "dropped": "The dead letter is dropped; its record stays until it expires.",
        "paused": "It is paused: what waits stays in its queue, and what runs goes on.",
        "resumed": "It goes on.",
        "drains": "The worker takes no more calls, and ends when those that run have ended.",
        "proposed": "The revision is proposed: the first worker that has loaded it makes it active.",
        "revoked": "The consent is revoked.",
        "fired": "The schedule has fired.",
        "deleted": "The instance is deleted, with its conversation and files.",
    }
)


def said(word: str | None) -> str | None:
    """Return what was done, in words; ``None`` if nothing was."""
    return _SAID.get(word or "")


def cancel(acting: Acting) -> str:
    """Cancel a call."""
    _calling(acting)
    acting.client.cancel(acting.path["id"])
    return after("cancelled", "calls", acting.path["id"])


def resolve(acting: Acting) -> str:
    """Complete a pending call with the output of the form, which is JSON."""
    _calling(acting)
    acting.client.resolve(acting.path["id"], acting.json("output", b"null"))
    return after("completed", "calls", acting.path["id"])


def fail(acting: Acting) -> str:
    """Complete a pending call with an error."""
    _calling(acting)
    if not (message := acting.text("message")):
        raise ToolInputValidationError("The error needs a message.")
    acting.client.fail(acting.path["id"], {"message": message})
    return after("completed", "calls", acting.path["id"])


def _calling(acting: Acting) -> None:
    if not acting.caller.may(ADMIN):
        acting.require(CALL + acting.client.record(acting.path["id"]).call.agent_name)


def replay(acting: Acting) -> str:
    """Run one dead letter again: once more only if the form was made after its last replay."""
    acting.require(ADMIN)
    letter = acting.client.record(acting.path["id"])
    call = acting.client.replay(letter.id, again=acting.text("before") == letter.replayed_by)
    return after("replayed", "calls", call.id)


def drop(acting: Acting) -> str:
    """Drop one dead letter."""
    acting.require(ADMIN)
    acting.client.drop(acting.path["id"])
    return after("dropped", "dead-letters")


def _administered(word: str, page: str, act: Callable[[Acting], object]) -> Callable[[Acting], str]:
    """Return what does something that needs the scope ``admin``, and leads to a page."""

    def administer(acting: Acting) -> str:
        acting.require(ADMIN)
        act(acting)
        return after(word, page)

    return administer


def _pause(acting: Acting) -> None:
    tool = acting.text("tool") or None
    acting.client.pause(acting.path["agent"], tool, acting.text("reason"), acting.caller.person)


def _resume(acting: Acting) -> None:
    acting.client.resume(acting.path["agent"], acting.text("tool") or None)


def _drain(acting: Acting) -> None:
    acting.client.shutdown(
        worker=acting.path["name"], reason=f"asked by {acting.caller.person} in the console"
    )


def _run_schedule(acting: Acting) -> None:
    acting.client.schedules.run(acting.path["name"], request_key=acting.request_key)


def _pause_schedule(acting: Acting) -> None:
    acting.client.schedules.pause(acting.path["name"], acting.text("reason"), acting.caller.person)


def _resume_schedule(acting: Acting) -> None:
    acting.client.schedules.resume(acting.path["name"])


def _delete_instance(acting: Acting) -> None:
    acting.client.delete_instance(acting.path["key"], acting.path["agent"])


_SCHEDULE = f"{PATH}/schedules/{{name}}"
ACTS = (
    Act(f"{PATH}/calls/{{id}}/cancel", cancel),
    Act(f"{PATH}/calls/{{id}}/resolve", resolve),
    Act(f"{PATH}/calls/{{id}}/fail", fail),
    Act(f"{PATH}/dead-letters/{{id}}/replay", replay),
    Act(f"{PATH}/dead-letters/{{id}}/drop", drop),
    Act(f"{PATH}/agents/{{agent}}/pause", _administered("paused", "queues", _pause)),
    Act(f"{PATH}/agents/{{agent}}/resume", _administered("resumed", "queues", _resume)),
    Act(f"{PATH}/workers/{{name}}/drain", _administered("drains", "workers", _drain)),
    Act(f"{_SCHEDULE}/run", _administered("fired", "schedules", _run_schedule)),
    Act(f"{_SCHEDULE}/pause", _administered("paused", "schedules", _pause_schedule)),
    Act(f"{_SCHEDULE}/resume", _administered("resumed", "schedules", _resume_schedule)),
    Act(
        f"{PATH}/conversations/{{agent}}/{{key}}/delete",
        _administered("deleted", "conversations", _delete_instance),
    ),
)
