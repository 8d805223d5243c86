from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.engines.conftest import MakeEngine, collect, request_for
from tests.engines.scripted import Script, ScriptedServer, in_turn, recorded, replay, reply, stream

from paceline.engines.base import EngineInfo
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.errors import EngineRefused, EngineUnavailable

METRICS = (
    b"# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    b"# TYPE vllm:cache_config_info gauge\n"
    b'vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="512"} 1.0\n'
)
SPECULATION: dict[str, Any] = {
    "speculative_decoding": {"num_spec_steps": 0, "num_accepted_draft_tokens": 0, "num_draft_tokens": 0}
}


def one_token(*, cached: int | None = None, metrics: dict[str, Any] | None = None) -> Script:
    """A completion of one token by a server that reports these."""
    usage: dict[str, Any] = {"prompt_tokens": 33, "total_tokens": 34, "completion_tokens": 1}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    events: list[dict[str, Any]] = [
        {"id": "cmpl-1", "choices": [{"index": 0, "text": "!", "finish_reason": "length", "token_ids": [0]}]},
        {"id": "cmpl-1", "choices": [], "usage": usage, **({"metrics": metrics} if metrics else {})},
    ]
    return stream(*(b"data: %s\n\n" % orjson.dumps(event) for event in events), b"data: [DONE]\n\n")


def openapi(*without: str) -> Script:
    """The document of vLLM 0.32 without some fields of completions."""
    names = recorded("openapi")["completion_request_properties"]
    schema = {"properties": {name: {"title": name} for name in names if name not in without}}
    return reply(200, orjson.dumps({"openapi": "3.1.0", "components": {"schemas": {"CompletionRequest": schema}}}))


def version(number: str) -> Script:
    return reply(200, orjson.dumps({"version": number}))


def models(*names: str, owned_by: str = "vllm") -> Script:
    cards = [{"id": name, "object": "model", "owned_by": owned_by, "max_model_len": 4096} for name in names]
    return reply(200, orjson.dumps({"object": "list", "data": cards}))


@pytest.fixture
def vllm(server: ScriptedServer) -> ScriptedServer:
    """A vLLM 0.32 with all reports switched on."""
    server.scripts |= {
        "/version": replay("version"),
        "/v1/models": replay("models"),
        "/openapi.json": openapi(),
        "/metrics": reply(200, METRICS, "text/plain"),
        "/v1/completions": one_token(cached=0, metrics=SPECULATION),
    }
    return server


