"""Emulated servers on real sockets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from paceline.emulator.replies import RULES
from paceline.emulator.server import EmulatorServer
from paceline.emulator.settings import VERSIONS, Settings, Timing

Start = Callable[..., Awaitable["Running"]]
Launch = Callable[..., Awaitable[asyncio.subprocess.Process]]


@dataclass
class Running:
    """A started server and a client for it."""

    server: EmulatorServer
    url: str
    http: aiohttp.ClientSession

    async def script(self, *rules: dict[str, Any]) -> None:
        """Put rules in force."""
        async with self.http.post(self.url + "/emulator/script", json=list(rules)) as reply:
            assert reply.status == 200, await reply.text()

    async def faults(self, *faults: dict[str, Any]) -> None:
        """Put faults in the way of the next requests."""
        async with self.http.post(self.url + "/emulator/faults", json=list(faults)) as reply:
            assert reply.status == 200, await reply.text()

    async def get(self, path: str) -> Any:
        """JSON of a GET."""
        async with self.http.get(self.url + path) as reply:
            return orjson.loads(await reply.read())

    async def post(self, body: Any, **headers: str) -> tuple[int, str, bytes]:
        """Status, content type and body of a completion request."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        all_headers = {"Content-Type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
        async with self.http.post(self.url + "/v1/completions", data=data, headers=all_headers) as reply:
            return reply.status, reply.headers["Content-Type"], await reply.read()

    async def stream(self, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
        """Events of a stream that ended well."""
        status, _, answer = await self.post({"stream": True, "return_token_ids": True} | body, **headers)
        assert status == 200, answer
        return events_of(answer.decode())


def events_of(body: str) -> list[dict[str, Any]]:
    """Events of a stream's text, which must end with [DONE]."""
    events = [part.removeprefix("data: ") for part in body.split("\n\n") if part]
    assert events.pop() == "[DONE]"
    return [orjson.loads(event) for event in events]


def token_ids(events: list[dict[str, Any]]) -> list[int]:
    """All generated ids."""
    return [token for event in events for choice in event["choices"] for token in choice["token_ids"]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start servers with settings; without one the time scale is 0."""
    runners: list[web.AppRunner] = []
    async with aiohttp.ClientSession() as http:

        async def start_one(rules: list[dict[str, Any]] | None = None, **settings: Any) -> Running:
            defaults: dict[str, Any] = {
                "model_name": "coder",
                "features": VERSIONS["0.32"],
                "timing": Timing(scale=0),
            }
            server = EmulatorServer(Settings(**(defaults | settings)), RULES.validate_python(rules or []))
            runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return Running(server, f"http://127.0.0.1:{runner.addresses[0][1]}", http)

        yield start_one
        for runner in runners:
            await runner.cleanup()


@pytest.fixture
async def launch() -> AsyncIterator[Launch]:
    """Start the command; what still runs at the end is killed."""
    processes: list[asyncio.subprocess.Process] = []

    async def start(*options: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "paceline.emulator",
            *options,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready_url(process: asyncio.subprocess.Process) -> str:
    """The address of the ready line."""
    assert process.stdout is not None
    ready = orjson.loads(await process.stdout.readline())
    assert ready["note"] == "emulated: no model runs"
    return str(ready["url"])
