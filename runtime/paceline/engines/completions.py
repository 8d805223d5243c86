"""The part of vLLM's `/v1/completions` that Paceline uses: the request as bytes, the streamed reply as ids."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import orjson

from paceline.engines.base import GenerateRequest, GenerationEnd, TokenChunk
from paceline.engines.sse import DONE, EventSplitter, without_echo
from paceline.errors import EngineLost, EngineRefused, EngineUnavailable, PacelineError

_MESSAGE_CHARS = 300
_ID_MARK = "token_id:"
"""What vLLM writes before an id where it is asked for ids in place of texts."""
_IDS = re.compile(r"\d+(?:\s*,\s*\d+)+")
_INPUT = re.compile(r"['\"]?input['\"]?\s*[:=].*", re.DOTALL)


class _Logprobs(msgspec.Struct, gc=False):
    top_logprobs: list[dict[str, float] | None] = []


class _Choice(msgspec.Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Speculation(msgspec.Struct, gc=False):
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_spec_steps: int | None = None
    per_step_drafted: list[int] | None = None
    per_step_accepted: list[int] | None = None

    @property
    def checks(self) -> tuple[tuple[int, int], ...] | None:
        if self.per_step_drafted is None or self.per_step_accepted is None:
            return None
        return tuple(zip(self.per_step_drafted, self.per_step_accepted, strict=True))


class _Metrics(msgspec.Struct, gc=False):
    speculative_decoding: _Speculation | None = None


class _Error(msgspec.Struct, gc=False):
    code: int | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


def encode_request(request: GenerateRequest, *, model: str, session_field: bool) -> bytes:
    """Return the body of a streamed completion.

    `prompt_json` is spliced in as it is. The running usage of each chunk is not asked for: it repeats what the
    caller knows (the ids it sent and the ids it got), and never has the cached tokens. Sampling fields that are
    None are left out; vLLM then takes the model's generation_config and after it its own defaults (temperature
    1). `sampling.stop` is sent so that the engine ends the request itself and reports its cached tokens; it loses
    the speculation counts of such an end. The caller looks for the text, too: it decides which ids stay.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "skip_special_tokens": False,
        "max_tokens": request.max_tokens,
    }
    optional = {
        "model": model or None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop": sampling.stop or None,
        "stop_token_ids": request.stop_token_ids or None,
        "cache_salt": request.cache_salt or None,
        "session_id": (request.session_id or None) if session_field else None,
        "structured_outputs": request.structured_outputs,
        "logprobs": request.candidates or None,
        "return_tokens_as_token_ids": True if request.candidates else None,
    }
    body.update((name, value) for name, value in optional.items() if value is not None)
    return b"".join((orjson.dumps(body)[:-1], b',"prompt":', request.prompt_json, b"}"))


class CompletionStream:
    """Turns the bytes of one streamed reply into ids, and at its end into a `GenerationEnd`."""

    __slots__ = ("_candidates", "_failure", "_finish_reason", "_speculation", "_splitter", "_usage", "done")

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._finish_reason: str | None = None
        self._usage: _Usage | None = None
        self._speculation: _Speculation | None = None
        self._candidates: dict[int, float] = {}
        self.done = False
        """`[DONE]` was seen."""
        self._failure: PacelineError | None = None

    def feed(self, data: bytes) -> TokenChunk | None:
        """Return the ids in `data`, those of several events joined.

        Raises `EngineLost` on an error event and on one that is not JSON, `EngineRefused` where ids are missing
        and on an error event with a 4xx code: what vLLM finds out only after it has sent its status. Ids that came
        with the error are returned first; it is raised at the next call.
        """
        if self._failure:
            raise self._failure
        ids: list[int] | None = None
        for payload in self._splitter.feed(data):
            if payload == DONE:
                self.done = True
                break
            try:
                new = self._read(payload)
            except PacelineError as failure:
                if not ids:
                    raise
                self._failure = failure
                break
            if ids and new:
                ids.extend(new)
            else:
                ids = new or ids
        return TokenChunk(ids) if ids else None

    @property
    def failed(self) -> bool:
        """Whether the next `feed` raises, whatever it gets."""
        return self._failure is not None

    def _read(self, payload: bytes) -> list[int] | None:
        try:
            event = _decode(without_echo(payload))
        except (msgspec.DecodeError, ValueError) as error:
            raise EngineLost("The engine sent an event that is not a completion chunk.") from error
        if event.error is not None:
            raise _event_error(event.error.code, payload)
        if event.usage is not None:
            self._usage = event.usage
        if event.metrics is not None:
            self._speculation = event.metrics.speculative_decoding
        if not event.choices:
            return None
        choice = event.choices[0]
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
        if choice.logprobs is not None and not self._candidates:
            self._candidates = _candidates(choice.logprobs)
        if choice.token_ids is None:
            raise EngineRefused("The engine sends no token ids; Paceline needs vLLM 0.24 or newer.")
        return choice.token_ids

    def end(self, *, absent_cached: int | None) -> GenerationEnd:
        """Return the summary. `absent_cached` stands for a count of cached tokens that the reply leaves out.

        A stream without finish reason was aborted before its first token. Speculation counts are None when the
        server does not report them, and when it lost them (abort).
        """
        usage, speculation = self._usage or _Usage(), self._speculation
        details = usage.prompt_tokens_details or _PromptDetails()
        cached = details.cached_tokens
        return GenerationEnd(
            finish_reason=self._finish_reason or "abort",
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            cached_tokens=absent_cached if cached is None and self._finish_reason else cached,
            cache_writes=details.created_cache_tokens,
            drafted=speculation.num_draft_tokens if speculation else None,
            accepted=speculation.num_accepted_draft_tokens if speculation else None,
            draft_steps=speculation.num_spec_steps if speculation else None,
            checks=speculation.checks if speculation else None,
            candidates=self._candidates,
        )


def _candidates(logprobs: _Logprobs) -> dict[int, float]:
    first = logprobs.top_logprobs[0] if logprobs.top_logprobs else None
    try:
        return {int(token.removeprefix(_ID_MARK)): value for token, value in (first or {}).items()}
    except ValueError:
        raise EngineRefused("The engine names likely tokens by text; Paceline needs their ids.") from None


def error_message(body: bytes) -> str:
    """Return the message of an error reply, without token ids or inputs, at most 300 characters."""
    try:
        error = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "no message"
    for key in ("error", "message", "detail"):  # 0.24 and newer nest the message; FastAPI's own errors do not
        if isinstance(error, dict) and key in error:
            error = error[key]
    text = error if isinstance(error, str) else "no message"
    return _IDS.sub("[...]", _INPUT.sub("", text)).strip()[:_MESSAGE_CHARS] or "no message"


def _event_error(code: int | None, payload: bytes) -> PacelineError:
    if code is not None and 400 <= code < 500:
        return EngineRefused(f"The engine refused the request: {error_message(payload)}", status=code)
    return EngineLost(f"The engine ended the stream with an error: {error_message(payload)}")


def status_error(status: int, body: bytes) -> PacelineError:
    """Return the error for a reply that is not a stream."""
    message = error_message(body)
    if status in {429, 502, 503, 504}:
        return EngineUnavailable(f"The engine takes no requests now (HTTP {status}): {message}", status=status)
    if 400 <= status < 500:
        return EngineRefused(f"The engine refused the request (HTTP {status}): {message}", status=status)
    return EngineLost(f"The engine failed (HTTP {status}): {message}", status=status)
