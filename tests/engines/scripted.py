"""A server on a real socket that sends exactly the bytes a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

RECORDINGS = Path(__file__).parents[1] / "recordings" / "vllm-0.32"


def recorded(name: str) -> dict[str, Any]:
    """One recorded exchange with a real vLLM."""
    case: dict[str, Any] = orjson.loads((RECORDINGS / f"{name}.json").read_bytes())
    return case


def recorded_body(name: str) -> bytes:
    """The body of a recorded reply."""
    return str(recorded(name)["body"]).encode()


@dataclass
class Connection:
    """The server's end while it answers one request."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: asyncio.Event

    async def send(self, data: bytes) -> None:
        """Write raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        """Write one HTTP chunk; an empty one ends the body."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def start_stream(self) -> None:
        """Write the head of a streamed reply."""
        await self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def wait_until_left(self) -> None:
        """Wait until the client closes the connection, then set `ScriptedServer.left`."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.left.set()

    def cut(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


Script = Callable[[Connection], Awaitable[None]]


def reply(status: int, body: bytes, content_type: str = "application/json") -> Script:
    """A whole reply."""

    async def script(connection: Connection) -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        await connection.send(head.encode() + body)

    return script


def replay(name: str) -> Script:
    """A recorded reply: status, content type and body."""
    case = recorded(name)
    if case["content_type"].startswith("text/event-stream"):
        return stream(recorded_body(name))
    return reply(case["status"], recorded_body(name), case["content_type"])


def stream(*pieces: bytes) -> Script:
    """A streamed reply, each piece in a write of its own."""

    async def script(connection: Connection) -> None:
        await connection.start_stream()
        for piece in pieces:
            await connection.send_chunk(piece)
        await connection.send_chunk(b"")

    return script


def stream_then(last: Callable[[Connection], Awaitable[None] | None], *pieces: bytes) -> Script:
    """A streamed reply that does not end: after the pieces `last` runs."""

    async def script(connection: Connection) -> None:
        await connection.start_stream()
        for piece in pieces:
            await connection.send_chunk(piece)
        waiting = last(connection)
        if waiting is not None:
            await waiting

    return script


def in_turn(*scripts: Script) -> Script:
    """Each request gets the next script."""
    left = list(scripts)

    async def script(connection: Connection) -> None:
        await left.pop(0)(connection)

    return script


@dataclass
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedServer:
    """Answers each path by its script; 404 where there is none."""

    scripts: dict[str, Script] = field(default_factory=dict)
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def completions(self) -> list[dict[str, Any]]:
        """The bodies of the completion requests."""
        return [orjson.loads(request.body) for request in self.requests if request.path == "/v1/completions"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(Received(method, path, headers, body))
        script = self.scripts.get(path, reply(404, b'{"detail":"Not Found"}'))
        await script(Connection(reader, writer, self.left))
