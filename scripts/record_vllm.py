"""Record a real vLLM's HTTP replies, byte for byte, for the contract tests.

    python scripts/record_vllm.py http://127.0.0.1:8000 tests/recordings/vllm-0.32

Start the server with a Qwen2.5-Coder model as `--served-model-name coder` and with: --max-model-len 4096
--block-size 32 --scheduling-policy priority --enable-prompt-tokens-details --enable-per-request-metrics
--per-request-spec-decode-metrics summary --speculative-config
'{"method":"ngram","num_speculative_tokens":6,"prompt_lookup_min":2,"prompt_lookup_max":5}'

Each case is one JSON file: the request, the status, the content type and the body as text. Lists of prompt ids
in requests are kept as they are; they are short.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

FIRST_TURN = """<|im_start|>system
You edit code.<|im_end|>
<|im_start|>user
Rename `total` to `amount` and print the whole function again, nothing else.
```python
def add_prices(prices, discounts):
    total = 0
    for price, discount in zip(prices, discounts):
        total = total + price - discount
        total = max(total, 0)
    return total
```<|im_end|>
<|im_start|>assistant
"""
SECOND_TURN = """
<|im_start|>user
Now rename it to `result` and print the whole function again.<|im_end|>
<|im_start|>assistant
"""
IM_END = 151645
NEWLINE = 198
METRIC_NAMES = re.compile(
    r"vllm:(num_requests_(running|waiting)|kv_cache_usage_perc|prompt_tokens_total|generation_tokens_total"
    r"|prefix_cache_(queries|hits)_total|spec_decode_[a-z_]+_total|request_success_total|cache_config_info)\b"
)
USAGE = {"include_usage": True, "continuous_usage_stats": True}


@dataclass
class Recorder:
    """Sends requests to one server and writes what came back."""

    http: aiohttp.ClientSession
    base: str
    out: Path
    ids: dict[str, list[int]] = field(default_factory=dict)

    async def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """One exchange; `body` is JSON, or raw bytes."""
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        all_headers = {"Content-Type": "application/json", **(headers or {})} if data is not None else headers
        async with self.http.request(method, self.base + path, data=data, headers=all_headers) as reply:
            text = await reply.text()
            return {
                "method": method,
                "path": path,
                "headers": headers or {},
                "request": body.decode() if isinstance(body, bytes) else body,
                "status": reply.status,
                "content_type": reply.headers.get("Content-Type", ""),
                "body": re.sub(r'"root":"[^"]*"', '"root":"MODEL"', text),
            }

    def save(self, name: str, case: Any) -> None:
        """Write one file."""
        (self.out / f"{name}.json").write_bytes(orjson.dumps(case, option=orjson.OPT_INDENT_2) + b"\n")
        print(name)

    async def record(self, name: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Send one completion request and write the exchange."""
        case = await self.send("POST", "/v1/completions", body, headers)
        self.save(name, case)
        return case

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text, by the server's own tokenizer; the special tokens in it count as such."""
        body = {
            "model": "coder",
            "prompt": text,
            "max_tokens": 1,
            "return_token_ids": True,
            "cache_salt": "encode",
        }
        reply = orjson.loads((await self.send("POST", "/v1/completions", body))["body"])
        ids: list[int] = reply["choices"][0]["prompt_token_ids"]
        return ids

    async def metrics(self) -> list[str]:
        """The lines of /metrics that Paceline reads."""
        text = str((await self.send("GET", "/metrics"))["body"])
        return [line for line in text.splitlines() if METRIC_NAMES.match(line.removeprefix("# TYPE "))]


def streamed_ids(case: dict[str, Any]) -> list[int]:
    """All generated ids of a recorded stream."""
    events = [line[6:] for line in case["body"].splitlines() if line.startswith("data: {")]
    return [i for event in events for choice in orjson.loads(event)["choices"] for i in choice["token_ids"]]


def completion(prompt: Any, **more: Any) -> dict[str, Any]:
    """A streamed greedy request as Paceline sends it."""
    return {
        "model": "coder",
        "prompt": prompt,
        "max_tokens": 120,
        "temperature": 0,
        "stream": True,
        "stream_options": USAGE,
        "return_token_ids": True,
        "cache_salt": "tenant-a",
        **more,
    }


