"""KV-cache reuse from turn to turn on a real engine, beside the same conversations as text over its own chat API.

What can be found of a turn's prompt are the whole blocks of what the turn before left behind: floor((its prompt +
its output - 1) / B) * B tokens, since the last generated token was never computed. Both ways count with the
engine's own numbers and get the same questions and tool results, each under a cache salt of its own. Half of the
workflows have tools.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from benchmarks import _tasks
from benchmarks._common import Report, Served, median, percentile, real_engine, real_model, serve

from paceline.engines.probe import read_block_size
from paceline_agents import types as t
from paceline_agents.aio import AsyncClient

SYSTEM = "You are a careful coding agent. Work in small steps and call one tool at a time."
TOOLS = [
    t.Tool(
        "run_command",
        "Run a shell command in the repository.",
        '{"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}',
    ),
    t.Tool(
        "read_file",
        "Read a file of the repository.",
        '{"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}',
    ),
]
EXTRA = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
"""What the engine's chat API needs for tools."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn used, by the engine's own numbers."""

    way: str
    number: int
    prompt: int
    cached: int
    output: int
    first_token: float
    possible: int = 0
    """Most tokens that can be found in the cache."""


@dataclass(frozen=True, slots=True)
class Task:
    """A conversation to have."""

    tools: bool
    question: str
    results: tuple[str, ...]


def tasks(count: int, turns: int) -> list[Task]:
    """Different conversations."""
    programs, made = list(_tasks.PROGRAMS.items()), []
    for number in range(count):
        name, program = programs[number % len(programs)]
        question = _tasks.QUESTIONS[number // len(programs) % len(_tasks.QUESTIONS)]
        results = tuple(_tasks.RESULTS[(number + turn) % len(_tasks.RESULTS)] for turn in range(turns - 1))
        text = f"Job {number}. The file {name}:\n\n```python\n{program}```\n\n{question}"
        made.append(Task(number % 2 == 1, text, results))
    return made


class Bench:
    """Has conversations both ways."""

    def __init__(self, url: str, client: AsyncClient, session: aiohttp.ClientSession, tokens: int) -> None:
        self._url, self._client, self._session, self._tokens = url, client, session, tokens

    async def paceline(self, task: Task) -> AsyncIterator[Turn]:
        """The conversation through the runtime."""
        workflow = await self._client.create_workflow(
            system=SYSTEM, tools=TOOLS if task.tools else [], temperature=0.0, max_output_tokens=self._tokens
        )
        messages = [t.Message(t.Role.USER, task.question)]
        for number, result in enumerate((*task.results, "")):
            started, first = time.perf_counter(), 0.0
            stream = workflow.step(messages)
            async for event in stream:
                if not first and isinstance(event, t.TextDelta | t.ToolCallReady):
                    first = time.perf_counter() - started
            answer = await stream.result()
            usage = answer.usage
            cached, prompt = usage.cached_prompt or 0, (usage.uncached_prompt or 0) + (usage.cached_prompt or 0)
            yield Turn("paceline", number, prompt, cached, usage.output or 0, first)
            messages = [
                t.Message(t.Role.TOOL, result, tool_call_id=call.tool_call_id) for call in answer.tool_calls
            ] or [t.Message(t.Role.USER, result)]

    async def text(self, task: Task, salt: str) -> AsyncIterator[Turn]:
        """The conversation over the chat API, its history sent as messages every time."""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": task.question},
        ]
        for number, result in enumerate((*task.results, "")):
            reply = await self._chat(messages, task.tools, salt)
            usage = reply.usage
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            yield Turn(
                "chat API", number, usage["prompt_tokens"], cached, usage["completion_tokens"], reply.first_token
            )
            messages.append(reply.message())
            messages += [
                {"role": "tool", "content": result, "tool_call_id": call["id"]} for call in reply.calls.values()
            ] or [{"role": "user", "content": result}]

    async def _chat(self, messages: list[dict[str, Any]], tools: bool, salt: str) -> Reply:
        body: dict[str, Any] = {
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
        }
        if tools:
            body["tools"] = [_function(tool) for tool in TOOLS]
        reply = Reply(time.perf_counter())
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    reply.take(orjson.loads(line[6:]))
        return reply


def _function(tool: t.Tool) -> dict[str, Any]:
    parameters = orjson.loads(tool.parameters_json)
    described = {"name": tool.tool_name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": described}


class Reply:
    """A streamed answer of the chat API."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._text: list[str] = []
        self.calls: dict[int, dict[str, Any]] = {}
        self.usage: dict[str, Any] = {}
        self.first_token = 0.0

    def take(self, event: dict[str, Any]) -> None:
        """Read one event."""
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", []):
            delta = choice["delta"]
            if not self.first_token and (delta.get("content") or delta.get("tool_calls")):
                self.first_token = time.perf_counter() - self._started
            self._text.append(delta.get("content") or "")
            for part in delta.get("tool_calls") or []:
                self._take_call(part)

    def _take_call(self, part: dict[str, Any]) -> None:
        call = self.calls.setdefault(
            part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.get("id") or call["id"]
        for name, value in (part.get("function") or {}).items():
            call["function"][name] += value or ""

    def message(self) -> dict[str, Any]:
        """The assistant's message, as an agent sends it back."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text)}
        return message | ({"tool_calls": list(self.calls.values())} if self.calls else {})


async def converse(turns: AsyncIterator[Turn], block: int) -> list[Turn]:
    """Have a conversation; each turn then knows what the cache could hold of it."""
    done: list[Turn] = []
    async for turn in turns:
        left = done[-1].prompt + done[-1].output - 1 if done else 0
        done.append(
            Turn(
                turn.way,
                turn.number,
                turn.prompt,
                turn.cached,
                turn.output,
                turn.first_token,
                left // block * block,
            )
        )
    return done


def row(way: str, turns: list[Turn]) -> dict[str, object]:
    """A line of the table: all turns but the first of each conversation."""
    later = [turn for turn in turns if turn.way == way and turn.number > 0]
    possible = sum(turn.possible for turn in later)
    prompt, cached = sum(turn.prompt for turn in later), sum(turn.cached for turn in later)
    first = [1000 * turn.first_token for turn in later if turn.first_token]
    return {
        "way": way,
        "turns": len(later),
        "prompt tokens": prompt,
        "could be cached": possible,
        "cached": cached,
        "ratio %": 100 * cached / possible,
        "worst turn %": min(100 * turn.cached / turn.possible for turn in later),
        "computed": prompt - cached,
        "first token p50 ms": median(first),
        "p95": percentile(first, 95),
    }


async def run(report: Report, options: argparse.Namespace, served: Served) -> None:
    """Have all conversations, a few at a time, each both ways in turn."""
    async with AsyncClient(served.target) as client, aiohttp.ClientSession() as session:
        warm_up = await client.create_workflow(temperature=0.0)
        await warm_up.step("Say hello.", max_output_tokens=4)
        url = served.engine_urls()[0]
        async with session.get(f"{url}/metrics") as reply:
            block = read_block_size(await reply.text()) or 0
        report.say(f"engine ready at {url}, blocks of {block} tokens")
        bench, turns = Bench(url, client, session, options.tokens), list[Turn]()
        places = asyncio.Semaphore(options.concurrency)

        async def have(number: int, task: Task) -> None:
            async with places:
                turns.extend(await converse(bench.paceline(task), block))
                turns.extend(await converse(bench.text(task, f"text-{number}"), block))
                report.say(f"conversation {number + 1} of {options.workflows}")

        async with asyncio.TaskGroup() as group:
            for number, task in enumerate(tasks(options.workflows, options.turns)):
                group.create_task(have(number, task))
    title = f"{options.workflows} workflows of {options.turns} turns, from turn 2 on; target: ratio >= 99 %"
    report.table("rows", title, [row("paceline", turns), row("chat API", turns)])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workflows", type=int, default=20)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48, help="most tokens per answer")
    parser.add_argument("--concurrency", type=int, default=2)
    options = parser.parse_args()
    report = Report("kv_reuse")
    settings = {
        "models": {"m": {"path": real_model()}},
        "speculation": {"ngram": {"method": "ngram", "num_speculative_tokens": 4}},
        "engines": {"e": real_engine("m", speculation="ngram", extra_args=EXTRA)},
    }
    with serve("kv_reuse", settings) as served:
        asyncio.run(run(report, options, served))
    report.write()


if __name__ == "__main__":
    main()
