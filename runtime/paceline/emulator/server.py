"""The HTTP side: vLLM's routes and the admin routes under `/emulator`."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web
from pydantic import ValidationError

from paceline.emulator.engine import EmulatedEngine, Request
from paceline.emulator.faults import FAULTS, Fault, FaultPlan
from paceline.emulator.metrics import render_metrics
from paceline.emulator.neuron import refuse
from paceline.emulator.neuron_engine import NeuronEngine
from paceline.emulator.neuron_start import Started
from paceline.emulator.openapi import openapi_document
from paceline.emulator.output import Limits, Plan, plan_output
from paceline.emulator.protocol import (
    CompletionRequest,
    PromptIds,
    PromptParser,
    Refused,
    check_lengths,
    decode_request,
)
from paceline.emulator.replies import RULES, Rule, Script
from paceline.emulator.replymessages import Answer, error_event, now
from paceline.emulator.settings import Settings
from paceline.emulator.tokenizer import Vocabulary, load_vocabulary

MAX_BODY_BYTES = 256 * 2**20
EXIT_CODE_OF_FAULT = 70
_KEPT_COUNTS = 10_000


class EmulatorServer:
    """One emulated server. `start` must run before the application serves."""

    def __init__(self, settings: Settings, rules: list[Rule], started: Started | None = None) -> None:
        self.settings = settings
        self.vocabulary: Vocabulary = load_vocabulary(settings.model_path)
        self.script = Script(self.vocabulary.tokenizer, rules, settings.reply_tokens)
        self.faults = FaultPlan()
        self.counts: deque[dict[str, Any]] = deque(maxlen=_KEPT_COUNTS)
        self._parser = PromptParser()
        self._engine: EmulatedEngine | None = None
        self._started = started or Started()

    @property
    def engine(self) -> EmulatedEngine:
        """The running engine."""
        if self._engine is None:
            raise RuntimeError("the emulated engine is not started")
        return self._engine

    def application(self) -> web.Application:
        """The aiohttp application; it starts and stops the engine."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._run_engine)
        app.add_routes(
            [
                web.post("/v1/completions", self.completions),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
                web.get("/openapi.json", self.openapi),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.post("/emulator/script", self.set_script),
                web.post("/emulator/faults", self.set_faults),
                web.get("/emulator/counts", self.get_counts),
            ]
        )
        if self.settings.neuron is None:  # the plugin's documents name no KV events
            app.add_routes([web.get("/emulator/kv_events", self.kv_events)])
        return app

    async def _run_engine(self, app: web.Application) -> AsyncIterator[None]:
        del app
        if neuron := self.settings.neuron:
            self._engine = NeuronEngine(self.settings, neuron, self._ended, self._started)
        else:
            self._engine = EmulatedEngine(self.settings, self._ended)
        yield
        await self._engine.close()

    # -- vLLM's routes ------------------------------------------------------------------------------------------

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """Answer one completion request, streamed or whole."""
        if http.content_type != "application/json":
            message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            return _error(Refused(message, kind="Bad Request"))
        try:
            body = await http.read()
            asked = decode_request(body)
            if self.settings.neuron:
                refuse(self.settings.neuron, asked, body)
            fault = self.faults.take()
            _refuse_if_asked(fault)
            answer = self._answer(http, asked, fault)
        except Refused as refused:
            return _error(refused)
        if fault and fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        try:
            return await (self._stream(http, answer, fault) if asked.stream else self._whole(answer, fault))
        except _Dropped:
            if http.transport is not None:
                http.transport.abort()
            raise

    def _answer(self, http: web.Request, asked: CompletionRequest, fault: Fault | None) -> Answer:
        if asked.model not in {None, self.settings.model_name}:
            message = f"The model `{asked.model}` does not exist. Valid aliases: {self.settings.model_name}."
            raise Refused(message, param="model", status=404)
        if asked.priority and not self.settings.priority_scheduling:
            raise Refused("Priority scheduling is not enabled; start with --scheduling-policy priority.")
        prompt, prompt_json = self._prompt(asked)
        limit = check_lengths(asked, len(prompt.data) // 4, self.settings.max_model_len)
        seed = asked.seed if asked.seed is not None else self.settings.seed
        request = Request(
            request_id=http.headers.get("X-Request-Id") or asked.request_id or uuid.uuid4().hex[:16],
            prompt=prompt.data,
            plan=self._plan(asked, prompt.data, limit, seed),
            salt=str(asked.cache_salt or ""),
            priority=asked.priority,
            session_id=asked.session_id,
            seed=seed,
            hold_after=fault.after_tokens if fault and fault.cuts else None,
        )
        unknown_id = prompt.largest if prompt.largest >= self.vocabulary.size else None
        return Answer(self.settings, asked, request, orjson.Fragment(prompt_json), unknown_id, now())

    def _prompt(self, asked: CompletionRequest) -> tuple[PromptIds, bytes]:
        """The prompt's ids, and the same as JSON."""
        text = bytes(asked.prompt)
        if text.startswith(b'"'):
            ids = self.vocabulary.tokenizer.encode(orjson.loads(text), add_special_tokens=False).ids
            text = orjson.dumps(ids)
        prompt = self._parser.parse(text)
        if not prompt.data:
            raise Refused("You must pass at least one prompt")
        return prompt, text

    def _plan(self, asked: CompletionRequest, prompt: bytes, limit: int, seed: int) -> Plan:
        limits = Limits(
            max_tokens=limit,
            end_id=self.vocabulary.end_id,
            min_tokens=asked.min_tokens,
            ignore_end=asked.ignore_eos,
            stop_ids=frozenset(asked.stop_token_ids or ()),
            stop_texts=asked.stop_texts,
            skip_special_tokens=asked.skip_special_tokens,
        )
        reply = self.script.reply(prompt, seed)
        tokenizer = self.vocabulary.tokenizer
        plan = plan_output(reply.ids, limits, tokenizer, lambda tokens: self.script.filler(tokens, seed))
        return replace(plan, logprobs=reply.logprobs, acceptance=reply.acceptance)

    async def _stream(self, http: web.Request, answer: Answer, fault: Fault | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        request = answer.request
        try:
            _check_vocabulary(answer)
            async with aclosing(self._chunks(request, fault)) as chunks:
                async for first, end in chunks:
                    reason = request.plan.finish_reason if end == len(request.plan.ids) else None
                    await response.write(answer.chunk(first, end, reason))
            if request.finish_reason == "abort" and request.emitted:
                await response.write(answer.chunk(request.emitted, request.emitted, "abort"))
            if answer.include_usage:
                await response.write(answer.usage_chunk())
        except Refused as refused:
            await response.write(error_event(refused.body))
        await response.write(b"data: [DONE]\n\n")
        _exit_if_asked(fault)
        return response

    async def _whole(self, answer: Answer, fault: Fault | None) -> web.Response:
        try:
            _check_vocabulary(answer)
            async with aclosing(self._chunks(answer.request, fault)) as chunks:
                async for _ in chunks:
                    pass
        except Refused as refused:
            return _error(refused)
        return web.Response(body=answer.whole(), content_type="application/json")

    async def _chunks(self, request: Request, fault: Fault | None) -> AsyncGenerator[tuple[int, int], None]:
        """Run a request. Leaving early, by a client that is gone for example, aborts it."""
        self.engine.submit(request)
        sent = 0
        try:
            while True:
                if fault and fault.cuts and sent >= fault.after_tokens:
                    self._strike(fault, request)
                chunk = await request.chunks.get()
                if chunk is None:
                    return
                sent = chunk[1]
                yield chunk
        finally:
            self.engine.abort(request)

    def _strike(self, fault: Fault, request: Request) -> None:
        """Let a fault happen; a stall needs nothing, since the engine holds the request."""
        if fault.kind == "abort":
            self.engine.abort(request)
        elif fault.kind in {"error", "exit"}:
            raise Refused("The emulated engine died.", status=500, kind="InternalServerError")
        elif fault.kind == "drop":
            raise _Dropped

    async def models(self, http: web.Request) -> web.Response:
        """The one model, owned by the emulator."""
        del http
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": now(),
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": self.settings.model_name,
            "object": "model",
            "created": now(),
            "owned_by": "paceline-emulator",
            "root": "emulated: no model runs",
            "parent": None,
            "max_model_len": self.settings.max_model_len,
            "permission": [permission],
        }
        return _json({"object": "list", "data": [card]})

    async def health(self, http: web.Request) -> web.Response:
        """200 while the process lives; a stalled request does not show here, as in vLLM."""
        del http
        return web.Response()

    async def version(self, http: web.Request) -> web.Response:
        """The emulated version; the local part says that it is emulated."""
        del http
        return _json({"version": f"{self.settings.features.version}+emulated"})

    async def metrics(self, http: web.Request) -> web.Response:
        """Prometheus text."""
        del http
        return web.Response(body=render_metrics(self.engine), content_type="text/plain")

    async def openapi(self, http: web.Request) -> web.Response:
        """The document that feature probes read."""
        del http
        return _json(openapi_document(self.settings.features))

    async def reset_prefix_cache(self, http: web.Request) -> web.Response:
        """Forget the idle cached blocks."""
        del http
        self.engine.cache.clear()
        return _json({"success": True})

    # -- admin routes -------------------------------------------------------------------------------------------

    async def set_script(self, http: web.Request) -> web.Response:
        """Replace the script by the rules in the body."""
        try:
            rules = RULES.validate_json(await http.read())
        except ValidationError as error:
            return web.Response(status=400, text=str(error))
        self.script.replace(rules)
        return _json({"rules": len(rules)})

    async def set_faults(self, http: web.Request) -> web.Response:
        """Replace the faults that wait for requests by those in the body; an empty list clears them."""
        try:
            faults = FAULTS.validate_json(await http.read())
        except ValidationError as error:
            return web.Response(status=400, text=str(error))
        self.faults.replace(faults)
        return _json({"faults": len(faults)})

    async def kv_events(self, http: web.Request) -> web.Response:
        """Stored and removed blocks from sequence number `?since=N` on. Internal; not vLLM's format."""
        try:
            since = int(http.query.get("since", "0"))
        except ValueError:
            return web.Response(status=400, text="since: give a sequence number")
        events = [
            {
                "sequence_number": event.sequence_number,
                "kind": event.kind,
                "hashes": [block.hex() for block in event.hashes],
                "parent": event.parent.hex() if event.parent else None,
            }
            for event in self.engine.cache.events_since(since)
        ]
        return _json({"block_size": self.settings.block_size, "events": events})

    async def get_counts(self, http: web.Request) -> web.Response:
        """What the last ended requests really used, aborted ones included."""
        del http
        return _json({"aborts": self.engine.totals.aborts, "requests": list(self.counts)})

    def _ended(self, request: Request) -> None:
        drafts = request.drafts
        row = {
            "request_id": request.request_id,
            "session_id": request.session_id,
            "finish_reason": request.finish_reason,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "output_tokens": request.emitted,
            "drafted": drafts.drafted if drafts else None,
            "accepted": drafts.accepted if drafts else None,
            "draft_steps": drafts.steps if drafts else None,
        }
        self.counts.append(row)
        if self.settings.counts_file is not None:
            with self.settings.counts_file.open("ab") as file:
                file.write(orjson.dumps(row) + b"\n")


def _check_vocabulary(answer: Answer) -> None:
    """vLLM finds this out so late that a stream has begun with status 200."""
    if answer.unknown_id is not None:
        raise Refused(f"Token id {answer.unknown_id} is out of vocabulary")


class _Dropped(Exception):
    """The connection shall break."""


def _refuse_if_asked(fault: Fault | None) -> None:
    if fault and fault.kind == "refuse":
        raise Refused("The emulated engine refuses this request.", status=fault.status)


def _exit_if_asked(fault: Fault | None) -> None:
    if fault and fault.kind == "exit":
        os._exit(EXIT_CODE_OF_FAULT)


def _json(body: Any) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _error(refused: Refused) -> web.Response:
    return web.Response(status=refused.status, body=orjson.dumps(refused.body), content_type="application/json")
