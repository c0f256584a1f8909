"""The protocol as a small state machine: calls, two workers, sweepers, and what may go wrong.

A part is some calls, and the events of one mailbox, with everything that workers and sweepers hold of them.
Parts share nothing but the workers, and a worker's death is a step of each part: what holds in each part
holds in any number of them side by side. Time is not counted: a lease or a deadline is over when a step says
so.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.simulation.rules import CANCELLED, ENDED, OPEN, YES, Record, Rules

WORKERS = (0, 1)
#: holds what sweeps, cancels and completions have taken
SETTLER = 2
PLAIN, SAFE, EVENT = "plain", "safe", "event"
#: the token that the record has, as seen by its holder; a token that is not the record's any more
LIVE, STALE = "live", "stale"
#: most messages of one call; a broker that delivers more often shows nothing new
MOST_MESSAGES = 2
RUNS = {"claimed", "marked", "begun", "lingers"}


class Hand(NamedTuple):
    """One thing that a worker or a settler has of a call.

    ``does``: ``message`` (reserved, not claimed), ``claimed``, ``marked``, ``begun``, ``lingers`` (its event
    has a result, its handler runs), or what a settler has to do: ``settle`` and the verdict. A worker that
    must settle a call counts as a settler: its death has the same effect.
    """

    call: int
    who: int
    token: str
    does: str
    #: whether its lease has not ended since its holder last knew of it
    is_fresh: bool = True


class Part(NamedTuple):
    """One call, or the events of one mailbox."""

    records: tuple[Record, ...]
    is_late: tuple[bool, ...]
    hands: tuple[Hand, ...] = ()
    #: the mailbox
    box: tuple[int, ...] = ()
    #: how many runs of each call have begun, and whether one was marked
    begun: tuple[int, ...] = ()
    was_marked: tuple[bool, ...] = ()


class Step(NamedTuple):
    """One step: its text, the worker that ``{w}`` in it stands for, and the part afterwards."""

    text: str
    part: Part
    worker: int = SETTLER
    #: how many faults it is, and whether it is part of the way to a quiet end
    faults: int = 0
    heals: bool = True


class BrokenRuleError(Exception):
    """A step breaks a promise of the protocol."""

    def __init__(self, reason: str, worker: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.worker = worker


@dataclass(frozen=True, slots=True)
class Machine:
    """The steps of one part. ``kinds`` are those of its calls."""

    kinds: tuple[str, ...]
    rules: Rules
    #: whether calls are cancelled, completed, approved, suspended, retried and given back, and deadlines pass
    has_outsiders: bool = True

    def start(self) -> Part:
        """Return the part before anything was submitted."""
        none = tuple(False for _ in self.kinds)
        return Part(
            tuple(Record() for _ in self.kinds), none, begun=tuple(0 for _ in self.kinds), was_marked=none
        )

    def steps(self, part: Part) -> Iterator[Step]:
        """Yield every step that is possible.

        Raises:
            BrokenRuleError: a step breaks a promise.
        """
        for call in range(len(self.kinds)):
            yield from self._outside(part, call)
            yield from self._broker(part, call)
            yield from self._time(part, call)
        for hand in part.hands:
            yield from self._hand(part, hand)

    def without(self, part: Part, worker: int) -> Part:
        """Return the part after the death of a worker."""
        hands = tuple(hand for hand in part.hands if hand.who != worker)
        return part if hands == part.hands else part._replace(hands=hands)

    # Producers, and others who look at a call from outside

    def _outside(self, part: Part, call: int) -> Iterator[Step]:
        record = part.records[call]
        name = self.name(call)
        if not record.status:
            if call and not part.records[call - 1].status:
                return
            accepted = _with(part, call, self.rules.accept(record)[1])
            box = (*part.box, call) if self._is_event(call) else ()
            yield Step(f"{name} is submitted", accepted._replace(box=box))
            later = _with(part, call, self.rules.accept(record, is_later=True)[1])
            yield Step(f"{name} is submitted for later", later)
            return
        if self.has_outsiders:
            yield from self._operators(part, call)

    def _operators(self, part: Part, call: int) -> Iterator[Step]:
        record, name = part.records[call], self.name(call)
        answer, taken = self.rules.cancel(record, "new")
        if taken != record:
            hand = Hand(call, SETTLER, "new", "settle cancelled")
            yield Step(
                f"{name} is cancelled", _with(part, call, taken, *[hand] * (answer == "taken")), heals=False
            )
        if self._is_event(call) or record.status in ENDED:
            return
        for word, is_decision in (("completed", False), ("denied", True)):
            answer, taken = self.rules.resolve(
                record, "new", is_late=part.is_late[call], is_decision=is_decision
            )
            if record.completion is not None and answer in {"taken", "kept"}:
                raise BrokenRuleError(f"{name} is completed twice", SETTLER)
            late = "unapproved" if record.is_approval else "unresolved"
            settles = {"taken": "settle completed", "expired": f"settle {late}"}.get(answer)
            if taken != record:
                hands = [Hand(call, SETTLER, "new", settles)] if settles else []
                yield Step(f"{name} is {word}", _with(part, call, taken, *hands), heals=False)
        answer, taken = self.rules.approve(record, "new", is_late=part.is_late[call])
        if answer == "approved":
            yield Step(f"{name} is approved", _in_time(_with(part, call, taken), call), heals=False)

    # The broker: messages on their way to workers

    def _broker(self, part: Part, call: int) -> Iterator[Step]:
        record, name = part.records[call], self.name(call)
        if record.flying > sum(hand.does == "message" for hand in _hands(part, call)):
            back = record._replace(messages=record.messages + 1, flying=record.flying - 1)
            if self.rules.has("messages of dead workers are put back"):
                yield Step(f"the message of {name} is put back", _with(part, call, back))
        if record.status in OPEN and record.messages + record.flying < MOST_MESSAGES - 1:
            twice = record._replace(messages=record.messages + 1)
            yield Step(
                f"the message of {name} is delivered twice", _with(part, call, twice), faults=1, heals=False
            )
        if not record.messages:
            return
        taken = record._replace(messages=record.messages - 1)
        if self._is_event(call) and record.status not in ENDED and self.first(part)[1] != call:
            flying = _with(part, call, taken._replace(flying=record.flying + 1))
            for worker in WORKERS:
                hand = Hand(call, worker, STALE, "message")
                yield Step(f"worker {{w}} reserves the message of {name}", _add(flying, hand), worker)
            yield Step(f"the answer to a reservation of {name} is lost", flying, faults=1, heals=False)
            return
        reserved = _with(part, call, taken)
        for worker in WORKERS:
            verdict, hands, claimed = self._claim(reserved, call, worker)
            text = f"worker {{w}} reserves {name}: {verdict}"
            yield Step(text, _add(claimed, *hands), worker)
        if hands:
            yield Step(f"the answer to a reservation of {name} is lost", claimed, faults=1, heals=False)

    def _claim(self, part: Part, call: int, worker: int) -> tuple[str, list[Hand], Part]:
        verdict, record = self.rules.claim(
            part.records[call], "new", is_late=part.is_late[call], idempotent=self.kinds[call] == SAFE
        )
        if verdict in {"held", "done", "absent"}:
            return verdict, [], part
        if part.records[call].status == "scheduled":
            raise BrokenRuleError(f"{self.name(call)} would run before its time", worker)
        if verdict == "run" and part.is_late[call]:
            raise BrokenRuleError(f"{self.name(call)} would run after its deadline", worker)
        hand = Hand(call, worker, "new", "claimed")
        if verdict != "run":
            hand = Hand(call, SETTLER, "new", f"settle {verdict}")
        return verdict, [hand], _with(part, call, record)

    # Time

    def _time(self, part: Part, call: int) -> Iterator[Step]:
        record, name = part.records[call], self.name(call)
        if record.due == "lease":
            is_held = any(hand.token == LIVE for hand in _hands(part, call))
            hands = tuple(
                hand._replace(is_fresh=False) if hand.call == call and hand.token == LIVE else hand
                for hand in part.hands
            )
            over = _with(part._replace(hands=hands), call, record._replace(due="over"))
            yield Step(f"the lease of {name} ends", over, faults=int(is_held), heals=not is_held)
        if record.due == "time":
            woken = _with(part, call, self.rules.wake(record))
            box = (*part.box, call) if self._is_event(call) else part.box
            yield Step(f"the time of {name} comes", woken._replace(box=box))
        if record.due == "deadline" and not part.is_late[call] and self.has_outsiders:
            late = tuple(one or number == call for number, one in enumerate(part.is_late))
            is_pending = record.status == "pending"  # what waits for a worker must not need this to end
            yield Step(f"the deadline of {name} passes", part._replace(is_late=late), heals=is_pending)
        is_due = record.due == "over" or (record.due == "deadline" and part.is_late[call])
        if is_due:
            is_event = self._is_event(call)
            verdict, taken = self.rules.sweep(record, "new", is_event=is_event)
            goes_on = " on" if is_event and taken.overran == taken.token else ""
            token = taken.token or ""
            hands_of = [Hand(call, SETTLER, token, f"settle {verdict}{goes_on}")] if verdict else []
            yield Step(f"{name} is swept: {verdict}", _with(part, call, taken, *hands_of))

    # What a worker or a settler does with what it holds

    def _hand(self, part: Part, hand: Hand) -> Iterator[Step]:
        rest = _drop(part, hand)
        does, _, verdict = hand.does.partition(" ")
        if does == "settle":
            name = self.name(hand.call)
            yield Step(f"{name} is settled: {verdict}", self._settle(rest, hand, verdict))
            yield Step(f"whoever must settle {name} dies", rest, faults=1, heals=False)
            return
        steps = {
            "message": self._claim_message, "claimed": self._before_mark, "marked": self._before_begin,
            "begun": self._run, "lingers": self._linger,
        }[does]  # fmt: skip
        yield from steps(part, rest, hand)
        if does == "message":
            return
        yield from self._hold(part, rest, hand)
        answer, record = self.rules.renew(part.records[hand.call], hand.token)
        if answer == YES and not hand.is_fresh:
            renewed = _add(_with(rest, hand.call, record), hand._replace(is_fresh=True))
            yield Step(f"worker {{w}} renews {self.name(hand.call)}", renewed, hand.who)
        elif answer != YES:
            yield Step(f"worker {{w}} learns that {self.name(hand.call)} is lost", rest, hand.who)

    def _hold(self, part: Part, rest: Part, hand: Hand) -> Iterator[Step]:
        """``keep_leases.lua``: a handler holds the interpreter of its worker beyond the limit of a run."""
        answer, record = self.rules.keep(part.records[hand.call], is_past_limit=True)
        if hand.token == LIVE and answer == "over":
            held = _add(_with(rest, hand.call, record), hand._replace(is_fresh=False))
            text = f"worker {{w}} can do nothing until {self.name(hand.call)} is past its limit"
            yield Step(text, held, hand.who, faults=1, heals=False)

    def _claim_message(self, part: Part, rest: Part, hand: Hand) -> Iterator[Step]:
        """``claim_event.lua``, for an event that was not the first when its message was reserved."""
        call, name = hand.call, self.name(hand.call)
        # the acknowledgement may be lost: then the message is delivered twice
        flying = max(0, rest.records[call].flying - 1)
        then = _with(rest, call, rest.records[call]._replace(flying=flying))
        box, first = self.first(then)
        then = then._replace(box=box)
        record = then.records[call]
        if record.status == "queued" and first != call and self.rules.has("only the first event is claimed"):
            parked = self._release_first(_with(then, call, record._replace(is_parked=True)))
            yield Step(f"worker {{w}} parks {name}", parked, hand.who)
            return
        verdict, hands, claimed = self._claim(then, call, hand.who)
        yield Step(f"worker {{w}} claims {name}: {verdict}", _add(claimed, *hands), hand.who)

    def _before_mark(self, part: Part, rest: Part, hand: Hand) -> Iterator[Step]:
        call, name, record = hand.call, self.name(hand.call), part.records[hand.call]
        answer, marked = self.rules.start(record, hand.token)
        after: Part = _with(rest, call, marked)
        if answer == YES:
            if record.status in ENDED or record.is_cancelled:
                raise BrokenRuleError(f"{name} is marked after its end or its cancel", hand.who)
            was_marked = tuple(one or number == call for number, one in enumerate(part.was_marked))
            # the answer may come later, or never: begin asks whether the lease is still fresh
            marked_hand = hand._replace(does="marked", is_fresh=True)
            after = _add(after._replace(was_marked=was_marked), marked_hand)
        elif answer == CANCELLED:
            after = _add(after, hand._replace(who=SETTLER, does="settle cancelled"))
        yield Step(f"worker {{w}} marks {name}: {answer}", after, hand.who)
        yield from self._not_begun(rest, hand)
        if self.kinds[call] == PLAIN and self.has_outsiders:
            yield from self._suspend(rest, hand, is_approval=True)

    def _before_begin(self, part: Part, rest: Part, hand: Hand) -> Iterator[Step]:
        call, name = hand.call, self.name(hand.call)
        if hand.is_fresh or not self.rules.has("a run begins under a fresh lease"):
            begun = tuple(min(2, one + (number == call)) for number, one in enumerate(part.begun))
            after = _add(rest._replace(begun=begun), hand._replace(does="begun"))
            if hand.token != LIVE:
                raise BrokenRuleError(f"{name} begins, and its claim is lost", hand.who)
            self._require_order(part, call, hand.who)
            yield Step(f"worker {{w}} begins {name}", after, hand.who)
        else:
            again = _add(rest, hand._replace(does="claimed"))
            yield Step(f"worker {{w}} must mark {name} again", again, hand.who)
        yield from self._not_begun(rest, hand)

    def _not_begun(self, rest: Part, hand: Hand) -> Iterator[Step]:
        if not self.has_outsiders:
            return
        text = f"worker {{w}} gives {self.name(hand.call)} back"
        yield Step(text, self._queue_again(rest, hand, died=False, is_untouched=True), hand.who)

    def _run(self, part: Part, rest: Part, hand: Hand) -> Iterator[Step]:
        call, name = hand.call, self.name(hand.call)
        answer, after = self._store(rest, hand, "ok")
        if answer == CANCELLED:
            after = _add(after, hand._replace(who=SETTLER, does="settle cancelled"))
        yield Step(f"worker {{w}} ends {name}: {answer}", after, hand.who)
        if not self.has_outsiders:
            return
        if self._is_event(call):
            answer, after = self._store(rest, hand, "E_TOOL_TIMEOUT", still_runs=True)
            if answer == YES:
                lingering = _add(after, hand._replace(does="lingers"))
                yield Step(
                    f"worker {{w}} stores the result of {name}, whose handler runs on", lingering, hand.who
                )
        elif self.kinds[call] == PLAIN:
            yield from self._suspend(rest, hand, is_approval=False)
        else:
            record = part.records[call]
            is_last = record.attempt >= self.rules.most or part.is_late[call]
            answer, retried = self.rules.retry(record, hand.token, is_late=is_last)
            if answer == YES:
                yield Step(f"{name} will run once more", _with(rest, call, retried))

    def _linger(self, part: Part, rest: Part, hand: Hand) -> Iterator[Step]:
        _, after = self._store(rest, hand, "ok")
        yield Step(f"the handler of {self.name(hand.call)} ends", after, hand.who)

    def _suspend(self, rest: Part, hand: Hand, *, is_approval: bool) -> Iterator[Step]:
        call, name = hand.call, self.name(hand.call)
        if is_approval and rest.records[call].is_approved:
            return
        answer, record = self.rules.suspend(rest.records[call], hand.token, is_approval=is_approval)
        after = _with(rest, call, record)
        if answer == "pending":
            after = _in_time(after, call)
        elif answer == CANCELLED:
            after = _add(after, hand._replace(who=SETTLER, does="settle cancelled"))
        elif answer == "completed":
            after = self._store(after, hand, "completed")[1]
        yield Step(f"worker {{w}} makes {name} wait for {'an approval' if is_approval else 'its completion'}",
                   after, hand.who)  # fmt: skip

    # Ends of runs

    def _settle(self, part: Part, hand: Hand, verdict: str) -> Part:
        if verdict == "requeue":
            return self._queue_again(part, hand, died=True)
        result, _, goes_on = verdict.partition(" ")  # an event whose handler runs on keeps its claim
        answer, after = self._store(part, hand, result, still_runs=bool(goes_on))
        if answer == CANCELLED:
            return self._store(part, hand, "cancelled", still_runs=bool(goes_on))[1]
        return after

    def _queue_again(self, part: Part, hand: Hand, *, died: bool, is_untouched: bool = False) -> Part:
        answer, record = self.rules.release(
            part.records[hand.call], hand.token, died=died, is_untouched=is_untouched
        )
        if answer == YES:
            return _with(part, hand.call, record)
        return self._store(part, hand, "cancelled")[1]

    def _store(self, part: Part, hand: Hand, result: str, *, still_runs: bool = False) -> tuple[str, Part]:
        call, name, before = hand.call, self.name(hand.call), part.records[hand.call]
        answer, record = self.rules.finish(
            before, hand.token, result, is_dead=result == "poisoned", still_runs=still_runs
        )
        after = _with(part, call, record)
        if record == before:
            return answer, after
        if before.status in ENDED and before.result != record.result:
            raise BrokenRuleError(f"the final result of {name} changes", hand.who)
        if record.result != before.result and before.is_cancelled != (record.result == "cancelled"):
            raise BrokenRuleError(
                f"{name} ends as {record.result}; cancelled: {before.is_cancelled}", hand.who
            )
        if record.result == "unknown" and not part.was_marked[call]:
            raise BrokenRuleError(f"the outcome of {name} is unknown, and it never began", hand.who)
        was_completed = before.status == "pending" and before.completion is not None
        if was_completed and record.result not in {"completed", "cancelled"}:
            raise BrokenRuleError(f"{name} was completed and ends as {record.result}", hand.who)
        if self._is_event(call) and record.token is None:
            after = self._release_next(after, call)
        return answer, after

    # Mailboxes

    def first(self, part: Part) -> tuple[tuple[int, ...], int | None]:
        """Return the mailbox without events that have ended, and its first one."""
        box = part.box
        while box:
            record = part.records[box[0]]
            if record.status not in ENDED or record.token is not None:
                return box, box[0]
            box = box[1:]
        return box, None

    def _release_next(self, part: Part, call: int) -> Part:
        part = part._replace(box=tuple(one for one in part.box if one != call))
        return self._release_first(part) if self.rules.has("the end of an event releases the next") else part

    def _release_first(self, part: Part) -> Part:
        box, first = self.first(part)
        part = part._replace(box=box)
        if first is None or part.records[first].status != "queued" or not part.records[first].is_parked:
            return part
        record = part.records[first]
        return _with(part, first, record._replace(is_parked=False, messages=record.messages + 1))

    def _require_order(self, part: Part, call: int, worker: int) -> None:
        if not self._is_event(call):
            return
        for earlier in part.box[: part.box.index(call) if call in part.box else None]:
            if part.records[earlier].status not in ENDED or part.records[earlier].token is not None:
                raise BrokenRuleError(
                    f"{self.name(call)} begins before {self.name(earlier)} has ended", worker
                )

    # What must be true

    def check(self, part: Part) -> str:
        """Return what is wrong with a state, or nothing."""
        for call, record in enumerate(part.records):
            problem = self._misplaced(part, call, record)
            if problem:
                return f"{self.name(call)} {problem}"
            if part.begun[call] > 1 and self.kinds[call] != SAFE:
                return f"{self.name(call)} is not idempotent and begins twice"
        running = [hand.call for hand in part.hands if hand.does == "begun" and hand.is_fresh]
        for call in running:
            if running.count(call) > 1:
                return f"{self.name(call)} runs twice under valid leases"
        if sum(map(self._is_event, running)) > 1:
            return "two events of one mailbox run at once"
        return ""

    def _misplaced(self, part: Part, call: int, record: Record) -> str:
        index = {"scheduled": "", "queued": "", "pending": "pending"}.get(record.status, record.place)
        if record.place != index or (record.status in ENDED and index):
            return f"is {record.status} and stands among those that are {record.place or 'neither'}"
        if record.status in OPEN and not record.due:
            return f"is {record.status} and nothing will ever be decided about it"
        if record.status in {"scheduled", "queued"} and record.token is not None:
            return f"is {record.status} and claimed"
        if record.status == "queued":
            has_message = record.messages or record.flying
            if not has_message and not (record.is_parked and self.first(part)[1] != call):
                return "is queued and has no message"
        return ""

    def name(self, call: int) -> str:
        """Return the name of a call in stories."""
        kind = {PLAIN: "the call", SAFE: "the idempotent call"}.get(self.kinds[call])
        return kind or f"event {call + 1}"

    def _is_event(self, call: int) -> bool:
        return self.kinds[call] == EVENT


def is_quiet(part: Part) -> bool:
    """Whether every call that was accepted has ended, and nothing is left of it."""
    return (
        not part.hands
        and not part.box
        and all(not one.messages and not one.flying and not one.due for one in part.records)
        and all(not one.status or one.status in ENDED for one in part.records)
    )


def _hands(part: Part, call: int) -> list[Hand]:
    return [hand for hand in part.hands if hand.call == call]


def _with(part: Part, call: int, record: Record, *hands: Hand) -> Part:
    records = (*part.records[:call], record, *part.records[call + 1 :])
    return part._replace(records=records, hands=(*part.hands, *hands))


def _add(part: Part, *hands: Hand) -> Part:
    return part._replace(hands=(*part.hands, *hands))


def _drop(part: Part, hand: Hand) -> Part:
    hands = list(part.hands)
    hands.remove(hand)
    return part._replace(hands=tuple(hands))


def _in_time(part: Part, call: int) -> Part:
    return part._replace(is_late=tuple(one and number != call for number, one in enumerate(part.is_late)))


def settled(part: Part, kinds: tuple[str, ...]) -> Part:
    """Return a part without what makes no difference: names of tokens, fields that nothing will read."""
    live = [record.token for record in part.records]
    hands = [_settled_hand(hand, live[hand.call]) for hand in part.hands]
    messages = [hand for hand in hands if hand.does == "message"]
    others = {
        hand for hand in hands if hand.does != "message"
    }  # the same stale thing twice makes no difference
    is_open = [record.status not in ENDED for record in part.records]
    return Part(
        tuple(map(_settled_record, part.records, kinds)),
        tuple(map(operator.and_, part.is_late, is_open)),
        tuple(sorted([*messages, *others])),
        part.box,
        tuple(
            one if now and kind != SAFE else 0
            for one, now, kind in zip(part.begun, is_open, kinds, strict=True)
        ),
        tuple(map(operator.and_, part.was_marked, is_open)),
    )


def _settled_hand(hand: Hand, live: str | None) -> Hand:
    """Rename the token of a hand; freshness matters only for runs."""
    is_run = hand.does in RUNS
    return hand._replace(token=LIVE if hand.token == live else STALE, is_fresh=hand.is_fresh or not is_run)


def _settled_record(record: Record, kind: str) -> Record:
    token = None if record.token is None else LIVE
    if record.status in ENDED:
        messages = min(record.messages, 1)
        result = record.result and "some"
        return record._replace(status="done", token=token, result=result, messages=messages)
    is_running = record.status == "running"
    return record._replace(
        token=token,
        completion=None if record.completion is None else LIVE,
        released=None,
        overran=LIVE if record.overran is not None and record.overran == record.token else None,
        verdict="",
        attempt=record.attempt if kind == SAFE else min(record.attempt, 1),
        is_idempotent=record.is_idempotent and is_running,
        has_worker=record.has_worker and is_running,
    )


def swapped(part: Part) -> Part:
    """Return a part with the two workers in each other's place."""
    hands = (hand._replace(who=1 - hand.who) if hand.who != SETTLER else hand for hand in part.hands)
    return part._replace(hands=tuple(sorted(hands)))
