"""A whole runtime in this process, over a real socket, in front of emulated engines in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import create_engine, text

from paceline import config
from paceline.app import Runtime, open_runtime
from paceline_agents.aio import AsyncClient

FLAGS = [
    "--enable-prompt-tokens-details",
    "--per-request-spec-decode-metrics=summary",
    '--speculative-config={"method":"ngram","num_speculative_tokens":4}',
]


class Emulator:
    """One emulated server."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline.emulator", "--port=0", "--max-num-seqs=4", *FLAGS, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout
        self.url: str = json.loads(self.process.stdout.readline())["url"]

    async def script(self, *rules: dict[str, Any]) -> None:
        """Set what it says."""
        await self._post("script", list(rules))

    async def fault(self, **fault: Any) -> None:
        """Let the next request run into a fault."""
        await self._post("faults", [fault])

    async def no_faults(self) -> None:
        """Forget the faults that no request has run into."""
        await self._post("faults", [])

    async def counts(self) -> list[dict[str, Any]]:
        """What its ended requests used, as far as it knows; probes left out."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/emulator/counts") as reply:
            rows = (await reply.json())["requests"]
        return [row for row in rows if "probe" not in row["request_id"]]

    async def _post(self, path: str, body: Any) -> None:
        url = f"{self.url}/emulator/{path}"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
            assert reply.status == 200, await reply.text()

    def kill(self) -> None:
        """As an engine that is gone from one moment to the next."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture
def emulator() -> Iterator[Callable[..., Emulator]]:
    """Start emulators; all are gone afterwards."""
    started: list[Emulator] = []

    def start(*flags: str) -> Emulator:
        started.append(Emulator(*flags))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@dataclass
class Paceline:
    """A runtime under test."""

    runtime: Runtime
    client: AsyncClient
    ledger: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def sql(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Read the ledger behind the runtime's back."""
        engine = create_engine(f"sqlite:///{self.ledger}")
        try:
            with engine.connect() as connection:
                return [dict(row._mapping) for row in connection.execute(text(query), values)]
        finally:
            engine.dispose()

    @property
    def target(self) -> str:
        """Address of the server."""
        return f"127.0.0.1:{self.runtime.port}"


def settings_for(path: Path, urls: list[str], /, **more: Any) -> config.Settings:
    """One model on emulated engines, priced."""
    engines = {
        f"e{number}": {
            "model": "m",
            "url": url,
            "max_concurrent_steps": 4,
            "instance_type": "box",
            "speculation": "n",
        }
        for number, url in enumerate(urls)
    }
    values: dict[str, Any] = {
        "server": {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "shutdown_grace_seconds": 0.2},
        "ledger": {"url": f"sqlite:///{path}"},
        "models": {"m": {"path": "emulated"}},
        "engines": engines,
        "speculation": {"n": {"method": "ngram", "num_speculative_tokens": 4}},
        "prices": {"m": {"input": "0.50", "cached_input": "0.05", "output": "2.00"}},
        "accelerators": {"box": {"usd_per_hour": "3.60"}},
    }
    for section, fields in more.items():
        values[section] = {**values.get(section, {}), **fields} if isinstance(fields, dict) else fields
    return config.parse(values, "test")


Serve = Callable[..., Any]


@asynccontextmanager
async def serve(path: Path, /, *urls: str, ready: bool = True, **more: Any) -> AsyncIterator[Paceline]:
    """Run a runtime for the length of the block."""
    async with open_runtime(settings_for(path, list(urls), **more)) as runtime:
        if ready:
            await runtime.ready.wait()
        async with AsyncClient(f"127.0.0.1:{runtime.port}") as client:
            yield Paceline(runtime, client, path)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Where the SQLite ledger of a test lies."""
    return tmp_path / "ledger.db"


@pytest.fixture
def run(ledger: Path) -> Serve:
    """`async with run(url, ...) as paceline`."""

    def start(*urls: str, **more: Any) -> Any:
        return serve(ledger, *urls, **more)

    return start