async def test_vllm_0_32(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert await engine.probe() == EngineInfo(
        version="0.32.0",
        model="coder",
        max_model_len=4096,
        block_size=32,
        reports_cached_tokens=True,
        reports_speculation=True,
        emulated=False,
        structured_outputs=True,
    )
    (body,) = vllm.completions()
    assert len(body["prompt"]) == 33
    assert body["max_tokens"] == 1
    assert body["model"] == "coder"
    await collect(engine, request_for(session_id="workflow-1"))
    assert vllm.completions()[1]["session_id"] == "workflow-1"


async def test_vllm_0_24_leaves_out_a_count_of_0(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts |= {
        "/version": version("0.24.0"),
        "/openapi.json": openapi("session_id"),
        "/v1/completions": in_turn(one_token(), one_token(cached=32), one_token(), one_token(cached=64)),
    }
    engine = make_engine()
    info = await engine.probe()
    assert (info.version, info.reports_cached_tokens, info.reports_speculation) == ("0.24.0", True, False)
    first, second = vllm.completions()
    assert first["cache_salt"] == second["cache_salt"]
    end = (await collect(engine, request_for()))[1]
    assert (end.cached_tokens, end.drafted, end.accepted, end.draft_steps) == (0, None, None, None)
    assert (await collect(engine, request_for()))[1].cached_tokens == 64
    assert "session_id" not in vllm.completions()[-1]


async def test_vllm_0_29(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts |= {
        "/version": version("0.29.0.1.2"),
        "/v1/completions": in_turn(one_token(metrics=SPECULATION), one_token(cached=32, metrics=SPECULATION)),
    }
    info = await make_engine().probe()
    assert (info.reports_cached_tokens, info.reports_speculation) == (True, True)


async def test_without_the_flags_counts_are_unknown(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/v1/completions"] = one_token()
    engine = make_engine()
    info = await engine.probe()
    assert (info.reports_cached_tokens, info.reports_speculation) == (False, False)
    assert len(vllm.completions()) == 2
    end = (await collect(engine, request_for()))[1]
    assert (end.cached_tokens, end.drafted) == (None, None)


async def test_a_new_probe_forgets_the_old_one(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/v1/completions"] = in_turn(one_token(), one_token(cached=32), *[one_token()] * 3)
    engine = make_engine()
    assert (await engine.probe()).reports_cached_tokens
    assert not (await engine.probe()).reports_cached_tokens
    assert (await collect(engine, request_for()))[1].cached_tokens is None


async def test_a_count_of_0_is_not_invented_for_an_abort(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    aborted = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":0}}\n\ndata: [DONE]\n\n'
    vllm.scripts["/v1/completions"] = in_turn(one_token(), one_token(cached=32), stream(aborted))
    engine = make_engine()
    await engine.probe()
    end = (await collect(engine, request_for()))[1]
    assert (end.finish_reason, end.cached_tokens) == ("abort", None)


@pytest.mark.parametrize(
    ("number", "sent"), [("0.24.0.1.1.0", False), ("0.29.0", True), ("0.100.1", True), ("dev", False)]
)
async def test_without_an_openapi_document_the_version_decides(
    vllm: ScriptedServer, make_engine: MakeEngine, number: str, sent: bool
) -> None:
    del vllm.scripts["/openapi.json"]
    vllm.scripts["/version"] = version(number)
    engine = make_engine()
    assert (await engine.probe()).version == number
    await collect(engine, request_for())
    assert ("session_id" in vllm.completions()[-1]) is sent


async def test_without_metrics_the_block_size_is_unknown(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    del vllm.scripts["/metrics"]
    assert (await make_engine().probe()).block_size is None
    assert len(vllm.completions()[0]["prompt"]) == 129


async def test_the_emulator_is_seen(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/v1/models"] = models("coder", owned_by="paceline-emulator")
    assert (await make_engine().probe()).emulated


async def test_a_server_without_return_token_ids_is_refused(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/openapi.json"] = openapi("return_token_ids")
    with pytest.raises(EngineRefused, match="0\\.24 or newer"):
        await make_engine().probe()


async def test_the_named_model_is_taken(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/v1/models"] = models("coder", "coder-lora")
    assert (await make_engine(served_model_name="coder-lora").probe()).model == "coder-lora"
    assert vllm.completions()[0]["model"] == "coder-lora"


@pytest.mark.parametrize("name", ["", "other"])
async def test_a_model_that_is_not_clear_is_refused(
    vllm: ScriptedServer, make_engine: MakeEngine, name: str
) -> None:
    vllm.scripts["/v1/models"] = models("coder", "coder-lora")
    with pytest.raises(EngineRefused, match=r"serves coder, coder-lora; set served_model_name"):
        await make_engine(served_model_name=name).probe()


@pytest.mark.parametrize("path", ["/version", "/v1/models", "/openapi.json"])
async def test_another_kind_of_server_is_refused(vllm: ScriptedServer, make_engine: MakeEngine, path: str) -> None:
    vllm.scripts[path] = reply(200, b"<html>hello</html>", "text/html")
    with pytest.raises(EngineRefused, match=f"{path} is not vLLM's"):
        await make_engine().probe()


async def test_a_model_without_length_is_refused(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/v1/models"] = reply(200, b'{"data":[{"id":"gpt"}]}')
    with pytest.raises(EngineRefused, match="max_model_len"):
        await make_engine().probe()


async def test_a_wrong_key_is_refused(vllm: ScriptedServer, make_engine: MakeEngine) -> None:
    vllm.scripts["/v1/models"] = reply(401, b'{"error":"Unauthorized"}')
    with pytest.raises(EngineRefused, match=r"401.*Unauthorized"):
        await make_engine(api_key="wrong").probe()
    assert vllm.requests[-1].headers["authorization"] == "Bearer wrong"


@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_in_trouble_is_unavailable(
    vllm: ScriptedServer, make_engine: MakeEngine, status: int
) -> None:
    vllm.scripts["/v1/completions"] = reply(status, b'{"error":{"message":"not now"}}')
    with pytest.raises(EngineUnavailable, match="not now"):
        await make_engine().probe()


async def test_nobody_listening_is_unavailable() -> None:
    server = ScriptedServer()
    await server.start()
    await server.stop()
    engine = VllmHttpEngine(server.url)
    with pytest.raises(EngineUnavailable):
        await engine.probe()
    assert not await engine.healthy()
    await engine.close()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
async def test_health(server: ScriptedServer, engine: VllmHttpEngine, status: int, healthy: bool) -> None:
    server.scripts["/health"] = reply(status, b"")
    assert await engine.healthy() is healthy


async def test_a_silent_server_is_not_healthy(server: ScriptedServer, engine: VllmHttpEngine) -> None:
    async def silent(connection: Any) -> None:
        await connection.wait_until_left()

    server.scripts["/health"] = silent
    assert not await engine.healthy()
