"""Where text history loses the cache: conversations as text over a real engine's chat API, and through Paceline.

The client keeps messages and sends all of them again, both ways, each under a cache salt of its own. It reads the
arguments of calls and writes them anew. Of the second prompt the cache can hold whole blocks of the turn before,
floor((first prompt + answer - 1) / B) * B tokens. Thinking and tags are the model's own, asked for by the prompt.
Calls and answers that begin with a newline are dictated: the small model writes no calls in the form of its
template, so a logits processor (`_dictation.py`) overrules the engine's sampling.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks import _cases
from benchmarks._cases import Case
from benchmarks._common import Report, Served, real_engine, real_model, serve
from tokenizers import Tokenizer

from paceline.engines.probe import read_block_size
from paceline.models.catalog import resolve_model
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

RESULT, NEXT = "Done.", "Now say in one sentence what comes next."
LAST_TOKENS = 4
"""Most tokens of the second answer, which nothing follows."""
EXTRA = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--trust-request-chat-template"]
"""What the engine's chat API needs for tools, and for another template in a request."""
DICTATION = ["--logits-processors", "_dictation:Dictation"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn used, by the engine's own numbers."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class Break:
    """Where the second prompt of a text history leaves the ids before it."""

    position: int
    of: int
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Bench:
    """Has conversations both ways."""

    url: str
    session: aiohttp.ClientSession
    clients: dict[str, AsyncClient]
    """By model."""
    tokenizer: Tokenizer
    tokens: int

    async def paceline(self, case: Case) -> list[Turn]:
        """Both turns through the runtime."""
        workflow = await self.clients[case.model].create_workflow(
            model=case.model, tools=case.tools, temperature=0.0
        )
        said = [t.Message(t.Role.SYSTEM, _cases.SYSTEM), t.Message(t.Role.USER, case.question)]
        turns = list[Turn]()
        for tokens in (self.tokens, LAST_TOKENS):
            answer = await workflow.step(said, whole_conversation=True, max_output_tokens=tokens)
            usage, cached = answer.usage, answer.usage.cached_prompt or 0
            turns.append(Turn((usage.uncached_prompt or 0) + cached, cached, usage.output or 0))
            calls = tuple(
                t.ToolCall(call.tool_call_id, call.tool_name, rewritten(call.arguments_json))
                for call in answer.tool_calls
            )
            said.append(t.Message(t.Role.ASSISTANT, answer.text, tool_calls=calls))
            said += [t.Message(t.Role.TOOL, RESULT, tool_call_id=call.tool_call_id) for call in calls]
            said += [] if calls else [t.Message(t.Role.USER, NEXT)]
        return turns

    async def text(self, case: Case) -> tuple[list[Turn], Break | None]:
        """Both turns over the chat API."""
        said: list[dict[str, Any]] = [
            {"role": "system", "content": _cases.SYSTEM},
            {"role": "user", "content": case.question},
        ]
        turns, ids = list[Turn](), list[list[int]]()
        for tokens in (self.tokens, LAST_TOKENS):
            reply = await self._chat(case, said, tokens)
            usage, choice = reply["usage"], reply["choices"][0]
            cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
            turns.append(Turn(usage["prompt_tokens"], cached, usage["completion_tokens"]))
            ids += [reply["prompt_token_ids"], choice["token_ids"]]
            said += history(choice["message"])
        return turns, self._break(ids[0] + ids[1], ids[2])

    async def _chat(self, case: Case, said: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "messages": said,
            "temperature": 0,
            "max_tokens": tokens,
            "cache_salt": "text",
            "return_token_ids": True,
        }
        if case.model != _cases.OWN:
            body["chat_template"] = qwen3_template().read_text()
            body["chat_template_kwargs"] = {"enable_thinking": case.model == _cases.THINKING}
        if case.tools:
            body["tools"] = [function(tool) for tool in case.tools]
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            return dict(await reply.json())

    def _break(self, before: list[int], after: list[int]) -> Break | None:
        pairs = zip(before, after, strict=False)
        at = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            return None
        was, now = (self._pieces(ids[at - 1 : at + 3]) for ids in (before, after))
        return Break(at, len(before), was, now)

    def _pieces(self, ids: list[int]) -> str:
        return " ".join(repr(self.tokenizer.decode([token_id], skip_special_tokens=False)) for token_id in ids)


def rewritten(arguments: str) -> str:
    """Arguments of a call as a client writes them that has read them."""
    return json.dumps(json.loads(arguments))


def history(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a client adds after an answer of the chat API: the answer, and what comes after it."""
    calls = [
        {"id": call["id"], "type": "function", "function": call["function"]}
        for call in message.get("tool_calls") or []
    ]
    for call in calls:
        call["function"]["arguments"] = rewritten(call["function"]["arguments"])
    said = {"role": "assistant", "content": message["content"] or ""}
    if not calls:
        return [said, {"role": "user", "content": NEXT}]
    results = [{"role": "tool", "content": RESULT, "tool_call_id": call["id"]} for call in calls]
    return [said | {"tool_calls": calls}, *results]


def function(tool: t.Tool) -> dict[str, Any]:
    """A tool in the chat API's form."""
    parameters = json.loads(tool.parameters_json)
    described = {"name": tool.tool_name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": described}


def qwen3_template() -> Path:
    """Qwen3's chat template, as the package trl ships it."""
    return Path(str(distribution("trl").locate_file("trl/chat_templates/qwen3.jinja")))


def row(case: Case, way: str, turns: list[Turn], block: int) -> dict[str, object]:
    """A line of the table: the second turn."""
    first, second = turns
    possible = (first.prompt + first.output - 1) // block * block
    return {
        "case": case.name,
        "said by": "dictation" if case.dictated else "the model",
        "way": way,
        "first prompt": first.prompt,
        "answer tokens": first.output,
        "second prompt": second.prompt,
        "could be cached": possible,
        "cached": second.cached,
        "computed": second.prompt - second.cached,
    }


async def run(report: Report, bench: Bench, cases: list[Case]) -> None:
    """Have all conversations, one after the other."""
    async with bench.session.get(f"{bench.url}/metrics") as reply:
        block = read_block_size(await reply.text()) or 0
    report.say(f"engine ready at {bench.url}, blocks of {block} tokens\n")
    rows = list[dict[str, object]]()
    for case in cases:
        turns, broken = await bench.text(case)
        rows.append(row(case, "chat API", turns, block))
        rows.append(row(case, "Paceline", await bench.paceline(case), block))
        report.say(f"{case.name}: the chat API's second prompt " + said_of(broken))
    report.table("rows", f"second turn, blocks of {block} tokens", rows)


def said_of(broken: Break | None) -> str:
    """A break in words."""
    if broken is None:
        return "has the ids of the first turn"
    return f"leaves them at {broken.position} of {broken.of}: {broken.was} is now {broken.now}"


def engine(cases: list[Case], tokenizer: Tokenizer) -> dict[str, Any]:
    """The settings of the engine, which knows what it has to say."""
    answers = json.dumps([case.dictation(tokenizer) for case in cases if case.dictated])
    env = {"PYTHONPATH": str(Path(__file__).parent), "BENCHMARK_DICTATION": answers}
    return real_engine(_cases.OWN, extra_args=[*EXTRA, *DICTATION], env=env)


def others(url: str) -> dict[str, Any]:
    """Settings of a second runtime, which sees the same engine as models with Qwen3's template."""
    base = {"path": real_model(), "template": str(qwen3_template())}
    thinking = {_cases.THINKING: True, _cases.NOT_THINKING: False}
    return {
        "models": {name: base | {"template_arguments": {"enable_thinking": on}} for name, on in thinking.items()},
        "engines": {name: {"model": name, "url": url, "served_model_name": _cases.OWN} for name in thinking},
    }


async def main_loop(report: Report, served: Served, tokens: int, cases: list[Case], tokenizer: Tokenizer) -> None:
    """Wait for the engine, start the second runtime on it, and measure."""
    async with AsyncClient(served.target) as client, aiohttp.ClientSession() as session:
        warm_up = await client.create_workflow(temperature=0.0)
        await warm_up.step("Say hello.", max_output_tokens=4)
        url = served.engine_urls()[0]
        with serve("side_by_side_qwen3", others(url)) as second:
            async with AsyncClient(second.target) as other:
                clients = {_cases.OWN: client, _cases.THINKING: other, _cases.NOT_THINKING: other}
                await run(report, Bench(url, session, clients, tokenizer, tokens), cases)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256, help="most tokens per answer")
    options = parser.parse_args()
    report, cases = Report("side_by_side"), list(_cases.cases())
    tokenizer = Tokenizer.from_file(str(Path(resolve_model(real_model())) / "tokenizer.json"))
    settings = {
        "models": {_cases.OWN: {"path": real_model()}},
        "engines": {"e": engine(cases, tokenizer)},
    }
    with serve("side_by_side", settings) as served:
        asyncio.run(main_loop(report, served, options.tokens, cases, tokenizer))
    report.write()


if __name__ == "__main__":
    main()
