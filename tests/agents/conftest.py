from collections.abc import AsyncIterator

import pytest
from tests.agents.scripted import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running
