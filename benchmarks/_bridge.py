"""An empty bridge from gRPC to an engine: what the way through another process costs when nothing is done there.

`python -m benchmarks._bridge URL` prints its port. A call's message is the body to send to the engine; each piece
of the answer comes back as one message.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import grpc
from benchmarks._direct import HEADERS, Times

from paceline.engines.completions import CompletionStream

SERVICE, METHOD = "benchmarks.Bridge", "Stream"


async def run(url: str) -> None:
    """Serve until killed."""
    async with aiohttp.ClientSession() as session:

        async def stream(body: bytes, context: Any) -> AsyncIterator[bytes]:
            reader = CompletionStream()
            async with session.post(f"{url}/v1/completions", data=body, headers=HEADERS) as reply:
                async for data in reply.content.iter_any():
                    if chunk := reader.feed(data):
                        yield b"x" * len(chunk.token_ids)

        server = grpc.aio.server()
        # Without serializers the messages are the bytes themselves.
        handlers: dict[str, Any] = {METHOD: grpc.unary_stream_rpc_method_handler(stream)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()


async def through(channel: grpc.aio.Channel, body: bytes) -> Times:
    """Send one request through a bridge and note when its ids come."""
    times = Times()
    call: Any = channel.unary_stream(f"/{SERVICE}/{METHOD}")
    async for _ in call(body):
        times.mark()
    times.end()
    return times


@contextmanager
def bridge(url: str) -> Iterator[str]:
    """Run a bridge; yields its target."""
    command = [sys.executable, "-m", "benchmarks._bridge", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
