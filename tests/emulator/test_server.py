"""The server: turns, clients that go away, faults, versions and the admin routes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from tests.emulator.conftest import Running, Start, events_of, token_ids

from paceline.emulator.settings import VERSIONS

USAGE = {"include_usage": True}
PROMPT = list(range(100))


def body(**more: Any) -> dict[str, Any]:
    """A streamed request with usage."""
    return {
        "prompt": PROMPT,
        "max_tokens": 20,
        "stream": True,
        "return_token_ids": True,
        "stream_options": USAGE,
    } | more


def cached(events: list[dict[str, Any]]) -> int | None:
    """Cached tokens of the last event; None where they are not reported."""
    details = events[-1]["usage"].get("prompt_tokens_details")
    return None if details is None else details["cached_tokens"]


async def until(server: Running, running: int) -> None:
    """Wait until so many requests run."""
    while len(server.server.engine.running) != running:
        await asyncio.sleep(0.001)


async def test_each_turn_hits_all_full_blocks_of_the_turn_before(start: Start) -> None:
    server = await start(prompt_tokens_details=True)
    prompt, expected = PROMPT, 0
    for turn in range(4):
        events = await server.stream(body(prompt=prompt, cache_salt="a"))
        assert cached(events) == expected
        context = prompt + token_ids(events)
        expected = (len(context) - 1) // 32 * 32
        prompt = context + [turn] * 7
    assert cached(await server.stream(body(prompt=prompt, cache_salt="b"))) == 0


async def test_a_reply_without_a_script_says_that_no_model_ran(start: Start) -> None:
    server = await start()
    _, _, answer = await server.post({"prompt": PROMPT, "max_tokens": 40, "seed": 3})
    reply = orjson.loads(answer)
    assert reply["choices"][0]["text"].startswith("[emulated reply: no model ran]")
    assert reply["system_fingerprint"].endswith("-emulated")
    _, _, again = await server.post({"prompt": PROMPT, "max_tokens": 40, "seed": 3})
    assert orjson.loads(again)["choices"] == reply["choices"]


async def test_a_text_prompt_is_encoded_and_matched(start: Start) -> None:
    server = await start([{"contains": "<|im_start|>user\nfix", "reply": "done"}])
    events = await server.stream(body(prompt="<|im_start|>user\nfix it<|im_end|>"))
    assert events[0]["choices"][0]["prompt_token_ids"][0] > 255
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "done"


async def test_a_client_that_goes_away_frees_the_request(start: Start, tmp_path: Path) -> None:
    server = await start(prompt_tokens_details=True, counts_file=tmp_path / "counts.jsonl")
    await server.faults({"kind": "stall", "after_tokens": 3})
    async with server.http.post(server.url + "/v1/completions", json=body(request_id="left")) as reply:
        for _ in range(3):
            await reply.content.readuntil(b"\n\n")
        await until(server, 1)
        reply.close()
    await until(server, 0)
    counts = await server.get("/emulator/counts")
    assert counts["aborts"] == 1
    assert (counts["requests"][0]["request_id"], counts["requests"][0]["output_tokens"]) == ("left", 3)
    assert cached(await server.stream(body())) == 96
    rows = [orjson.loads(line) for line in (tmp_path / "counts.jsonl").read_bytes().splitlines()]
    assert [row["finish_reason"] for row in rows] == ["abort", "length"]
    assert rows == (await server.get("/emulator/counts"))["requests"]


async def test_a_client_may_leave_while_it_waits_for_its_first_token(start: Start) -> None:
    server = await start()
    await server.faults({"kind": "stall"})
    client = asyncio.create_task(server.post(body(stream=False, stream_options=None)))
    await until(server, 1)
    client.cancel()
    await until(server, 0)
    assert (await server.get("/emulator/counts"))["aborts"] == 1


async def test_a_refusal_has_a_status_and_a_body(start: Start) -> None:
    server = await start()
    await server.faults({"kind": "refuse", "status": 503}, {"kind": "refuse", "status": 429})
    assert [(await server.post(body()))[0] for _ in range(3)] == [503, 429, 200]


async def test_an_error_event_ends_the_stream(start: Start) -> None:
    server = await start()
    await server.faults({"kind": "error", "after_tokens": 4, "times": 2})
    events = events_of((await server.post(body()))[2].decode())
    assert len(token_ids(events[:-1])) == 4
    assert events[-1]["error"]["code"] == 500
    status, _, answer = await server.post(body(stream=False, stream_options=None))
    assert (status, orjson.loads(answer)) == (500, events[-1])


async def test_a_dropped_connection_breaks_the_stream(start: Start) -> None:
    server = await start()
    await server.faults({"kind": "drop", "after_tokens": 2})
    with pytest.raises(aiohttp.ClientPayloadError):
        await server.post(body())
    await until(server, 0)


async def test_an_abort_in_the_engine_ends_the_stream_in_order(start: Start) -> None:
    """Before the first token there is no chunk with a reason, as in vLLM."""
    server = await start()
    await server.faults({"kind": "abort", "after_tokens": 2}, {"kind": "abort"})
    events = events_of((await server.post(body()))[2].decode())
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "abort"]
    assert events[-1]["usage"]["completion_tokens"] == 2
    events = events_of((await server.post(body()))[2].decode())
    assert [event["choices"] for event in events] == [[]]


async def test_a_delay_comes_before_the_scheduler(start: Start) -> None:
    server = await start()
    await server.faults({"kind": "delay", "seconds": 0.05})
    before = asyncio.get_running_loop().time()
    await server.stream(body())
    assert asyncio.get_running_loop().time() - before >= 0.05


@pytest.mark.parametrize(
    ("version", "zero", "session", "generate"),
    [("0.24", None, False, True), ("0.29", 0, True, True), ("0.32", 0, True, False)],
)
async def test_versions_differ(
    start: Start, version: str, zero: int | None, session: bool, generate: bool
) -> None:
    server = await start(features=VERSIONS[version], prompt_tokens_details=True)
    assert (await server.get("/version"))["version"].startswith(version)
    assert cached(await server.stream(body())) == zero
    assert cached(await server.stream(body())) == 96
    document = await server.get("/openapi.json")
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert ("session_id" in fields) == session
    assert ("/inference/v1/generate" in document["paths"]) == generate


async def test_speculation_is_reported_only_when_asked_for(start: Start) -> None:
    spec = {"spec_method": "draft_model", "spec_tokens": 2, "acceptance": (1.0, 0.5)}
    silent = await start(**spec)
    assert "metrics" not in (await silent.stream(body()))[-1]
    server = await start(**spec, spec_metrics="detailed")
    got = (await server.stream(body()))[-1]["metrics"]["speculative_decoding"]
    assert got["num_draft_tokens"] == 2 * got["num_spec_steps"] == 2 * len(got["per_step_drafted"])
    assert got["num_accepted_draft_tokens"] == sum(got["per_step_accepted"])
    stopped = await server.stream(body(stop="emulated"))
    assert stopped[-2]["choices"][0]["stop_reason"] == "emulated"
    assert "metrics" not in stopped[-1]


async def test_a_scripted_reply_can_say_how_well_it_is_drafted(start: Start) -> None:
    server = await start(spec_method="ngram", spec_tokens=4, spec_metrics="summary")
    await server.script(
        {"contains": "easy", "reply": "x" * 60, "acceptance": [1, 1, 1, 1, 1]},
        {"contains": "hard", "reply": "x" * 60, "acceptance": [0, 0]},
    )
    counts = {}
    for word in ("easy", "hard"):
        got = (await server.stream(body(prompt=word, max_tokens=61)))[-1]["metrics"]["speculative_decoding"]
        counts[word] = (got["num_draft_tokens"], got["num_accepted_draft_tokens"], got["num_spec_steps"])
    assert counts["easy"] == (48, 48, 12)  # 60 tokens after the first, 5 a step, never more than is drafted
    assert counts["hard"] == (2 * 60, 0, 60)


async def test_priority_needs_its_scheduler(start: Start) -> None:
    server = await start()
    assert (await server.post(body(priority=1)))[0] == 400


async def test_kv_events_are_listed_by_number(start: Start) -> None:
    server = await start()
    await server.stream(body())
    events = (await server.get("/emulator/kv_events"))["events"]
    assert sum(len(event["hashes"]) for event in events) == (100 + 20 - 1) // 32
    assert (await server.get(f"/emulator/kv_events?since={len(events)}"))["events"] == []
    async with server.http.post(server.url + "/reset_prefix_cache") as reply:
        assert (await reply.json())["success"]
    (removed,) = (await server.get(f"/emulator/kv_events?since={len(events)}"))["events"]
    assert removed["kind"] == "removed"
    async with server.http.get(server.url + "/emulator/kv_events?since=x") as reply:
        assert reply.status == 400


@pytest.mark.parametrize("path", ["script", "faults"])
async def test_broken_admin_bodies_are_refused(start: Start, path: str) -> None:
    server = await start()
    async with server.http.post(f"{server.url}/emulator/{path}", json=[{"kind": "?"}]) as reply:
        assert reply.status == 400


async def test_many_streams_share_the_engine(start: Start) -> None:
    server = await start(max_num_seqs=16, prompt_tokens_details=True, spec_method="ngram", spec_tokens=4)
    streams = await asyncio.gather(*(server.stream(body(prompt=[n, *PROMPT])) for n in range(64)))
    assert {len(token_ids(events)) for events in streams} == {20}
    counts = await server.get("/emulator/counts")
    assert sum(row["output_tokens"] for row in counts["requests"]) == 64 * 20
    server.server.engine.cache.check([])
