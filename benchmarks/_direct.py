"""A client that goes straight to an engine by token ids: what the runtime's cost is measured against."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

import aiohttp

from paceline.engines.base import GenerateRequest
from paceline.engines.completions import CompletionStream, encode_request
from paceline.workflow.model import Sampling

HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(slots=True)
class Times:
    """When things came, in seconds since the request was sent."""

    started: float = field(default_factory=time.perf_counter)
    tokens: list[float] = field(default_factory=list)
    """One entry for each piece of the answer."""
    total: float = 0.0

    def mark(self) -> None:
        """A piece has come."""
        self.tokens.append(time.perf_counter() - self.started)

    def end(self) -> None:
        """The answer is complete."""
        self.total = time.perf_counter() - self.started


def body(prompt_json: bytes, tokens: int, max_tokens: int, salt: str, stop: tuple[int, ...]) -> bytes:
    """The request that the runtime would send, too."""
    request = GenerateRequest(
        request_id=uuid.uuid4().hex,
        prompt_json=prompt_json,
        prompt_tokens=tokens,
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0.0),
        stop_token_ids=stop,
        cache_salt=salt,
        session_id="",
    )
    return encode_request(request, model="", session_field=False)


async def stream(session: aiohttp.ClientSession, url: str, request: bytes) -> Times:
    """Send one request and note when its ids come."""
    times, reader = Times(), CompletionStream()
    async with session.post(f"{url}/v1/completions", data=request, headers=HEADERS) as reply:
        reply.raise_for_status()
        async for data in reply.content.iter_any():
            if reader.feed(data):
                times.mark()
    times.end()
    return times
