"""The engine adapter: vLLM's HTTP API by token ids."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from http import HTTPStatus

import aiohttp
import orjson

from paceline.engines.base import EngineInfo, GenerateRequest, GenerationEnd, TokenChunk
from paceline.engines.completions import CompletionStream, encode_request, status_error
from paceline.engines.probe import (
    SESSION,
    STRUCTURED,
    optional_fields,
    probe_prompt,
    read_block_size,
    read_model,
    read_version,
)
from paceline.engines.stall import StallGuard
from paceline.errors import EngineLost, EngineRefused, EngineUnavailable
from paceline.workflow.model import Sampling

_CONNECT_SECONDS = 5.0
_HEALTH_SECONDS = 2.0
_DOCUMENT_SECONDS = 30.0
_DRAIN_SECONDS = 1.0
_KEEPALIVE_SECONDS = 4.0
"""Idle connections are dropped before vLLM drops them (5 s), so that no request meets a closing one."""
_ERROR_BYTES = 64 * 1024
_STREAM_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class VllmHttpEngine:
    """One vLLM server, version 0.24 or newer. Belongs to the event loop that uses it first.

    Closing or cancelling a `generate` drops its connection at once, which makes vLLM abort the request. vLLM
    sends no usage then: the prompt tokens of a cut stream are those of the request, its output tokens those of
    the chunks, and its cached and drafted tokens are unknown.
    """

    def __init__(
        self, base_url: str, *, api_key: str = "", served_model_name: str = "", stall_seconds: float = 300.0
    ) -> None:
        """`stall_seconds`: an engine that sends no ids for so long, from the request on, is lost."""
        self.base_url = base_url.rstrip("/")
        """Where the server is; a new one may have taken its place elsewhere."""
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = served_model_name
        self._stall_seconds = stall_seconds
        self._session_field = False
        self._absent_cached: int | None = None
        self._client: aiohttp.ClientSession | None = None

    async def probe(self) -> EngineInfo:
        """Find out what the server is, and that it generates.

        Reads its documents, then sends a prompt of one KV block plus one token under a salt of its own and asks
        for one token; whether cached tokens and speculation are reported is seen from the reply. vLLM before 0.32
        leaves out a count of 0, so without a count the prompt is sent once more, where one block is cached. The
        engine's counters grow by these requests.

        Raises `EngineUnavailable` while the server does not answer, `EngineRefused` if it is of no use.
        """
        try:
            return await self._probe()
        except EngineLost as error:
            raise EngineUnavailable(f"The engine does not answer its probe: {error}") from error

    async def _probe(self) -> EngineInfo:
        version = read_version(await self._get("/version"))
        model = read_model(await self._get("/v1/models"), self._model)
        fields = optional_fields(await self._get_optional("/openapi.json"), version)
        self._session_field = SESSION in fields
        block_size = read_block_size((await self._get_optional("/metrics") or b"").decode(errors="replace"))
        self._model = model.name
        self._absent_cached = None
        prompt, salt = probe_prompt(block_size, model.max_model_len), uuid.uuid4().hex
        end = await self._generate_one(prompt, salt)
        reports_cached = end.cached_tokens is not None
        if not reports_cached and (await self._generate_one(prompt, salt)).cached_tokens is not None:
            reports_cached = True
            self._absent_cached = 0
        return EngineInfo(
            version=version,
            model=model.name,
            max_model_len=model.max_model_len,
            block_size=block_size,
            reports_cached_tokens=reports_cached,
            reports_speculation=end.drafted is not None,
            emulated=model.emulated,
            structured_outputs=STRUCTURED in fields,
        )

    async def _generate_one(self, prompt: list[int], salt: str) -> GenerationEnd:
        request = GenerateRequest(
            request_id=f"probe-{uuid.uuid4().hex}",
            prompt_json=orjson.dumps(prompt),
            prompt_tokens=len(prompt),
            max_tokens=1,
            sampling=Sampling(temperature=0.0),
            stop_token_ids=(),
            cache_salt=salt,
            session_id="",
        )
        async with aclosing(self.generate(request)) as stream:
            async for item in stream:
                if isinstance(item, GenerationEnd):
                    return item
        raise AssertionError("generate ended without GenerationEnd")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | GenerationEnd, None]:
        """Stream the ids of one request, then one `GenerationEnd`. Closing the iterator aborts the request.

        Raises `EngineLost`, `EngineRefused` (4xx) or `EngineUnavailable` (429, 502, 503, 504).
        """
        body = encode_request(request, model=self._model, session_field=self._session_field)
        headers = {**_STREAM_HEADERS, "X-Request-Id": request.request_id}
        stream = CompletionStream()
        try:
            reply = await self._post("/v1/completions", body, headers)
            try:
                with StallGuard(self._stall_seconds, partial(_time_out, reply)) as guard:
                    await _raise_for_status(reply)
                    while not stream.done:
                        data = b"" if stream.failed else await reply.content.readany()
                        if not data and not stream.failed:
                            raise EngineLost("The engine closed the stream before its end.")
                        chunk = stream.feed(data)
                        if chunk is not None:
                            guard.pause()
                            yield chunk
                            guard.resume()
                yield stream.end(absent_cached=self._absent_cached)
                await _drain(reply)
            finally:
                reply.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _lost(error) from error
        except RuntimeError as error:  # what aiohttp raises on connections that close() has taken away
            if not self._session().closed:
                raise
            raise _lost(error) from error

    async def healthy(self) -> bool:
        """Whether the server answers its health check within 2 s."""
        try:
            await self._get("/health", seconds=_HEALTH_SECONDS)
        except (EngineLost, EngineRefused, EngineUnavailable):
            return False
        return True

    async def metrics(self) -> str:
        """The text of /metrics. Raises `EngineLost`, `EngineUnavailable` or `EngineRefused`."""
        return (await self._get("/metrics")).decode(errors="replace")

    async def close(self) -> None:
        """Close the connections; streams that are running raise `EngineLost`."""
        if self._client is not None:
            await self._client.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            )
        return self._client

    async def _post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        async with asyncio.timeout(self._stall_seconds):
            return await self._session().post(self.base_url + path, data=io.BytesIO(body), headers=headers)

    async def _get(self, path: str, *, seconds: float = _DOCUMENT_SECONDS) -> bytes:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS)
        try:
            async with self._session().get(self.base_url + path, timeout=timeout) as reply:
                await _raise_for_status(reply)
                return await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _lost(error) from error

    async def _get_optional(self, path: str) -> bytes | None:
        try:
            return await self._get(path)
        except EngineRefused:
            return None


async def _raise_for_status(reply: aiohttp.ClientResponse) -> None:
    if reply.status != HTTPStatus.OK:
        raise status_error(reply.status, await reply.content.read(_ERROR_BYTES))


async def _drain(reply: aiohttp.ClientResponse) -> None:
    """Read what follows the last event, so that the connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while await reply.content.readany():
                pass


def _time_out(reply: aiohttp.ClientResponse) -> None:
    reply.content.set_exception(TimeoutError())


def _lost(error: Exception) -> EngineLost:
    if isinstance(error, TimeoutError):
        return EngineLost("The engine was silent for too long.")
    return EngineLost(f"The connection to the engine broke ({type(error).__name__}).")
