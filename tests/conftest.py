"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_is_reset() -> Iterator[None]:
    """Commands that run inside a test configure logging onto a stream that ends with the test."""
    handlers = list(logging.getLogger().handlers)
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