async def record_turns(rec: Recorder) -> None:
    """Two turns of one conversation, and variations of the first."""
    first, suffix = await rec.encode(FIRST_TURN), await rec.encode(SECOND_TURN)
    rec.ids["first"] = first
    more = {"priority": 5, "session_id": "session-1"}
    turn1 = await rec.record("stream_first_turn", completion(first, **more), {"X-Request-Id": "recorded-1"})
    context = first + streamed_ids(turn1)
    await rec.record("stream_second_turn", completion(context + suffix, **more, request_id="recorded-2"))
    await rec.record("stream_repeated", completion(first))
    await rec.record("stream_other_salt", completion(first, cache_salt="tenant-b", max_tokens=4))
    await rec.record("stream_length", completion(first, max_tokens=8))
    await rec.record("stream_stop_token_id", completion(first, stop_token_ids=[NEWLINE]))
    await rec.record("stream_min_tokens", completion(first, max_tokens=90, min_tokens=90))
    await rec.record("stream_no_usage", completion(first, max_tokens=8, stream_options=None))
    await rec.record("stream_no_ids", completion(first, max_tokens=8, return_token_ids=False))
    await rec.record("plain", completion(first, stream=False, stream_options=None))
    await rec.record("plain_text_prompt", completion(FIRST_TURN, stream=False, stream_options=None, max_tokens=8))


async def record_errors(rec: Recorder) -> None:
    """What the server refuses."""
    ids = rec.ids["first"]
    await rec.record("error_context_too_long", completion([NEWLINE] * 5000))
    await rec.record("error_context_full", completion([NEWLINE] * 4096))
    await rec.record("stream_max_tokens_clamped", completion(ids, max_tokens=4096))
    await rec.record("error_salt_slash", completion(ids, cache_salt="a/b"))
    await rec.record("error_salt_empty", completion(ids, cache_salt=""))
    await rec.record("error_salt_number", completion(ids, cache_salt=7))
    await rec.record("error_unknown_model", completion(ids, model="no-such-model"))
    await rec.record("error_empty_prompt", completion([]))
    await rec.record("error_no_prompt", {"model": "coder", "max_tokens": 4})
    await rec.record("error_prompt_type", completion({"a": 1}))
    await rec.record("stream_error_out_of_vocab", completion([10**7]))
    await rec.record("error_max_tokens_zero", completion(ids, max_tokens=0))
    await rec.record("error_max_tokens_negative", completion(ids, max_tokens=-1))
    await rec.record("error_max_tokens_type", completion(ids, max_tokens="many"))
    await rec.record("error_min_tokens", completion(ids, max_tokens=4, min_tokens=8))
    await rec.record("error_temperature", completion(ids, temperature=-1))
    await rec.record("error_stream_options", completion(ids, stream=False))
    await rec.record("error_bad_json", b'{"model": ')
    rec.save(
        "error_content_type", await rec.send("POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"})
    )
    rec.save("error_no_route", await rec.send("GET", "/v1/nothing"))


async def record_abort(rec: Recorder) -> None:
    """A client that goes away in mid-stream, as /metrics shows it."""
    before = await rec.metrics()
    body = completion(rec.ids["first"], max_tokens=1500, min_tokens=1500, cache_salt="tenant-c")
    received = 0
    async with rec.http.post(rec.base + "/v1/completions", json=body) as reply:
        async for line in reply.content:
            received += line.startswith(b"data: ")
            if received == 3:
                break
        during = await rec.metrics()
        reply.close()
    deadline = time.monotonic() + 30
    while not any(re.match(r"vllm:num_requests_running\{.*} 0", line) for line in await rec.metrics()):
        if time.monotonic() > deadline:
            raise TimeoutError("the aborted request is still running after 30 s")
        await asyncio.sleep(0.1)
    case = {"events_received": received, "before": before, "during": during, "after": await rec.metrics()}
    rec.save("abort_metrics", case)
    await rec.record("stream_after_abort", completion(rec.ids["first"], max_tokens=4, cache_salt="tenant-c"))


async def record_server(rec: Recorder) -> None:
    """What a probe reads."""
    for name, path in (("models", "/v1/models"), ("version", "/version"), ("health", "/health")):
        rec.save(name, await rec.send("GET", path))
    document = orjson.loads((await rec.send("GET", "/openapi.json"))["body"])
    schema = document["components"]["schemas"]["CompletionRequest"]["properties"]
    rec.save(
        "openapi",
        {
            "openapi": document["openapi"],
            "info": document["info"],
            "paths": {path: sorted(methods) for path, methods in sorted(document["paths"].items())},
            "completion_request_properties": sorted(schema),
        },
    )


async def main(base: str, out: Path) -> None:
    """Record every case."""
    async with aiohttp.ClientSession() as http:
        rec = Recorder(http, base.rstrip("/"), out)
        await record_server(rec)
        await record_turns(rec)
        await record_errors(rec)
        await record_abort(rec)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} BASE_URL FOLDER")
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(sys.argv[1], folder))
