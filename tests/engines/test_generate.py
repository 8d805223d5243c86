from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import orjson
import pytest
from tests.engines.conftest import MakeEngine, collect, request_for
from tests.engines.scripted import (
    Connection,
    Script,
    ScriptedServer,
    recorded_body,
    replay,
    reply,
    stream,
    stream_then,
)

from paceline.engines.base import GenerationEnd, TokenChunk
from paceline.engines.stall import StallGuard
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.errors import EngineLost, EngineRefused, EngineUnavailable

FIRST = b'data: {"choices":[{"text":"x","finish_reason":null,"token_ids":[7,8]}]}\n\n'
LAST = b'data: {"choices":[{"text":"","finish_reason":"stop","token_ids":[9]}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def complete_with(server: ScriptedServer, script: Script) -> None:
    server.scripts["/v1/completions"] = script


async def test_a_recorded_turn_in_pieces_of_one_byte(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    body = recorded_body("stream_length")
    complete_with(server, stream(*(body[at : at + 1] for at in range(len(body)))))
    ids, end = await collect(engine, request_for())
    assert ids == [73594, 12669, 198, 750, 912, 65688, 24974, 1216]
    assert (end.finish_reason, end.output_tokens, end.cached_tokens) == ("length", 8, 64)


async def test_each_write_is_passed_on_before_the_next(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    """The server goes on only when the client has the first ids."""
    received = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.start_stream()
        await connection.send_chunk(FIRST)
        await received.wait()
        await connection.send_chunk(LAST + USAGE + DONE)
        await connection.send_chunk(b"")

    complete_with(server, script)
    chunks = []
    async for item in engine.generate(request_for()):
        if isinstance(item, TokenChunk):
            chunks.append(item.token_ids)
            received.set()
    assert chunks == [[7, 8], [9]]


async def test_the_request_as_the_server_gets_it(server: ScriptedServer, make_engine: MakeEngine) -> None:
    complete_with(server, stream(FIRST, LAST, USAGE, DONE))
    await collect(make_engine(api_key="secret", served_model_name="coder"), request_for(b"[4,5]"))
    (received,) = server.requests
    assert received.method == "POST"
    assert received.headers["authorization"] == "Bearer secret"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["x-request-id"] == "request-1"
    body = orjson.loads(received.body)
    assert (body["model"], body["prompt"], body["cache_salt"]) == ("coder", [4, 5], "tenant-a")
    assert "session_id" not in body  # not before a probe has found it


async def test_a_finished_stream_leaves_its_connection_to_the_next(
    server: ScriptedServer, engine: VllmHttpEngine
) -> None:
    complete_with(server, stream(FIRST, LAST, USAGE, DONE))
    for _ in range(3):
        assert (await collect(engine, request_for()))[0] == [7, 8, 9]
    assert server.connections == 1


async def test_the_end_of_the_body_is_waited_for_after_the_last_item(
    server: ScriptedServer, engine: VllmHttpEngine
) -> None:
    """The HTTP body ends only when the client has the last item; its connection serves the next request too."""
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.start_stream()
        await connection.send_chunk(FIRST + LAST + USAGE + DONE)
        await ended.wait()
        await connection.send_chunk(b"")

    complete_with(server, script)
    for _ in range(2):
        ended.clear()
        async for item in engine.generate(request_for()):
            if isinstance(item, GenerationEnd):
                ended.set()
    assert server.connections == 1


async def test_a_very_long_prompt_and_its_echo(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    prompt = orjson.dumps(list(range(100_000, 300_000)))
    echo = b'data: {"choices":[{"finish_reason":null,"prompt_token_ids":%s,"token_ids":[7,8]}]}\n\n' % prompt
    pieces = [echo[at : at + 1000] for at in range(0, len(echo), 1000)]
    complete_with(server, stream(*pieces, LAST, USAGE, DONE))
    ids, _ = await collect(engine, request_for(prompt))
    assert ids == [7, 8, 9]
    assert len(prompt) > 2**20
    assert server.requests[0].body.endswith(b',"prompt":' + prompt + b"}")


async def test_closing_the_generator_closes_the_connection(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    complete_with(server, stream_then(Connection.wait_until_left, FIRST))
    async with aclosing(engine.generate(request_for())) as items:
        assert await anext(items) == TokenChunk([7, 8])
    await asyncio.wait_for(server.left.wait(), 5)


async def test_closing_in_a_burst_closes_the_connection(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    """Unread data in the buffers does not hold the connection."""
    complete_with(server, stream_then(Connection.wait_until_left, FIRST * 20_000))
    async with aclosing(engine.generate(request_for())) as items:
        await anext(items)
    await asyncio.wait_for(server.left.wait(), 5)


async def test_cancelling_the_reader_closes_the_connection(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    reached = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.start_stream()
        reached.set()
        await connection.wait_until_left()

    complete_with(server, script)
    task = asyncio.create_task(collect(engine, request_for()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.left.wait(), 5)


async def test_cancelling_before_the_status_closes_the_connection(
    server: ScriptedServer, engine: VllmHttpEngine
) -> None:
    reached = asyncio.Event()

    async def script(connection: Connection) -> None:
        reached.set()
        await connection.wait_until_left()

    complete_with(server, script)
    task = asyncio.create_task(collect(engine, request_for()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.left.wait(), 5)


async def test_closing_the_engine_ends_its_streams(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    complete_with(server, stream_then(Connection.wait_until_left, FIRST))
    items = engine.generate(request_for())
    await anext(items)
    await engine.close()
    with pytest.raises(EngineLost):
        await anext(items)
    await asyncio.wait_for(server.left.wait(), 5)


async def test_a_reset_connection_is_a_lost_engine(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    complete_with(server, stream_then(Connection.cut, FIRST))
    with pytest.raises(EngineLost):
        await collect(engine, request_for())


async def test_a_stream_without_its_end_is_a_lost_engine(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    """Finish reason and usage came, but not `[DONE]`; the HTTP body is whole."""
    complete_with(server, stream(FIRST, LAST, USAGE))
    with pytest.raises(EngineLost, match="before its end"):
        await collect(engine, request_for())


async def test_the_ids_before_an_error_event_are_passed_on(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    error = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
    received = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.start_stream()
        await connection.send_chunk(FIRST)
        await received.wait()
        await connection.send_chunk(error + DONE)

    complete_with(server, script)
    items = engine.generate(request_for())
    assert await anext(items) == TokenChunk([7, 8])
    received.set()
    with pytest.raises(EngineLost, match="EngineCore died"):
        await anext(items)


async def test_nobody_listening_is_a_lost_engine() -> None:
    server = ScriptedServer()
    await server.start()
    await server.stop()
    engine = VllmHttpEngine(server.url)
    with pytest.raises(EngineLost, match="ClientConnectorError"):
        await collect(engine, request_for())
    await engine.close()


async def test_a_recorded_refusal(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    complete_with(server, replay("error_context_too_long"))
    with pytest.raises(EngineRefused, match="maximum context length is 4096 tokens"):
        await collect(engine, request_for())


async def test_a_full_queue_is_unavailable(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    complete_with(server, reply(503, b'{"error":{"message":"queue is full","code":503}}'))
    with pytest.raises(EngineUnavailable, match="queue is full"):
        await collect(engine, request_for())


async def test_silence_is_a_lost_engine(server: ScriptedServer, make_engine: MakeEngine) -> None:
    complete_with(server, stream_then(Connection.wait_until_left, FIRST))
    with pytest.raises(EngineLost, match="silent"):
        await collect(make_engine(stall_seconds=0.2), request_for())
    await asyncio.wait_for(server.left.wait(), 5)


async def test_silence_before_the_status_is_a_lost_engine(server: ScriptedServer, make_engine: MakeEngine) -> None:
    complete_with(server, Connection.wait_until_left)
    with pytest.raises(EngineLost, match="silent"):
        await collect(make_engine(stall_seconds=0.2), request_for())
    await asyncio.wait_for(server.left.wait(), 5)


async def test_comments_do_not_hide_a_hanging_engine(server: ScriptedServer, make_engine: MakeEngine) -> None:
    async def chatter(connection: Connection) -> None:
        with suppress(ConnectionError):
            while True:
                await connection.send_chunk(b": keep-alive\n\n")
                await asyncio.sleep(0.01)

    complete_with(server, stream_then(chatter, FIRST))
    with pytest.raises(EngineLost, match="silent"):
        await collect(make_engine(stall_seconds=0.2), request_for())


async def test_the_time_of_a_slow_consumer_is_no_stall() -> None:
    stalls = []
    with StallGuard(0.02, lambda: stalls.append("stall")) as guard:
        guard.pause()
        await asyncio.sleep(0.1)
        assert not stalls
        guard.resume()
        await asyncio.sleep(0.1)
        assert stalls == ["stall"]


async def test_a_guard_that_was_left_never_fires() -> None:
    stalls = []
    with StallGuard(0.01, lambda: stalls.append("stall")):
        pass
    await asyncio.sleep(0.05)
    assert not stalls
