"""The states in Redis."""

from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.orchestrator.upkeep import Upkeep
from goondan_tasks.orchestrator.upkeep_store import UpkeepStore


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def store(redis: Redis) -> UpkeepStore:
    return UpkeepStore(redis, Keys())


def test_an_agent_that_nothing_is_known_of_is_in_its_first_state(store: UpkeepStore) -> None:
    assert store.read(["coder"]) == {"coder": Upkeep()}
    assert store.read([]) == {}


def test_a_step_is_kept_and_has_a_time_to_live(store: UpkeepStore, redis: Redis) -> None:
    after = store.change("coder", lambda state, now: state.begun("mine", now, 1_000))

    assert after is not None
    assert after.started_at > 0
    assert store.read(["coder", "planner"]) == {"coder": after, "planner": Upkeep()}
    assert redis.ttl(Keys().upkeep("coder")) > 0


def test_a_step_that_is_not_allowed_changes_nothing(store: UpkeepStore) -> None:
    first = store.change("coder", lambda state, now: state.begun("mine", now, 60_000))

    assert store.change("coder", lambda state, now: state.begun("yours", now, 60_000)) is None
    assert store.read(["coder"]) == {"coder": first}


def test_of_two_that_want_the_same_start_one_gets_it(store: UpkeepStore) -> None:
    answers: list[Upkeep | None] = []

    def interrupted(state: Upkeep, now: int) -> Upkeep | None:
        if not answers:  # the other one comes between reading and writing
            answers.append(store.change("coder", lambda state, now: state.begun("yours", now, 60_000)))
        return state.begun("mine", now, 60_000)

    answers.append(store.change("coder", interrupted))

    assert [answer and answer.generation for answer in answers] == ["yours", None]
    assert store.read(["coder"])["coder"].generation == "yours"


def test_a_state_of_a_newer_version_is_told_and_not_changed(store: UpkeepStore, redis: Redis) -> None:
    redis.set(Keys().upkeep("coder"), '{"v": 99}')

    assert "cannot be read here" in store.read(["coder"])["coder"].reason
    with pytest.raises(ValueError, match="newer"):
        store.change("coder", lambda state, now: state.begun("mine", now, 1_000))
    assert redis.get(Keys().upkeep("coder")) == b'{"v": 99}'
