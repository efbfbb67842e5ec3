"""One event loop for all of gRPC's tests: what still comes for a call of a closed loop makes gRPC deaf."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/destination/" in item.path.as_posix() and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


@pytest_asyncio.fixture(loop_scope="package", scope="package", autouse=True)
async def quiet_end() -> AsyncIterator[None]:
    """The loop idles before it closes, so that nothing is left to come."""
    yield
    await asyncio.sleep(0.5)
