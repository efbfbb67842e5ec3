"""A pod that starts with the agent waits for gRPC, and for nothing that may never come."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from agent.core.discovery.config import Discovery
from agent.core.discovery.objects import ConfigMap
from agent.core.objects import Replace
from agent.destinations import OPENING, Destinations
from agent.settings import Answering


@pytest.fixture
async def destinations() -> AsyncIterator[Destinations]:
    settings = Answering(discovery=Discovery(trust_domain="cluster.local"), diagnostics=None)
    made = Destinations(settings, CollectorRegistry())
    opening = asyncio.create_task(made.open())
    yield made
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await made.close()


async def test_it_waits_until_calls_are_taken(destinations: Destinations) -> None:
    destinations.apply(Replace(ConfigMap, ()))
    assert not destinations.answering
    await destinations.opening()
    assert destinations.answering


async def test_it_does_not_wait_for_what_may_never_be_known(destinations: Destinations) -> None:
    async with asyncio.timeout(OPENING / 2):
        await destinations.opening()
    assert not destinations.answering
