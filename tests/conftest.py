"""What holds for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_is_reset() -> Iterator[None]:
    """Commands that run inside a test configure logging onto a stream that ends with the test."""
    yield
    structlog.reset_defaults()
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if handler.name != "paceline"]
