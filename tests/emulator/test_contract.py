"""The emulator answers as the recorded vLLM did, when its script says what the real model said.

Ids, counts, reasons and the borders of the chunks are the same; times, ids of requests and the text (the tokenizer
here is a stand-in with the real vocabulary's size) have the same type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.emulator.conftest import Running, Start, events_of, token_ids

from paceline.emulator.settings import VERSIONS, Settings

RECORDINGS = Path(__file__).parents[1] / "recordings" / "vllm-0.32"
END = 151645
VOCABULARY = 151936
STREAMS = (
    "stream_first_turn",
    "stream_second_turn",
    "stream_repeated",
    "stream_other_salt",
    "stream_length",
    "stream_stop_token_id",
    "stream_min_tokens",
    "stream_no_usage",
    "stream_no_ids",
    "stream_max_tokens_clamped",
)
TYPE_ONLY = {
    "id",
    "created",
    "text",
    "system_fingerprint",
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
}
SPECULATION = {
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_accepted_draft_tokens",
}


def recorded(name: str) -> dict[str, Any]:
    """One recorded exchange."""
    case: dict[str, Any] = orjson.loads((RECORDINGS / f"{name}.json").read_bytes())
    return case


def comparable(value: Any, loose: set[str]) -> Any:
    """The value with the type in place of what may differ, keys in order."""
    if isinstance(value, dict):
        return [
            (key, type(part).__name__ if key in loose else comparable(part, loose)) for key, part in value.items()
        ]
    return [comparable(part, loose) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with as many ids as the recorded model's."""
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {f"t{number}": number for number in range(VOCABULARY)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"}
    parts: dict[str, Any] = {"truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    parts |= {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None}
    (folder / "tokenizer.json").write_bytes(orjson.dumps({"version": "1.0", **parts, "model": model}))
    (folder / "generation_config.json").write_bytes(orjson.dumps({"eos_token_id": END}))
    return folder


@pytest.fixture
async def vllm(start: Start, model_folder: Path) -> Running:
    """A server like the one that was recorded."""
    return await start(**recorded_settings(model_folder))


def recorded_settings(model_folder: Path) -> dict[str, Any]:
    """Settings of the recorded server."""
    return {
        "model_path": str(model_folder),
        "max_model_len": 4096,
        "max_num_seqs": 4,
        "priority_scheduling": True,
        "spec_method": "ngram",
        "spec_tokens": 6,
        "prompt_tokens_details": True,
        "per_request_metrics": True,
        "spec_metrics": "summary",
    }


async def say(server: Running, name: str) -> None:
    """Let the server reply what the real model said, and would have gone on to say."""
    source = "stream_first_turn" if name in {"stream_length", "stream_no_ids", "plain"} else name
    reply = token_ids(events_of(recorded(source)["body"]))
    if reply[-1] != END and name != "stream_min_tokens":
        reply = token_ids(events_of(recorded("stream_first_turn")["body"]))
    await server.script({"reply_ids": reply[:-1] if reply[-1] == END else reply})


async def test_streams_are_those_of_the_recorded_server(vllm: Running) -> None:
    """In the recorded order, so that the cache holds the same blocks."""
    for name in STREAMS:
        case = recorded(name)
        await say(vllm, name)
        status, content_type, body = await vllm.post(case["request"], **case["headers"])
        assert (status, content_type) == (case["status"], case["content_type"])
        wanted, got = events_of(case["body"]), events_of(body.decode())
        # At the end of a reply the real drafts may be right about tokens that are never emitted.
        finish = wanted[-1]["choices"] or wanted[-2]["choices"]
        loose = TYPE_ONLY | (SPECULATION if finish[0]["finish_reason"] == "stop" else set())
        assert comparable(got, loose) == comparable(wanted, loose), name


async def test_request_ids_are_kept(vllm: Running) -> None:
    for name in ("stream_first_turn", "stream_second_turn"):
        case = recorded(name)
        _, _, body = await vllm.post(case["request"], **case["headers"])
        assert {event["id"] for event in events_of(body.decode())} == {events_of(case["body"])[0]["id"]}


async def test_a_whole_answer_has_the_recorded_fields(vllm: Running) -> None:
    case = recorded("plain")
    await say(vllm, "plain")
    await vllm.post(case["request"])
    status, content_type, body = await vllm.post(case["request"])
    assert (status, content_type) == (case["status"], case["content_type"].replace("; charset=utf-8", ""))
    loose = TYPE_ONLY | SPECULATION
    assert comparable(orjson.loads(body), loose) == comparable(orjson.loads(case["body"]), loose)


SAME_ERROR = (
    "error_context_too_long",
    "error_context_full",
    "error_salt_slash",
    "error_salt_empty",
    "error_salt_number",
    "error_unknown_model",
    "error_empty_prompt",
    "error_no_prompt",
    "error_max_tokens_zero",
    "error_max_tokens_negative",
    "error_min_tokens",
    "error_temperature",
    "error_stream_options",
)


@pytest.mark.parametrize("name", SAME_ERROR)
async def test_refusals_are_the_recorded_ones(vllm: Running, name: str) -> None:
    case = recorded(name)
    status, content_type, body = await vllm.post(case["request"])
    assert (status, content_type) == (case["status"], case["content_type"])
    assert orjson.loads(body) == orjson.loads(case["body"])


@pytest.mark.parametrize("name", ["error_max_tokens_type", "error_prompt_type", "error_bad_json"])
async def test_refusals_by_the_parser_have_the_recorded_shape(vllm: Running, name: str) -> None:
    case = recorded(name)
    request = case["request"]
    status, _, body = await vllm.post(request.encode() if isinstance(request, str) else request)
    assert status == case["status"]
    wanted, got = orjson.loads(case["body"])["error"], orjson.loads(body)["error"]
    assert list(got) == list(wanted)
    assert (got["type"], got["code"]) == (wanted["type"], wanted["code"])
    assert wanted["param"].startswith(got["param"])


async def test_another_content_type_is_refused_as_recorded(vllm: Running) -> None:
    case = recorded("error_content_type")
    status, _, body = await vllm.post(b"{}", Content_Type="text/plain")
    assert (status, orjson.loads(body)) == (case["status"], orjson.loads(case["body"]))


async def test_an_unknown_id_is_an_event_in_a_good_stream(vllm: Running) -> None:
    case = recorded("stream_error_out_of_vocab")
    status, content_type, body = await vllm.post(case["request"])
    assert (status, content_type) == (case["status"], case["content_type"])
    assert events_of(body.decode()) == events_of(case["body"])


async def test_probes_get_the_recorded_shape(vllm: Running) -> None:
    models = orjson.loads(recorded("models")["body"])
    loose = {"id", "created", "owned_by", "root"}
    assert comparable(await vllm.get("/v1/models"), loose) == comparable(models, loose)
    assert list(await vllm.get("/version")) == list(orjson.loads(recorded("version")["body"]))
    async with vllm.http.get(vllm.url + "/health") as reply:
        assert (reply.status, await reply.text()) == (recorded("health")["status"], recorded("health")["body"])


async def test_the_openapi_document_promises_only_what_vllm_has(vllm: Running) -> None:
    document, wanted = await vllm.get("/openapi.json"), recorded("openapi")
    fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert set(fields) <= set(wanted["completion_request_properties"])
    assert {"session_id", "return_token_ids", "cache_salt", "priority"} <= set(fields)
    for path, methods in document["paths"].items():
        assert sorted(methods) == wanted["paths"][path]


async def test_metrics_have_the_recorded_names_types_and_labels(vllm: Running) -> None:
    async with vllm.http.get(vllm.url + "/metrics") as reply:
        got = {line.rsplit(" ", 1)[0] for line in (await reply.text()).splitlines()}
    lines = recorded("abort_metrics")["after"]
    config = [line for line in lines if line.startswith("vllm:cache_config_info{")]
    wanted = {line.rsplit(" ", 1)[0] for line in lines if line not in config} | {"# TYPE vllm:cache_config_info"}
    assert wanted <= got
    assert len(config) == 1
    (emulated,) = (line for line in got if line.startswith("vllm:cache_config_info{"))
    labels = [pair.partition("=")[0] for pair in emulated.partition("{")[2].rstrip("}").split(",")]
    assert all(f'{label}="' in config[0] for label in labels)


def test_the_recorded_server_has_the_emulated_settings(model_folder: Path) -> None:
    """The settings above are those that the recordings show."""
    settings = Settings(model_name="coder", features=VERSIONS["0.32"], **recorded_settings(model_folder))
    card = orjson.loads(recorded("models")["body"])["data"][0]
    assert (settings.model_name, settings.max_model_len) == (card["id"], card["max_model_len"])
    (config,) = (line for line in recorded("abort_metrics")["after"] if line.startswith("vllm:cache_config_info{"))
    assert f'block_size="{settings.block_size}"' in config
