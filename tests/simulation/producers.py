"""What producers and operators do: submit, cancel, complete, approve."""

from random import Random

from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.errors import ApprovalDeniedError, GoondanError
from goondan_tasks.ledger.record import CallRecord, Claim, Outcome, Verdict
from tests.simulation.world import THEMES, BrokenPromiseError, KnownCall, World


def submit(world: World, pick: Random) -> bool:
    """Submit a batch of calls, some of them again."""
    batch = [_again(world, pick) or _new_call(world, pick) for _ in range(pick.choice([1, 1, 1, 2, 4]))]
    known = [one for one in batch if one is not None]
    if not known:
        return False
    admissions = world.ledger.submit_all([one.submission for one in known], "p1")
    for one, admission in zip(known, admissions, strict=True):
        if admission.is_conflict and not one.is_foreign:
            raise BrokenPromiseError(f"{world.name(one)} is in conflict with itself")
        world.tell("submitted", one)
    return True


def _new_call(world: World, pick: Random, *, is_stored: bool = True) -> KnownCall | None:
    """Make a call; in half of all worlds most calls have limits, of the tools of one theme."""
    if world.theme is None:
        world.theme = pick.choice(THEMES) if pick.random() < 0.5 else ()
    return world.new_call(pick, is_stored=is_stored, tools=world.theme if pick.random() < 0.85 else ())


def submit_other_arguments(world: World, pick: Random) -> bool:
    """Submit a call again with other arguments, which is a conflict."""
    one = world.choose(
        pick,
        [
            one
            for one in world.calls.values()
            if one.is_stored and not (one.is_damaged or one.is_doubtful or one.is_lost)
        ],
    )
    if one is None:
        return False
    other = one.submission._replace(digest="0" * 32)
    [admission] = world.ledger.submit_all([other], "p2")
    if not admission.is_conflict and world.redis.exists(world.ledger.keys.call(one.id)):
        raise BrokenPromiseError(f"{world.name(one)} was accepted again with other arguments")
    return True


def send_plain_message(world: World, pick: Random) -> bool:
    """Queue a message without a record, as a plain Celery program does."""
    one = _new_call(world, pick, is_stored=False)
    if one is None or one.is_event:
        return False
    world.push(one)
    world.tell("queued by plain Celery", one)
    return True


def cancel(world: World, pick: Random) -> bool:
    """Cancel a call."""
    waiting = [
        world.calls[call_id]
        for state in world.limit_states.values()
        for call_id in state.line
        if call_id in world.calls
    ]
    one = world.choose(pick, waiting if waiting and pick.random() < 0.5 else world.calls.values())
    if one is None or pick.random() < 0.7:
        return False
    try:
        if pick.random() < 0.2:  # the canceller dies before it has taken the call out of its wait queue
            claim = world.ledger.cancel(one.id, "someone").run(world.redis)
            if claim is not None:
                world.reaper.settle(claim)
        else:
            world.reaper.cancel(one.id, "someone")
    except GoondanError:
        return False
    one.is_cancelled = True
    world.tell("cancelled", one)
    return True


def run_now(world: World, pick: Random) -> bool:
    """Run a call now, mostly one that is scheduled."""
    scheduled = [one for one in world.calls.values() if world.status(one) == b"scheduled"]
    one = world.choose(pick, scheduled if scheduled and pick.random() < 0.8 else world.calls.values())
    if one is None or pick.random() < 0.5:
        return False
    try:
        world.reaper.run_now(one.id)
    except GoondanError:
        return False
    one.is_run_now = True
    world.tell("is to run now", one)
    return True


def complete(world: World, pick: Random) -> bool:
    """Complete a call, mostly one that is pending."""
    pending = [one for one in world.calls.values() if world.status(one) == b"pending"]
    one = world.choose(pick, pending if pending and pick.random() < 0.7 else world.calls.values())
    if one is None:
        return False
    was_pending = world.status(one) == b"pending"
    outcome = Outcome({"completed": True})
    try:
        if pick.random() < 0.3:  # the completer dies before it has stored the result
            claim = world.ledger.resolve(one.id, outcome, "someone").run(world.redis)
            if claim is not None and claim.verdict is not Verdict.COMPLETED:  # it was too late
                return False
        else:
            world.completions.complete(one.id, outcome, "someone")
    except GoondanError:
        return True  # its time may have been over: then it has ended
    if one.is_completed and not one.is_damaged:
        raise BrokenPromiseError(f"{world.name(one)} was completed twice")
    one.is_completed = was_pending
    world.tell("completed", one)
    return True


def approve(world: World, pick: Random) -> bool:
    """Approve a call that waits for it, half of the time with other arguments, or deny it."""
    one = world.choose(pick, world.calls.values())
    record = None if one is None or one.is_damaged else world.ledger.record(one.id)
    if one is None or record is None:
        return False
    try:
        if pick.random() < 0.7:
            edited = {**record.call.args, "edit": pick.randrange(3)} if pick.random() < 0.5 else None
            one.is_edited = one.is_edited or edited is not None  # also if only the answer is lost
            world.completions.approve(record, "ann", edited)
        else:
            denied = Outcome(error=world.reaper.failure(_claim_of(record), ApprovalDeniedError("no")).error)
            world.completions.complete(one.id, denied, "ann", is_decision=True)
    except GoondanError:
        return True  # its time may have been over: then it has ended
    world.tell("approved or denied", one)
    return True


def _again(world: World, pick: Random) -> KnownCall | None:
    if pick.random() >= 0.2:
        return None
    one = world.choose(pick, [one for one in world.calls.values() if one.is_stored])
    if one is not None:
        world.renumber(one)
    return one


def _claim_of(record: CallRecord) -> Claim:
    return Claim(Run(record.id, record.call, "ann", 1, 0, lambda: 0.0), "", Verdict.RUN)
