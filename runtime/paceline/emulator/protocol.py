"""Requests and replies of vLLM's `/v1/completions`, as far as they are emulated."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from paceline.emulator.prefixmemo import PrefixMemo

_SALT_LENGTH = 128
_SALT_FORBIDDEN = frozenset("@/\\\0")


class Refused(Exception):
    """The request is answered with an error body."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": kind
                or {404: "NotFoundError", 503: "ServiceUnavailableError"}.get(status, "BadRequestError"),
                "param": param,
                "code": status,
            }
        }


class StreamOptions(msgspec.Struct, frozen=True):
    """Which chunks carry usage."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class CompletionRequest(msgspec.Struct, frozen=True):
    """The body's fields that have an effect here; others are ignored, as vLLM does."""

    model: str | None = None
    prompt: msgspec.Raw = msgspec.Raw()
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    seed: int | None = None
    n: int | None = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: object = None
    priority: int = 0
    request_id: str | None = None
    session_id: str | None = None

    @property
    def output_limit(self) -> int:
        """The most output tokens asked for."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The stop texts as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


_DECODER = msgspec.json.Decoder(CompletionRequest)


def decode_request(body: bytes) -> CompletionRequest:
    """Parse and check a body. Raises `Refused` with vLLM's message and field where it would refuse."""
    try:
        request = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        param = f"body{path.rstrip('`')}"
        detail = f"1 validation error:\n  {{'loc': '{param}', 'msg': '{reason}'}}"
        raise Refused(detail, param=param, kind="Bad Request") from error
    except msgspec.DecodeError as error:
        detail = f"1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error', 'ctx': '{error}'}}"
        raise Refused(detail, param="body", kind="Bad Request") from error
    _check_salt(request.cache_salt)
    if request.stream_options and not request.stream:
        raise _invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    if bytes(request.prompt) in {b"", b"null", b'""'}:
        raise _invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_sampling(request)
    return request


def _check_salt(salt: object) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise _invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > _SALT_LENGTH or any(char in _SALT_FORBIDDEN for char in salt):
        raise _invalid(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
            "cache_salt",
        )


def _check_sampling(request: CompletionRequest) -> None:
    if request.temperature is not None and request.temperature < 0:
        message = f"temperature must be non-negative, got {request.temperature}."
        raise _invalid(message, "temperature", request.temperature)
    if request.n not in {None, 1}:
        raise _invalid("The emulator answers n=1 only.", "n", request.n)
    if request.logprobs is not None and not request.return_tokens_as_token_ids:
        raise _invalid("The emulator tells logprobs by token ids only.", "return_tokens_as_token_ids")


def _invalid(message: str, param: str, value: object = None) -> Refused:
    shown = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return Refused(f"{message} ({shown})", param=param)


def check_lengths(request: CompletionRequest, prompt_tokens: int, max_model_len: int) -> int:
    """The most tokens that this request may put out. Raises `Refused` when it does not fit."""
    if prompt_tokens > max_model_len:
        raise _invalid(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please "
            "reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    limit = min(request.output_limit, max_model_len - prompt_tokens)
    if limit < 1:
        raise _invalid(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    if request.min_tokens > limit:
        raise Refused(f"min_tokens must be less than or equal to max_tokens={limit}, got {request.min_tokens}.")
    return limit


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Ids as uint32 little-endian bytes, and the largest of them; -1 without any."""

    data: bytes
    largest: int


class PromptParser:
    """Turns the JSON text of a list of ids into `PromptIds`.

    A long conversation sends nearly the same list again each turn, so the last prompts are remembered by their
    text and only the new end of a prompt is parsed.
    """

    def __init__(self, remembered: int = 128) -> None:
        self._memo: PrefixMemo[PromptIds] = PrefixMemo(remembered)

    def parse(self, text: bytes) -> PromptIds:
        """The ids. Raises `Refused` for anything but a list of ids that are not negative."""
        known = self._memo.longest(text)
        prefix, head = known or (b"[", PromptIds(b"", -1))
        tail = _to_ids(b"[" + text[len(prefix) :])
        last_comma = text.rfind(b",") + 1
        if last_comma > len(prefix):
            self._memo.put(text[:last_comma], _joined(head, tail[:-1]), instead=known and prefix)
        return _joined(head, tail)


def _joined(head: PromptIds, tail: array[int]) -> PromptIds:
    return PromptIds(head.data + tail.tobytes(), max(head.largest, max(tail, default=-1)))


def _to_ids(text: bytes) -> array[int]:
    try:
        return array("I", orjson.loads(text))
    except (TypeError, ValueError, OverflowError) as error:
        message = "1 validation error:\n  {'loc': 'body.prompt', 'msg': 'Input should be a list of token ids'}"
        raise Refused(message, param="body.prompt", kind="Bad Request") from error


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
