"""Followers of a client for asyncio while Redis is away."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.client.threads import MOST_THREADS
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.names import call_identity

PATIENCE = 30.0


@pytest.fixture
def nowhere() -> Iterator[str]:
    """Return a URL at which nothing listens, and nothing else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}/0"


def test_followers_awaiting_redis_hold_up_no_trip(nowhere: str) -> None:
    async def program() -> None:
        settings = Settings.load(redis_url=nowhere, connect_timeout_seconds=0)
        async with AsyncClient(Client(settings)) as client:
            call_id = call_identity("coder", "k", "t", "c")
            streams = [client.follow(call_id) for _ in range(MOST_THREADS)]
            joining = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await asyncio.sleep(0)
            with pytest.raises(BrokerUnreachableError, match="cannot be reached"):
                await asyncio.wait_for(client.record(call_id), PATIENCE)
            assert not any(one.done() for one in joining)
            for one in joining:
                one.cancel()
            await asyncio.gather(*joining, return_exceptions=True)

    asyncio.run(program())


def test_follower_joining_closed_client_never_awaits_redis(nowhere: str) -> None:
    async def program() -> None:
        client = AsyncClient(Client(Settings.load(redis_url=nowhere)))
        joining = asyncio.ensure_future(anext(client.follow(call_identity("coder", "k", "t", "c"))))
        await client.close()
        with pytest.raises(BrokerUnreachableError):
            await asyncio.wait_for(joining, PATIENCE)

    asyncio.run(program())
