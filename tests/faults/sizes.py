"""How big each scenario is: a short one for ``make test``, the whole for ``make faults``."""

from dataclasses import dataclass

import pytest

#: what every stack of these tests has: deaths are noticed in seconds
LEASE_SECONDS = 3
#: how much later than the lease a dead worker's call may move on (DESIGN "Delivery" rule 3)
MARGIN_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Size:
    """How many calls, by how many threads; ``longest`` is the longest handler, in seconds."""

    calls: int
    crowd: int
    longest: float
    kill_every: float = 2.0


def short_and_long(short: object, whole: object, minutes: float) -> list["pytest.ParameterSet"]:
    """Return both sizes of one scenario as parameters; the whole one may take ``minutes``."""
    marks = [pytest.mark.long, pytest.mark.timeout(minutes * 60)]
    return [
        pytest.param(short, id="short", marks=pytest.mark.short),
        pytest.param(whole, id="whole", marks=marks),
    ]


KILLS = short_and_long(Size(300, 32, 0.4, kill_every=1.5), Size(1_500, 96, 1.0), minutes=5)


@dataclass(frozen=True, slots=True)
class HostKills:
    """How many calls of tools in JavaScript, and how often their host is killed meanwhile."""

    calls: int
    kills: int


HOST_KILLS = short_and_long(HostKills(200, 10), HostKills(600, 30), minutes=5)


@dataclass(frozen=True, slots=True)
class Outage:
    """How many threads load the stack, how long Redis is away, frozen or full, and the longest handler."""

    crowd: int
    seconds: float
    longest: float


SHORT_OUTAGE = Outage(16, 1.5, 0.5)
WHOLE_OUTAGE = Outage(48, 4 * LEASE_SECONDS, 2 * LEASE_SECONDS)

#: how long Redis is away from clients, seconds: it restarts, and a failover by hand
AWAY_SHORT = 2.5
AWAY_LONG = 30.0

#: how many leases a long handler runs
LEASES = 5

#: how many calls two producers submit at the same moment; walks of ``tests/simulation`` do so in any order
RACES = 50

#: how many calls many threads of one client submit
CROWDS = short_and_long(Size(400, 40, 0), Size(10_000, 40, 0), minutes=5)


@dataclass(frozen=True, slots=True)
class Rolling:
    """A restart of all workers, one after the other, so many rounds."""

    workers: int
    rounds: int


ROLLING = Rolling(3, 4)


@dataclass(frozen=True, slots=True)
class RoughRoad:
    """How slow each way of a packet is, how often a connection is cut, in seconds, and under what load.

    The cuts end at some time: a worker needs seconds to come back over a slow road.
    """

    calls: int
    crowd: int
    delay: float
    cuts: int
    cut_every: float


ROUGH_ROADS = short_and_long(RoughRoad(60, 8, 0.02, 20, 0.3), RoughRoad(80, 16, 0.15, 60, 0.5), minutes=5)

#: the kills again, with other pools and brokers
FEWER_KILLS = Size(600, 48, 0.6, kill_every=1.5)
#: and where a worker takes seconds of both cores to start, so that calls do not wait for a place
SELDOM_KILLS = Size(500, 12, 0.6, kill_every=6)

#: how many calls the soak has, and how many of them before the first look
SOAK_CALLS = 100_000
SOAK_WARM_UP = SOAK_CALLS // 5
