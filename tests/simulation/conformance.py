"""Holds the real scripts against the rules of the model, while a walk goes on.

Each script that runs is followed by its rule, on records that this module keeps: the answers must be the
same, and after each step the records in Redis must be those of the rules. All else is a broken promise.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from itertools import zip_longest
from typing import Any

from broker_config.in_flight import InFlight, ReservationFactory
from broker_config.scripts import ScriptCall
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import LimitScripts
from goondan_tasks.ledger.scripts import Scripts
from goondan_tasks.ledger.timer import Timer
from tests.simulation.rules import CANCELLED, ENDED, LOST, OPEN, YES, Record, Rules

_ID = re.compile(rb'"id": ?"([^"]+)"')
#: longer than any run may last
LONG_MS = 10_000_000
#: of a mark
KEYED = -3
_WORDS = {0: LOST, -1: CANCELLED}
#: of a row; the lists are running, pending, approvals, scheduled and, of an event that has ended, its
#: mailbox; the messages are those in its queue and in flight
FIELDS = (
    "status", "token", "due", "lists", "messages", "attempt", "deadline", "verdict", "deaths", "completion",
    "unstarted worker idempotent cancelled approval approved parked edited",
)  # fmt: skip
#: answers that leave the record as it is
_UNCHANGED = {"closed", "marked", "other", "unknown"}
#: what each world has of its own
_STATE = (
    "records", "agents", "deadlines", "times", "due", "_boxes", "_box_of", "_spared", "_enders", "_tags",
    "_lost", "loose", "since",
)  # fmt: skip
Table = dict[str, Callable[["Conformance", list[str], list[Any], Any], None]]


class MismatchError(AssertionError):
    """A script did what no rule of the model allows."""


def script_names(ledger: Ledger, in_flight: InFlight, reservations: ReservationFactory) -> dict[str, str]:
    """Return the names of the scripts by their digests."""
    names = {getattr(ledger._scripts, name).sha: name for name in Scripts.__slots__}
    others = {"reserve": reservations._script, "give_back": in_flight._give_back}
    others["acknowledge"] = in_flight._acknowledge
    others["admit"] = LimitScripts(ledger)._admit
    timer = Timer(ledger)
    others |= {"wake": timer._wake, "run_now": timer._run_now}
    return names | {script.sha: name for name, script in others.items()}


class Conformance:
    """The records that the rules have made in one world. Times are ms."""

    def __init__(self, names: dict[str, str], is_idempotent: Callable[[str], bool]) -> None:
        self._names = names
        self._is_idempotent = is_idempotent
        self._rules = Rules()
        self.now = 0
        self.records: dict[str, Record] = {}
        self.agents: dict[str, str] = {}
        self.deadlines: dict[str, int] = {}
        #: when scheduled calls are queued
        self.times: dict[str, int] = {}
        self.due: dict[str, float] = {}
        self._boxes: dict[str, list[str]] = defaultdict(list)
        self._box_of: dict[str, str] = {}
        #: the tokens that a sweep has spared, and when the last sweep was
        self._spared: dict[str, str | None] = {}
        self._swept_at = 0
        self._lease = 0
        #: the requests that have ended events
        self._enders: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._lost: set[str] = set()
        #: those whose messages are not followed
        self.loose: set[str] = set()
        #: what happened to a call since the last comparison
        self.since: dict[str, list[str]] = defaultdict(list)
        self.count = 0
        self.kinds: Counter[tuple[str, str, str]] = Counter()

    def copy(self) -> "Conformance":
        """Return another one, which goes on from the same records."""
        other = copy(self)
        for name in _STATE:
            setattr(other, name, deepcopy(getattr(self, name)))
        return other

    def see(self, script_call: ScriptCall[Any], answer: Any) -> None:
        """Follow a script that has run."""
        name = self._names.get(script_call.script.sha, "")
        follow = _FOLLOWED.get(name)
        if follow is not None:
            arguments = [
                one.decode() if isinstance(one, bytes) else str(one) for one in script_call.arguments
            ]
            follow(self, list(map(str, script_call.keys)), arguments, answer)

    def push(self, call_id: str) -> None:
        """Note a message that another program has queued."""
        record = self._record(call_id)
        self.records[call_id] = record._replace(messages=record.messages + 1)

    def ignore_messages(self, call_id: str) -> None:
        """Do not follow the messages of a call with limits: the scripts of limits push them."""
        self.loose.add(call_id)

    def lose(self, call_id: str) -> None:
        """Forget a call whose record was overwritten; messages of its mailbox are not followed any more."""
        self.records.pop(call_id, None)
        self.due.pop(call_id, None)
        self._lost.add(call_id)
        box = self._box_of.get(call_id)
        self.loose |= {one for one, its_box in self._box_of.items() if its_box == box}

    def expected(self, call_id: str) -> str:
        """Return the row of a call as ``look.lua`` must find it."""
        record = self.records[call_id]
        due = f"{self.due[call_id]:.0f}" if record.due else ""
        lists = (
            record.place == "running", record.place == "pending", _is_asked(record),
            record.status == "scheduled", False,
        )  # fmt: skip
        flags = "".join("01"[is_in] for is_in in lists)
        token = record.token or ""
        counts = "" if call_id in self.loose else f"{record.messages} {record.flying}"
        if not record.status or record.status in ENDED:
            return f"{record.status}|{token}|{due}|{flags}|{counts}"
        deadline = f"{self.deadlines[call_id]:.0f}"
        facts = (record.attempt, deadline, record.verdict, record.deaths, record.completion or "")
        bits = (
            record.is_unstarted, record.has_worker, record.is_idempotent, record.is_cancelled,
            record.is_approval, record.is_approved, record.is_parked and call_id not in self.loose,
            record.is_edited,
        )  # fmt: skip
        more = "|".join(map(str, facts)) + "|" + "".join("01"[bit] for bit in bits)
        return f"{record.status}|{token}|{due}|{flags}|{counts}|{more}"

    def rows(self) -> list[tuple[str, str, int]]:
        """Return id and agent of each call that is followed, and whether its messages are."""
        return [(one, self.agents.get(one, ""), int(one not in self.loose)) for one in self.records]

    # What the rules share

    def _record(self, call_id: str) -> Record:
        return self.records.get(call_id, Record())

    def _is_late(self, call_id: str) -> bool:
        return self.deadlines.get(call_id, self.now) < self.now

    def _set(self, script: str, call_id: str, record: Record, *, is_touched: bool = True) -> None:
        before = self._record(call_id)
        self.records[call_id] = record
        self.since[call_id].append(script)
        self.count += 1
        self.kinds[script, before.status, record.status] += 1
        if not record.due:
            self.due.pop(call_id, None)
        elif record.due == "deadline":
            self.due[call_id] = self.deadlines[call_id]
        elif record.due == "time":
            self.due[call_id] = min(self.times[call_id], self.deadlines[call_id])
        elif record.due == "over":
            self.due[call_id] = self.now
            self.records[call_id] = record._replace(due="lease")
        elif is_touched:
            self.due[call_id] = self.now + self._lease
        if record.status in ENDED and before.status not in ENDED:
            self._spared.pop(call_id, None)

    def _agree(self, script: str, call_id: str, ours: str, theirs: str) -> None:
        if ours != theirs:
            raise MismatchError(
                f"{script}.lua answers otherwise than its rule: {theirs}, not {ours}: {call_id}"
            )

    def _is_followed(self, call_id: str) -> bool:
        return call_id not in self._lost

    def _accept(
        self, call_id: str, agent: str, deadline: int, box: str, *, has_message: bool, not_before: int = 0
    ) -> str:
        before = self._record(call_id)
        is_later = not_before > self.now and has_message
        word, record = self._rules.accept(before, is_later=is_later)
        if word == "new":
            self.agents[call_id], self.deadlines[call_id] = agent, deadline
            self.times[call_id] = not_before
            if not has_message:
                record = record._replace(messages=before.messages)
            if box:
                self._box_of[call_id] = box
                if not is_later:
                    self._boxes[box].append(call_id)
        self._set("submit", call_id, record, is_touched=False)
        return word

    def _first(self, box: str) -> str | None:
        boxes = self._boxes[box]
        while boxes:
            record = self._record(boxes[0])
            if record.status in OPEN or (record.status == "done" and record.token is not None):
                return boxes[0]
            boxes.pop(0)
        return None

    def _release_first(self, box: str) -> None:
        first = self._first(box)
        if first is None:
            return
        record = self.records[first]
        if record.status == "queued" and record.is_parked:
            self.records[first] = record._replace(is_parked=False, messages=record.messages + 1)
            self.since[first].append("released")

    def _claimed(
        self, script: str, call_id: str, token: str, answer: Sequence[Any], *, has_call: bool
    ) -> None:
        before = self._record(call_id)
        verdict, record = self._rules.claim(
            before, token, is_late=self._is_late(call_id), idempotent=self._is_idempotent(call_id),
            has_call=has_call,
        )  # fmt: skip
        self._agree(script, call_id, verdict, answer[0].decode())
        self._set(script, call_id, record, is_touched=record != before)

    # The scripts

    def _submit(self, keys: list[str], given: list[str], answer: list[Any]) -> None:
        words = {answer[at]: answer[at + 1].decode() for at in range(0, len(answer), 3)}
        for number, at in enumerate(range(3, len(given), 11)):
            call_id, deadline, patience, message, box, time = (given[at + one] for one in (0, 4, 5, 6, 8, 9))
            if not self._is_followed(call_id):
                continue
            agent = keys[1 + 3 * int(given[at + 3])].rpartition(":")[2]
            not_before = int(time or 0)
            ends = int(float(deadline)) if deadline else max(self.now, not_before) + int(patience)
            has_message = bool(message)
            word = self._accept(call_id, agent, ends, box, not_before=not_before, has_message=has_message)
            found = words.get(number, "new")
            self._agree("submit", call_id, word, "known" if found == "conflict" else found)

    def _claim(self, keys: list[str], given: list[str], answer: list[Any]) -> None:
        call_id, has_call = given[0], len(given) > 8
        if not self._is_followed(call_id):
            return
        self._lease = int(given[3])
        if has_call and not self._record(call_id).status:
            self.agents[call_id] = keys[2].rpartition(":")[2]
            self.deadlines[call_id] = int(float(given[10])) if given[10] else self.now + int(given[11])
        self._claimed("claim", call_id, given[1], answer, has_call=has_call)

    def _claim_event(self, keys: list[str], given: list[str], answer: list[Any]) -> None:
        call_id, box = given[0], given[-4]
        if not self._is_followed(call_id):
            return
        self._lease = int(given[3])
        record = self._record(call_id)
        if record.status == "queued" and self._first(box) != call_id:
            self._agree("claim_event", call_id, "waiting", answer[0].decode())
            self._set("claim_event", call_id, record._replace(is_parked=True))
            self._release_first(box)
            return
        self._claimed("claim_event", call_id, given[1], answer, has_call=False)

    def _reserve(self, keys: list[str], given: list[str], answer: list[Any]) -> None:
        self._lease = json.loads(given[4])["lease"]
        for tag, _, message, claim in zip(*[iter(answer[1])] * 4, strict=True):
            if isinstance(claim, list):
                self._reserve_claimed(tag.decode(), claim)
            elif message is not None:
                call_id = _ID.findall(message)[0].decode()
                self._tags[tag.decode()] = call_id
                self._move(call_id, -1, 1)

    def _reserve_claimed(self, tag: str, claim: list[Any]) -> None:
        call_id, verdict = claim[8].decode(), claim[0]
        if verdict == b"told" or not self._is_followed(call_id):
            return
        self._move(call_id, -1, 0)
        if verdict == b"waiting":  # for a limit
            return
        if verdict == b"limited":  # it is claimed, for its error
            claim = [b"run", *claim[1:]]
        box = self._box_of.get(call_id)
        if box and verdict not in {b"done", b"held"}:
            self._agree("reserve", call_id, str(self._first(box)), call_id)
        self._claimed("reserve", call_id, tag, claim, has_call=False)

    def _move(self, call_id: str, messages: int, flying: int) -> None:
        if not self._is_followed(call_id):
            return
        record = self._record(call_id)
        self.records[call_id] = record._replace(
            messages=record.messages + messages, flying=record.flying + flying
        )

    def _fly(self, call_id: str, more: int) -> None:
        if call_id:
            self._move(call_id, 0, more)

    def _acknowledged(self, keys: list[str], given: list[str], answer: int) -> None:
        call_id = self._tags.get(given[0], "")
        record = self._record(call_id)
        is_kept = len(keys) > 2 and (
            not record.status or (record.status == "queued" and not record.is_parked)
        )
        if call_id and self._is_followed(call_id) and call_id not in self.loose:
            self._agree("acknowledge", call_id, str(int(not is_kept)), str(answer))
        if answer:
            self._fly(self._tags.pop(given[0], ""), -1)

    def _give_back(self, _: list[str], given: list[str], answer: Any) -> None:
        for tag in given[1:]:
            call_id = self._tags.pop(tag, "")
            if call_id:
                self._move(call_id, 1, -1)

    def _start(self, _: list[str], given: list[str], answer: list[int]) -> None:
        self._lease = int(given[0])
        for call_id, token, word in zip(given[2::3], given[3::3], answer, strict=True):
            if self._is_followed(call_id) and word != KEYED:  # another call has its key: nothing has happened
                ours, record = self._rules.start(self._record(call_id), token)
                self._agree("start", call_id, ours, _WORDS.get(word, YES))
                self._set("start", call_id, record, is_touched=ours == YES)
                if ours == YES:
                    self._spared.pop(call_id, None)

    def _renew(self, _: list[str], given: list[str], answer: list[bytes]) -> None:
        self._lease = int(given[0])
        lost = {one.decode() for one in answer}
        for call_id, token in zip(given[2::2], given[3::2], strict=True):
            if self._is_followed(call_id):
                ours, record = self._rules.renew(self._record(call_id), token)
                if ours != YES:  # another claim of the same call may be in the list
                    self._agree("renew", call_id, "lost", "lost" if call_id in lost else "renewed")
                self._set("renew", call_id, record, is_touched=ours == YES)
                if ours == YES:
                    self._spared.pop(call_id, None)

    def _finish(self, _: list[str], given: list[str], answer: list[int]) -> None:
        for number, at in enumerate(range(6, len(given), 9)):
            self._finished("finish", given[at : at + 9], answer[number])

    def _finish_step(self, _: list[str], given: list[str], answer: list[Any]) -> None:
        self._finished("finish_step", given[6:15], answer[0])

    def _finished(self, script: str, given: list[str], answer: int, *, still_runs: bool = False) -> str:
        call_id, token, _, status, _, kind, *_ = given
        if not self._is_followed(call_id):
            return ""
        result = "cancelled" if kind == "cancelled" else "stored"
        before = self._record(call_id)
        word, record = self._rules.finish(
            before, token, result, is_dead=status == "dead", still_runs=still_runs
        )
        self._agree(script, call_id, word, _WORDS.get(answer, YES))
        self._set(script, call_id, record, is_touched=record != before)
        return word

    def _finish_event(self, keys: list[str], given: list[str], answer: Any) -> None:
        call_id, request, box = given[6], given[17], given[18]
        if not self._is_followed(call_id) or self._enders.get(call_id) == request:
            return
        number = answer if isinstance(answer, int) else answer[0]
        before, still_runs = self._record(call_id), bool(given[16])
        if still_runs:
            self._lease = int(given[16])
        word = self._finished("finish_event", given[6:15], number, still_runs=still_runs)
        if word == YES and before.status not in ENDED and len(given) > 20:
            agent = keys[7].rpartition(":")[2]
            ends = self.now + int(given[23])
            self._accept(given[20], agent, ends, given[25], has_message=bool(given[19]))
        if before == self.records[call_id] or still_runs:
            return
        self._enders[call_id] = request
        if box:
            self._boxes[box] = [one for one in self._boxes[box] if one != call_id]
            self._release_first(box)

    def _suspend(self, _: list[str], given: list[str], answer: Any) -> None:
        call_id, before = given[0], self._record(given[0])
        if not self._is_followed(call_id):
            return
        ours, record = self._rules.suspend(before, given[1], is_approval=given[9] == "1")
        theirs = "completed" if isinstance(answer, bytes) else _WORDS.get(answer, "pending")
        self._agree("suspend", call_id, ours, theirs)
        if ours == "pending":
            self.deadlines[call_id] = int(float(given[3]))
        self._set("suspend", call_id, record, is_touched=False)

    def _resolve(self, _: list[str], given: list[str], answer: list[Any]) -> None:
        call_id = given[0]
        ours, record = self._rules.resolve(
            self._record(call_id), given[1], is_late=self._is_late(call_id), is_decision=given[4] == "1",
            is_event=call_id in self._box_of,
        )  # fmt: skip
        self._decided("resolve", given, ours, record, answer)

    def _approve(self, _: list[str], given: list[str], answer: list[Any]) -> None:
        call_id = given[0]
        ours, record = self._rules.approve(
            self._record(call_id), given[1], is_late=self._is_late(call_id), is_edited=given[8] != ""
        )
        if ours == "approved":
            self.deadlines[call_id] = int(float(given[4])) if given[4] else self.now + int(given[5])
        self._decided("approve", given, ours, record, answer)

    def _cancel(self, _: list[str], given: list[str], answer: list[Any]) -> None:
        ours, record = self._rules.cancel(self._record(given[0]), given[1])
        self._decided("cancel", given, ours, record, answer)

    def _decided(self, script: str, given: list[str], ours: str, record: Record, answer: list[Any]) -> None:
        call_id, theirs = given[0], answer[0].decode()
        if not self._is_followed(call_id):
            return
        self._lease = int(given[2])
        is_same = (
            ours in _UNCHANGED and theirs in _UNCHANGED
        )  # what was said of a record that has ended is forgotten
        if not is_same:
            self._agree(script, call_id, ours, theirs)
        if self.records.get(call_id) is not None or record.status:
            self._set(script, call_id, record, is_touched=ours in {"taken", "expired"})

    def _release(self, _: list[str], given: list[str], answer: int) -> None:
        call_id, token, message, died, untouched = given[:5]
        if self._is_followed(call_id):
            ours, record = self._rules.release(
                self._record(call_id), token, died=died == "1", is_untouched=untouched == "1",
                has_message=bool(message),
            )  # fmt: skip
            self._agree("release", call_id, ours, YES if answer else LOST)
            self._set("release", call_id, record, is_touched=False)

    def _admit(self, _: list[str], given: list[str], answer: list[Any]) -> None:
        """A claimed call that must wait for a limit is queued again."""
        call_id, token = given[1], given[8]
        before = self._record(call_id)
        if not self._is_followed(call_id) or answer[0] != b"wait" or not token or before.token != token:
            return
        word, record = self._rules.release(before, token, died=False, is_untouched=True, has_message=False)
        self._agree("admit", call_id, word, YES)
        self._set("admit", call_id, record, is_touched=False)

    def _retry(self, keys: list[str], given: list[str], answer: int) -> None:
        call_id, before = given[0], self._record(given[0])
        if self._is_followed(call_id):
            starts_at = self.now + int(given[2])
            is_late = starts_at > self.deadlines.get(call_id, 0)
            ours, record = self._rules.retry(before, given[1], is_late=is_late)
            self._agree("retry", call_id, ours, YES if answer else LOST)
            if record != before:
                self.times[call_id] = starts_at
            self._set("retry", call_id, record, is_touched=False)

    def _wake(self, _: list[str], given: list[str], answer: list[int]) -> None:
        found = [
            one for one in self._due() if self._record(one).status == "scheduled" and not self._is_late(one)
        ][: int(given[1])]
        if len(found) != answer[0]:
            raise MismatchError(f"wake.lua queues {answer[0]} calls, not {len(found)}")
        for call_id in found:
            self._woken("wake", call_id, self._rules.wake(self._record(call_id)))

    def _run_now(self, _: list[str], given: list[str], answer: bytes) -> None:
        call_id, record = given[1], self._record(given[1])
        if not self._is_followed(call_id):
            return
        is_scheduled = record.status == "scheduled"
        self._agree("run_now", call_id, str(is_scheduled), str(answer == b"queued"))
        if is_scheduled:
            self._woken("run_now", call_id, self._rules.wake(record))

    def _woken(self, script: str, call_id: str, record: Record) -> None:
        box = self._box_of.get(call_id)
        if box:
            self._boxes[box].append(call_id)
        self._set(script, call_id, record)

    def _due(self) -> list[str]:
        """Return the calls that are due, in the order in which scripts read them."""
        return sorted(
            (one for one, due in self.due.items() if due <= self.now), key=lambda one: (self.due[one], one)
        )

    def _sweep(self, _: list[str], given: list[str], answer: list[list[Any]]) -> None:
        self._lease = int(given[1])
        if self.now - self._swept_at > float(given[4]):
            self._spare()
        self._swept_at = self.now
        # a call that waited for a limit has expired, too
        verdicts = {row[0].decode(): row[1].decode().replace("limited", "expired") for row in answer}
        for call_id in self._due():
            is_event, before = call_id in self._box_of, self._record(call_id)
            verdict, record = self._rules.sweep(
                before,
                given[0],
                is_event=is_event,
                is_late=self._is_late(call_id) or self.deadlines[call_id] == self.now,
            )
            self._agree("sweep", call_id, verdict, verdicts.pop(call_id, ""))
            if before.status == "scheduled" and record.status == "queued":
                self._woken("sweep", call_id, record)
                continue
            self._set("sweep", call_id, record, is_touched=bool(verdict))
        undue = [one for one in verdicts if self._is_followed(one)]
        if undue:
            raise MismatchError(f"sweep.lua takes calls that are not due: {', '.join(undue)}")

    def _spare(self) -> None:
        for call_id, due in self.due.items():
            record = self.records[call_id]
            is_claimed = record.status == "running" or (record.status == "done" and record.token)
            is_spared = record.token == self._spared.get(call_id)
            if due <= self.now + self._lease / 2 and is_claimed and not is_spared:
                self.due[call_id] = self.now + self._lease / 2
                self._spared[call_id] = record.token
                self.since[call_id].append("spared")

    def _end_leases(self, _: list[str], given: list[str], answer: int) -> None:
        for call_id, due in self.due.items():
            token = self.records[call_id].token
            if due <= self.now + int(given[0]) and token is not None and token.startswith(given[2]):
                self.due[call_id] = self.now
                self._spared[call_id] = token
                self.since[call_id].append("end_leases")

    def _keep_leases(self, _: list[str], given: list[str], answer: int) -> None:
        self._lease = int(given[0])
        is_past_limit = int(given[5]) >= LONG_MS
        kept = 0
        for call_id, due in list(self.due.items()):
            before = self.records[call_id]
            is_its = before.token is not None and before.token.startswith(given[3])
            if due > self.now + self._lease or not is_its:
                continue
            word, record = self._rules.keep(before, is_past_limit=is_past_limit)
            self._set("keep_leases", call_id, record, is_touched=word == "kept")
            if word == "over":
                self._spared[call_id] = before.token
            elif word == "kept":
                self._spared.pop(call_id, None)
                kept += 1
        self._agree("keep_leases", given[3], f"{kept} kept", f"{answer} kept")

    def _unqueue(self, _: list[str], given: list[str], answer: int) -> None:
        self._move(given[0], -answer, 0)


def differences(found: str, expected: str) -> str:
    """Describe in which fields two rows of a call differ."""
    fields = zip_longest(FIELDS, found.split("|"), expected.split("|"), fillvalue="")
    return ", ".join(f"{name} is {one!r}, not {other!r}" for name, one, other in fields if one != other)


def _is_asked(record: Record) -> bool:
    """Whether it is among those that wait for an approval."""
    return record.place == "pending" and record.is_approval


_FOLLOWED: Table = {
    "submit": Conformance._submit,
    "claim": Conformance._claim,
    "claim_event": Conformance._claim_event,
    "reserve": Conformance._reserve,
    "give_back": Conformance._give_back,
    "acknowledge": Conformance._acknowledged,
    "start": Conformance._start,
    "renew": Conformance._renew,
    "finish": Conformance._finish,
    "finish_step": Conformance._finish_step,
    "finish_event": Conformance._finish_event,
    "suspend": Conformance._suspend,
    "resolve": Conformance._resolve,
    "approve": Conformance._approve,
    "cancel": Conformance._cancel,
    "release": Conformance._release,
    "admit": Conformance._admit,
    "retry": Conformance._retry,
    "sweep": Conformance._sweep,
    "wake": Conformance._wake,
    "run_now": Conformance._run_now,
    "end_leases": Conformance._end_leases,
    "keep_leases": Conformance._keep_leases,
    "unqueue": Conformance._unqueue,
}
