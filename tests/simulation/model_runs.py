"""The machines that are explored, and rules that are left out so that a search must find a broken promise."""

import time
from dataclasses import dataclass

from tests.simulation.model import EVENT, PLAIN, SAFE, Machine
from tests.simulation.rules import Rules
from tests.simulation.search import Explored, explore


@dataclass(frozen=True, slots=True)
class Search:
    """A machine, and the most faults that happen in it."""

    kinds: tuple[str, ...]
    most_faults: int
    #: without them calls only run, and fail with their workers
    has_outsiders: bool = True

    def run(self, *left_out: str) -> Explored:
        """Explore the machine without the rules ``left_out``."""
        rules = Rules(most=2, full_death=2, without=frozenset(left_out))
        return explore(Machine(self.kinds, rules, self.has_outsiders), self.most_faults)

    def __str__(self) -> str:
        who = "" if self.has_outsiders else ", nobody from outside"
        return f"{' + '.join(self.kinds)}, at most {self.most_faults} faults{who}"


SEARCHES = (
    Search((PLAIN,), 2),
    Search((SAFE,), 2),
    Search((EVENT,), 3),
    Search((EVENT, EVENT), 0),
    Search((EVENT, EVENT), 1, has_outsiders=False),
    Search((PLAIN, SAFE), 1, has_outsiders=False),
    Search((SAFE, EVENT), 1, has_outsiders=False),
)
#: these take minutes
LARGE_SEARCHES = (
    Search((PLAIN,), 9),
    Search((SAFE,), 9),
    Search((EVENT,), 9),
    Search((EVENT, EVENT), 2),
    Search((EVENT, EVENT, EVENT), 2, has_outsiders=False),
    Search((PLAIN, SAFE, EVENT), 2, has_outsiders=False),
)

_ONE = Search((PLAIN,), 1)
_SAFE = Search((SAFE,), 0)
_TWO = Search((EVENT, EVENT), 0)
#: rules that keep a promise, alone or with another one; what must be found without them, and where
PLANTED: dict[tuple[str, ...], tuple[Search, str]] = {
    ("a claimed call is not claimed",): (_ONE, "the call begins, and its claim is lost"),
    ("a pending call is not claimed",): (_ONE, "the call is not idempotent and begins twice"),
    ("a call that has ended is not claimed",): (_TWO, "event 1 begins before event 2 has ended"),
    ("a call past its deadline is not run",): (_ONE, "the call would run after its deadline"),
    ("a claim is not a start",): (_ONE, "the outcome of the call is unknown, and it never began"),
    ("start compares tokens",): (_ONE, "the call begins, and its claim is lost"),
    ("start looks for a cancel",): (_ONE, "the call is marked after its end or its cancel"),
    ("an event that has ended is not started",): (
        Search((EVENT,), 1),
        "event 1 is marked after its end or its cancel",
    ),
    ("start leaves a mark",): (_ONE, "the call is not idempotent and begins twice"),
    ("a run begins under a fresh lease",): (_ONE, "the call begins, and its claim is lost"),
    ("renew compares tokens",): (_ONE, "the call begins, and its claim is lost"),
    ("finish compares tokens",): (_ONE, "the final result of the call changes"),
    ("finish looks for a cancel",): (_ONE, "the call ends as expired; cancelled: True"),
    ("the first completion counts",): (_ONE, "the call is completed twice"),
    ("release compares tokens",): (_ONE, "the call begins, and its claim is lost"),
    ("release sends a message",): (_ONE, "the call is queued and has no message"),
    ("sweep looks for the mark",): (_ONE, "the call ends as cancelled; cancelled: False"),
    ("sweep looks for the mark", "release looks for the mark"): (
        _ONE,
        "the call is not idempotent and begins twice",
    ),
    ("a scheduled call is not claimed",): (_ONE, "the call would run before its time"),
    ("a scheduled call is due at its time",): (
        _ONE,
        "the call is scheduled and nothing will ever be decided about it",
    ),
    ("a retry is due at its time",): (
        _SAFE,
        "the idempotent call is scheduled and nothing will ever be decided about it",
    ),
    ("a retry gives up the claim",): (_SAFE, "the idempotent call is scheduled and claimed"),
    ("waking sends a message",): (_ONE, "the call is queued and has no message"),
    ("only the first event is claimed",): (_TWO, "event 2 begins before event 1 has ended"),
    ("the end of an event releases the next",): (_TWO, "event 2 is queued and has no message"),
    ("messages of dead workers are put back",): (
        Search((EVENT, EVENT), 1, has_outsiders=False),
        "no quiet end can be reached any more",
    ),
}


def report() -> bool:
    """Run all searches, large ones too, and print what they find; return whether all is as it must be."""
    is_well = True
    for search in (*SEARCHES, *LARGE_SEARCHES):
        begun = time.process_time()
        seen = search.run()
        took = time.process_time() - begun
        print(f"{search}: {seen.states} states, {seen.transitions} transitions, {took:.1f} s", flush=True)
        if seen.problem is not None:
            print(seen.problem)
            is_well = False
    for rules, (search, reason) in PLANTED.items():
        problem = search.run(*rules).problem
        is_found = problem is not None and problem.reason == reason
        print(f"\nwithout the rule: {' and '.join(rules)}\n{problem if is_found else 'NOT FOUND'}")
        is_well = is_well and is_found
    return is_well
