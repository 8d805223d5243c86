from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, settings
from tests.rpc.fakes import Served, serving

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running
