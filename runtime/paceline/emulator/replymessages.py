"""The JSON objects of a completion's answer, in vLLM's shape."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson

from paceline.emulator.engine import Request
from paceline.emulator.protocol import CompletionRequest, usage
from paceline.emulator.settings import Settings


@dataclass(frozen=True, slots=True)
class Answer:
    """Builds the messages that answer one request."""

    settings: Settings
    asked: CompletionRequest
    request: Request
    prompt_json: orjson.Fragment
    """The prompt's ids as the client wrote them: echoing a long prompt costs a copy."""
    unknown_id: int | None
    """An id of the prompt that the vocabulary does not have."""
    created: int

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        options = self.asked.stream_options
        return self.settings.force_include_usage or bool(options and options.include_usage)

    @property
    def _running_usage(self) -> bool:
        options = self.asked.stream_options
        wanted = bool(options and options.include_usage and options.continuous_usage_stats)
        return self.settings.force_include_usage or wanted

    def chunk(self, first: int, end: int, finish_reason: str | None) -> bytes:
        """The event for the output ids from `first` to `end`."""
        plan = self.request.plan
        stop_reason = plan.stop_reason if finish_reason == "stop" else None
        ids = bool(self.asked.return_token_ids)
        message = self._head() | {
            "choices": [
                {
                    "index": 0,
                    "text": "".join(plan.texts[first:end]),
                    "logprobs": self._logprobs(first, end),
                    "finish_reason": finish_reason,
                    "stop_reason": stop_reason,
                    "prompt_token_ids": self.prompt_json if ids and first == 0 else None,
                    "token_ids": plan.ids[first:end] if ids else None,
                }
            ]
        }
        if finish_reason and not self.include_usage:
            message["system_fingerprint"] = self._fingerprint
        if self._running_usage:
            message["usage"] = usage(self.request.prompt_tokens, end)
        return _event(message)

    def _logprobs(self, first: int, end: int) -> dict[str, Any] | None:
        if self.asked.logprobs is None:
            return None
        texts, ids = self.request.plan.texts, self.request.plan.ids[first:end]
        likely = [self._likely(at, self.asked.logprobs) for at in range(first, end)]
        return {
            "text_offset": [len("".join(texts[:at])) for at in range(first, end)],
            "token_logprobs": [said[token] for token, said in zip(ids, likely, strict=True)],
            "tokens": [f"token_id:{token}" for token in ids],
            "top_logprobs": [{f"token_id:{token}": value for token, value in said.items()} for said in likely],
        }

    def _likely(self, at: int, most: int) -> dict[int, float]:
        """The id at a place and those that it beat. Only a script knows them: else the id is certain."""
        scripted = {} if at else self.request.plan.logprobs
        token = self.request.plan.ids[at]
        likeliest = sorted(scripted.items(), key=lambda pair: -pair[1])[:most]
        return {token: scripted.get(token, 0.0), **dict(likeliest)}

    def usage_chunk(self) -> bytes:
        """The last event: no choices, the whole usage and the metrics."""
        message = self._head() | {
            "choices": [],
            "usage": self._final_usage(),
            "system_fingerprint": self._fingerprint,
        }
        metrics = self._metrics()
        if metrics is not None:
            message["metrics"] = _without_none(metrics)
        return _event(message)

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        request, ids = self.request, bool(self.asked.return_token_ids)
        counts = self._final_usage()
        if details := counts.setdefault("prompt_tokens_details", None):
            details |= {"created_cache_tokens": None, "multimodal_tokens": None}
        counts["completion_tokens_details"] = None
        choice = {
            "index": 0,
            "text": "".join(request.plan.texts[: request.emitted]),
            "logprobs": self._logprobs(0, request.emitted),
            "finish_reason": request.finish_reason,
            "stop_reason": request.plan.stop_reason,
            "token_ids": request.plan.ids[: request.emitted] if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self.prompt_json if ids else None,
            "routed_experts": None,
        }
        rest = {
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": counts,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self._metrics(),
        }
        return orjson.dumps(self._head() | rest)

    @property
    def _fingerprint(self) -> str:
        return f"vllm-{self.settings.features.version}-emulated"

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.request.request_id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.settings.model_name,
        }

    def _final_usage(self) -> dict[str, Any]:
        counts = usage(self.request.prompt_tokens, self.request.emitted)
        cached = self.request.cached_tokens
        reported = cached is not None and (cached or self.settings.features.zero_cached_tokens)
        if self.settings.prompt_tokens_details and reported:
            counts["prompt_tokens_details"] = {"cached_tokens": cached}
        return counts

    def _metrics(self) -> dict[str, Any] | None:
        speculation = self._speculation()
        if not self.settings.per_request_metrics and speculation is None:
            return None
        names = (
            "time_to_first_token_ms",
            "generation_time_ms",
            "queue_time_ms",
            "mean_itl_ms",
            "tokens_per_second",
        )
        times = self._times() if self.settings.per_request_metrics else dict.fromkeys(names)
        return times | {"speculative_decoding": speculation}

    def _times(self) -> dict[str, float | None]:
        request = self.request
        decode = request.last_token - request.first_token
        inference = request.last_token - request.scheduled
        return {
            "time_to_first_token_ms": 1000 * (request.first_token - request.scheduled),
            "generation_time_ms": 1000 * decode,
            "queue_time_ms": 1000 * (request.scheduled - request.arrived),
            "mean_itl_ms": 1000 * decode / (request.emitted - 1) if request.emitted > 1 else None,
            "tokens_per_second": request.emitted / inference if inference > 0 else None,
        }

    def _speculation(self) -> dict[str, Any] | None:
        """None where vLLM loses the counts too: after an abort and after a stop text."""
        drafts, request = self.request.drafts, self.request
        lost = request.finish_reason == "abort" or isinstance(request.plan.stop_reason, str)
        if drafts is None or lost or self.settings.spec_metrics == "off":
            return None
        detailed = self.settings.spec_metrics == "detailed" and request.draft_steps
        return {
            "mean_acceptance_length": 1 + drafts.accepted / drafts.steps if drafts.steps else 1.0,
            "draft_acceptance_rate": drafts.accepted / drafts.drafted if drafts.drafted else 0.0,
            "acceptance_histogram": drafts.histogram,
            "num_spec_steps": drafts.steps,
            "num_accepted_draft_tokens": drafts.accepted,
            "num_draft_tokens": drafts.drafted,
            "num_spec_tokens": len(drafts.histogram) - 1,
            "per_step_accepted": [accepted for accepted, _ in request.draft_steps] if detailed else None,
            "per_step_drafted": [drafted for _, drafted in request.draft_steps] if detailed else None,
        }


def now() -> int:
    """Unix seconds, for `created`."""
    return int(time.time())


def error_event(body: dict[str, Any]) -> bytes:
    """An error in a stream that began with status 200."""
    return _event(body)


def _event(message: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(message) + b"\n\n"


def _without_none(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: part for key, part in value.items() if part is not None}
    return {key: _without_none(part) if isinstance(part, dict) else part for key, part in kept.items()}
