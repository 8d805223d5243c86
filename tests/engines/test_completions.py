from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from tests.engines.conftest import request_for
from tests.engines.scripted import recorded, recorded_body

from paceline.engines.base import GenerationEnd
from paceline.engines.completions import CompletionStream, encode_request, error_message, status_error
from paceline.errors import EngineLost, EngineRefused, EngineUnavailable
from paceline.workflow.model import Sampling


def recorded_ids(name: str) -> list[int]:
    """The generated ids of a recording, read the plain way."""
    lines = [line[6:] for line in recorded_body(name).splitlines() if line.startswith(b"data: {")]
    return [i for line in lines for choice in orjson.loads(line)["choices"] for i in choice["token_ids"]]


def test_ids_and_end_are_the_same_wherever_the_stream_is_cut() -> None:
    body, ids = recorded_body("stream_length"), recorded_ids("stream_length")
    assert len(ids) == 8
    for at in range(len(body) + 1):
        stream = CompletionStream()
        chunks = [stream.feed(body[:at]), stream.feed(body[at:])]
        assert [i for chunk in chunks if chunk for i in chunk.token_ids] == ids
        assert stream.done
        end = stream.end(absent_cached=None)
        assert (end.finish_reason, end.prompt_tokens, end.output_tokens) == ("length", 87, 8)


def test_events_of_one_read_are_one_chunk() -> None:
    chunk = CompletionStream().feed(recorded_body("stream_first_turn"))
    assert chunk is not None
    assert chunk.token_ids == recorded_ids("stream_first_turn")
    assert len(chunk.token_ids) == 53


def test_the_end_of_a_recorded_turn() -> None:
    stream = CompletionStream()
    stream.feed(recorded_body("stream_first_turn"))
    assert stream.end(absent_cached=None) == GenerationEnd(
        finish_reason="stop",
        prompt_tokens=87,
        output_tokens=53,
        cached_tokens=0,
        cache_writes=None,
        drafted=54,
        accepted=45,
        draft_steps=9,
    )


def test_without_usage_nothing_is_reported() -> None:
    stream = CompletionStream()
    stream.feed(recorded_body("stream_no_usage"))
    assert stream.end(absent_cached=None) == GenerationEnd("length", None, None, None)


def test_an_absent_count_of_cached_tokens_is_what_the_probe_knows() -> None:
    body = b'data: {"choices":[{"finish_reason":"stop","token_ids":[5]}]}\n\ndata: [DONE]\n\n'
    for absent in (None, 0):
        stream = CompletionStream()
        stream.feed(body)
        assert stream.end(absent_cached=absent).cached_tokens is absent


def test_a_stream_aborted_before_its_first_token() -> None:
    stream = CompletionStream()
    usage = b'{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0}'
    assert stream.feed(b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % usage) is None
    assert stream.end(absent_cached=0) == GenerationEnd("abort", 3, 0, None)


def test_cache_writes_are_read() -> None:
    stream = CompletionStream()
    stream.feed(b'data: {"usage":{"prompt_tokens_details":{"cached_tokens":32,"created_cache_tokens":64}}}\n\n')
    end = stream.end(absent_cached=None)
    assert (end.cached_tokens, end.cache_writes) == (32, 64)


def test_a_server_that_sends_no_ids_is_refused() -> None:
    with pytest.raises(EngineRefused, match="no token ids"):
        CompletionStream().feed(recorded_body("stream_no_ids"))


def test_a_refusal_inside_the_stream() -> None:
    with pytest.raises(EngineRefused, match="out of vocabulary"):
        CompletionStream().feed(recorded_body("stream_error_out_of_vocab"))


@pytest.mark.parametrize(
    "event", [b'{"error":{"message":"EngineCore died","code":500}}', b'{"error":{"message":"EngineCore died"}}']
)
def test_an_error_event_is_a_lost_engine(event: bytes) -> None:
    with pytest.raises(EngineLost, match="EngineCore died"):
        CompletionStream().feed(b"data: " + event + b"\n\n")


@pytest.mark.parametrize("event", [b"{", b"[1]", b'{"choices":[{"token_ids":"x"}]}', b""])
def test_an_event_that_is_no_chunk_is_a_lost_engine(event: bytes) -> None:
    with pytest.raises(EngineLost, match="not a completion chunk"):
        CompletionStream().feed(b"data: " + event + b"\n\n")


def test_the_prompt_is_spliced_in_as_it_is() -> None:
    body = encode_request(request_for(b"[1, 2,\n3]"), model="coder", session_field=True)
    assert body.endswith(b',"prompt":[1, 2,\n3]}')
    assert orjson.loads(body) == {
        "model": "coder",
        "prompt": [1, 2, 3],
        "max_tokens": 8,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "skip_special_tokens": False,
        "cache_salt": "tenant-a",
        "session_id": "workflow-1",
    }


def test_what_is_not_set_is_not_sent() -> None:
    request = request_for(sampling=Sampling(), cache_salt="", session_id="")
    body = orjson.loads(encode_request(request, model="", session_field=True))
    fixed = {"stream", "stream_options", "return_token_ids", "skip_special_tokens", "max_tokens", "prompt"}
    assert set(body) == fixed


def test_all_sampling_fields_are_sent() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=0, seed=0, max_output_tokens=5, stop=("x",))
    body = orjson.loads(
        encode_request(request_for(sampling=sampling, stop_token_ids=(7, 8)), model="", session_field=False)
    )
    assert (body["temperature"], body["top_p"], body["top_k"], body["seed"]) == (0.5, 0.9, 0, 0)
    assert body["stop_token_ids"] == [7, 8]
    assert body["stop"] == ["x"]
    assert "session_id" not in body


@pytest.mark.parametrize(
    "name",
    ["error_context_too_long", "error_temperature", "error_prompt_type", "error_unknown_model", "error_no_route"],
)
def test_recorded_refusals(name: str) -> None:
    case = recorded(name)
    error = status_error(case["status"], recorded_body(name))
    assert isinstance(error, EngineRefused)
    assert f"HTTP {case['status']}" in error.message
    assert "'input'" not in error.message


def test_the_message_of_the_server_is_passed_on() -> None:
    message = error_message(recorded_body("error_context_too_long"))
    assert message.startswith("This model's maximum context length is 4096 tokens.")


def test_nothing_of_the_prompt_is_in_a_message() -> None:
    secret = {"error": {"message": "bad prompt [151644, 8948,198, 7]: {'msg': 'x', 'input': 'private text'}"}}
    assert error_message(orjson.dumps(secret)) == "bad prompt [[...]]: {'msg': 'x',"


def test_a_message_is_cut() -> None:
    assert len(error_message(orjson.dumps({"message": "x" * 5000}))) == 300


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"detail":[{"input":"private"}]}'])
def test_a_body_without_message(body: bytes) -> None:
    assert error_message(body) == "no message"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EngineRefused),
        (401, EngineRefused),
        (404, EngineRefused),
        (429, EngineUnavailable),
        (503, EngineUnavailable),
        (500, EngineLost),
        (302, EngineLost),
    ],
)
def test_statuses(status: int, kind: type[Exception]) -> None:
    assert type(status_error(status, b'{"error":{"message":"m"}}')) is kind


def test_candidates_are_asked_for_by_id() -> None:
    body = orjson.loads(encode_request(replace(request_for(), candidates=5), model="m", session_field=False))
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (5, True)
    body = orjson.loads(encode_request(request_for(), model="m", session_field=False))
    assert not {"logprobs", "return_tokens_as_token_ids"} & body.keys()


def test_a_form_of_the_answer_goes_along_as_it_is() -> None:
    wanted = {"json": '{"type": "object"}'}
    asked = replace(request_for(), structured_outputs=wanted)
    assert orjson.loads(encode_request(asked, model="m", session_field=False))["structured_outputs"] == wanted
    body = orjson.loads(encode_request(request_for(), model="m", session_field=False))
    assert "structured_outputs" not in body


def with_logprobs(top: list[object]) -> bytes:
    choice = {"index": 0, "token_ids": [7], "logprobs": {"top_logprobs": top}, "finish_reason": "length"}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


def test_the_first_token_that_has_candidates_counts() -> None:
    stream = CompletionStream()
    stream.feed(with_logprobs([{"token_id:7": -0.1, "token_id:9": -2.5}]))
    stream.feed(with_logprobs([{"token_id:1": -0.2}]))
    assert stream.end(absent_cached=None).candidates == {7: -0.1, 9: -2.5}


@pytest.mark.parametrize("top", [[], [None]])
def test_no_candidates_where_the_engine_has_none(top: list[object]) -> None:
    stream = CompletionStream()
    stream.feed(with_logprobs(top))
    assert stream.end(absent_cached=None).candidates == {}


def test_candidates_by_text_are_refused() -> None:
    with pytest.raises(EngineRefused, match="by text"):
        CompletionStream().feed(with_logprobs([{" the": -0.1}]))
