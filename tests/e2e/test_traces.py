"""Sessions of real coding agents, and graphs of agents, sent as whole conversations: what continues keeps its ids.

How traces become conversations, and what is expected of them, says `traces.py`. Everything runs through the server
and an emulated engine, whose prefix cache is the second witness: it counts what it has seen before by the ids that
it gets.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.traces import (
    CALL,
    END_OF_LINE,
    THINK,
    Agent,
    ModelCall,
    Part,
    Request,
    read_graph,
    read_trace,
    waves,
)

from paceline_agents import types as t

pytestmark = pytest.mark.data
DATA = Path(os.environ.get("PACELINE_DATA", ""))
ENGINE = ("--time-scale=0", "--reply-tokens=24", "--max-model-len=120000", "--num-gpu-blocks-override=60000")
BLOCK = 32
RUN = t.Tool("run", "Run a command.", '{"type":"object","properties":{"command":{"type":"string"}}}')
CALLED = '<tool_call>\n{"name": "run", "arguments": {"command": "make", "wait": 1}}\n</tool_call>'
THOUGHT = "<think>\nIt has to be done.\n</think>\n\n"
ASKED = r"Request \d+\.{}<\|im_end\|>\n<\|im_start\|>assistant\n\Z"
ASKED_BY_TOOL = r"Request \d+\.{}\n</tool_response><\|im_end\|>\n<\|im_start\|>assistant\n\Z"
SCRIPT = [
    {"pattern": asked.format(marks), "reply": reply}
    for asked in (ASKED, ASKED_BY_TOOL)
    for marks, reply in (
        (rf" {THINK} {CALL}", THOUGHT + CALLED),
        (rf" {CALL}", "I run it.\n" + CALLED),
        (rf" {THINK}", THOUGHT + "It is done."),
    )
]
"""Without a mark, the engine's filler text is the answer."""


@dataclass
class Done:
    """A step, and what the agent had done before it in the same workflow."""

    where: str
    request: Request = field(repr=False)
    answer: t.Answer
    before: Done | None = field(repr=False)
    chain: tuple[tuple[int, Done], ...] = field(default=(), repr=False)
    """The steps that the conversation continues, each with the length of the conversation with its answer."""


@dataclass
class Replay:
    """Sends agents' conversations, one request after the other."""

    client: Any
    done: list[Done] = field(default_factory=list)
    left: list[tuple[Done, t.Answer]] = field(default_factory=list)
    """Steps that compactions left behind, and what continued them afterwards."""

    async def run(self, agent: Agent, parent_workflow_id: str = "") -> None:
        """Send the requests of an agent and of its sub-agents."""
        workflow, last = None, None
        answers: dict[int, t.Answer] = {}
        for request in agent.requests:
            if workflow is None or request.new_workflow:
                parent_workflow_id = workflow.workflow_id if workflow else parent_workflow_id
                workflow, last = await self._begin(request, parent_workflow_id), None
            messages = [_message(request.parts, at, answers) for at in range(len(request.parts))]
            answer = await workflow.step(messages, whole_conversation=True)
            answers[request.number] = answer
            # Under another system prompt, too, the messages are those of the same steps.
            kept = request.at or len(request.parts)
            chain: list[tuple[int, Done]] = [link for link in last.chain if link[0] <= kept] if last else []
            done = Done(f"{agent.name} request {request.number}", request, answer, last)
            done.chain = (*chain, (len(request.parts) + 1, done))
            self.done.append(done)
            if last and request.reason == "compacted":
                fork = await workflow.fork(last.answer.step_id)
                self.left.append((last, await fork.step("What was it?")))
            await asyncio.gather(*(self.run(child, workflow.workflow_id) for child in request.children))
            last = done

    async def _begin(self, request: Request, parent_workflow_id: str) -> Any:
        options = {"system": request.parts[0].text, "tools": [RUN], "parent_workflow_id": parent_workflow_id}
        return await self.client.create_workflow(**options)


def _message(parts: tuple[Part, ...], at: int, answers: dict[int, t.Answer]) -> t.Message:
    """A message as a client resends it: own ids and layout of calls, no reasoning."""
    part = parts[at]
    if part.answer is not None:
        answer = answers[part.answer]
        calls = tuple(
            t.ToolCall(f"call-{part.answer}", call.tool_name, '{ "wait":1, "command":"make" }')
            for call in answer.tool_calls
        )
        return t.Message(t.Role.ASSISTANT, part.text or answer.text, tool_calls=calls)
    if part.role == "tool":
        call_id = f"call-{parts[at - 1].answer}"
        return t.Message(t.Role.TOOL, part.text, tool_call_id=call_id, tool_name="run")
    return t.Message(t.Role(part.role), part.text)


@dataclass(frozen=True)
class Stored:
    """A step in the ledger."""

    parent: str | None
    prompt: array[int]
    context: array[int]
    """Prompt and generated ids."""


def stored_steps(paceline: Any) -> dict[str, Stored]:
    """All steps, their ids put together from what each one added."""
    query = "select step_id, parent_step_id, carried_tokens, rendered_ids, generated_ids from steps"
    found: dict[str, Stored] = {}
    for row in paceline.sql(f"{query} order by created_at"):
        before = (
            found[row["parent_step_id"]].context[: row["carried_tokens"]] if row["parent_step_id"] else array("I")
        )
        prompt = before + array("I", row["rendered_ids"])
        found[row["step_id"]] = Stored(row["parent_step_id"], prompt, prompt + array("I", row["generated_ids"]))
    return found


def common(one: array[int], other: array[int]) -> int:
    """How many ids both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (first, second) in pairs if first != second), min(len(one), len(other)))


def check(done: Done, steps: dict[str, Stored]) -> None:
    """Hold a step against what the trace says."""
    request, answer, before = done.request, done.answer, done.before
    mine = steps[answer.step_id]
    assert answer.reuse.prompt_tokens == len(mine.prompt)
    assert bool(answer.tool_calls) == request.calls
    if before is None:
        assert (mine.parent, answer.reuse.carried_tokens, answer.reuse.break_reason) == (None, 0, "")
        return
    theirs = steps[before.answer.step_id]
    same = common(theirs.context, mine.prompt)
    assert (answer.reuse.break_reason, answer.reuse.break_message) == (request.reason, request.at)
    assert answer.reuse.dropped_tokens == len(theirs.context) - same
    assert answer.usage.cached_prompt is not None
    if not request.reason:
        assert mine.parent == before.answer.step_id
        assert answer.reuse.carried_tokens == same == len(theirs.context)
        assert answer.usage.cached_prompt >= (same - 1) // BLOCK * BLOCK
        return
    assert answer.usage.cached_prompt >= same // BLOCK * BLOCK
    text = bytes(token for token in mine.prompt[:same] if token < 256)
    assert text.count(END_OF_LINE.encode()) == request.kept_lines
    if request.reason == "system_changed":
        assert answer.reuse.carried_tokens == same
        return
    parent = done.chain[-2][1] if len(done.chain) > 1 else None
    assert mine.parent == (parent.answer.step_id if parent else None)
    whole = steps[parent.answer.step_id].context if parent else array("I")
    same_system = parent is None or parent.request.parts[0] == request.parts[0]
    assert answer.reuse.carried_tokens == (len(whole) if same_system else common(whole, mine.prompt))


async def test_agents_that_send_everything_keep_their_ids(
    emulator: Callable[..., Any], run: Callable[..., Any]
) -> None:
    engine = emulator(*ENGINE)
    await engine.script(*SCRIPT)
    agents = [read_trace(path) for path in sorted((DATA / "agent_traces").glob("trace_*.json"))]
    async with run(engine.url) as paceline:
        replay, free = Replay(paceline.client), asyncio.Semaphore(4)

        async def one(agent: Agent) -> None:
            async with free:
                await replay.run(agent)

        await asyncio.gather(*(one(agent) for agent in agents))
        steps = stored_steps(paceline)
        parents = paceline.sql("select parent_workflow_id as parent from workflows where forked_step_id is null")
    assert len(agents) == 40
    assert len(replay.done) == 643
    for done in replay.done:
        check(done, steps)
    for last, after in replay.left:
        assert after.reuse.carried_tokens == len(steps[last.answer.step_id].context)
        assert (after.reuse.break_reason, after.reuse.dropped_tokens) == ("", 0)
    assert {done.request.reason for done in replay.done} == {"", "compacted", "edited_history", "system_changed"}
    assert len(replay.left) == 2
    assert sum(row["parent"] is not None for row in parents) == 7  # 6 sub-agents and a switch between models


@dataclass
class Graph:
    """Runs the calls of a graph. A call continues the deepest one that it begins with, answer included."""

    client: Any
    ran: list[tuple[ModelCall, t.Answer, Any]] = field(default_factory=list)
    """Calls that have ended, with their answers and workflows."""
    taken: set[str] = field(default_factory=set)
    """Calls that were continued: another continuation is a fork."""
    root: str = ""

    def before(self, call: ModelCall) -> tuple[ModelCall, t.Answer, Any] | None:
        """What the call continues."""
        fits = [one for one in self.ran if call.messages[: len(one[0].said)] == one[0].said]
        return max(fits, key=lambda one: len(one[0].said), default=None)

    async def workflow(self, call: ModelCall) -> Any:
        """The workflow that the call belongs to."""
        found = self.before(call)
        if found is None:
            role, content = call.messages[0]
            system = content if role == "system" else ""
            workflow = await self.client.create_workflow(system=system, parent_workflow_id=self.root)
            self.root = self.root or workflow.workflow_id
            return workflow
        earlier, answer, workflow = found
        if earlier.name in self.taken:
            return await workflow.fork(answer.step_id)
        self.taken.add(earlier.name)
        return workflow

    async def run(self, call: ModelCall, workflow: Any) -> t.Answer:
        """Send the call as a whole conversation."""
        messages = [t.Message(t.Role(role), content) for role, content in call.messages]
        answer: t.Answer = await workflow.step(messages, whole_conversation=True)
        assert answer.text == call.output
        return answer


@pytest.mark.parametrize(
    ("name", "continued", "forked"),
    [
        ("code_review_workflow", 0, 0),
        ("fan_in_dependencies", 1, 0),
        ("multi_agent_research", 0, 0),
        ("parallel_requests", 4, 1),
        ("prefix_sharing_example", 3, 0),
        ("software_architecture_review", 3, 0),
    ],
)
async def test_graphs_of_agents_share_what_they_have_in_common(
    emulator: Callable[..., Any], run: Callable[..., Any], name: str, continued: int, forked: int
) -> None:
    calls = read_graph(DATA / "otel_dags" / f"{name}.json")
    engine = emulator(*ENGINE)
    longest_first = sorted(calls, key=lambda call: -len(call.messages))
    says = [{"contains": [text for _, text in call.messages], "reply": call.output} for call in longest_first]
    await engine.script(*says)
    pairs: list[tuple[t.Answer, t.Answer | None]] = []
    async with run(engine.url) as paceline:
        graph = Graph(paceline.client)
        for wave in waves(calls):
            found = [graph.before(call) for call in wave]
            workflows = [await graph.workflow(call) for call in wave]
            answers = await asyncio.gather(*map(graph.run, wave, workflows))
            graph.ran += zip(wave, answers, workflows, strict=True)
            pairs += [(answer, one[1] if one else None) for answer, one in zip(answers, found, strict=True)]
        steps = stored_steps(paceline)
        forks = paceline.sql("select count(*) as forks from workflows where forked_step_id is not null")
    for answer, before in pairs:
        mine = steps[answer.step_id]
        assert (answer.reuse.break_reason, answer.reuse.break_message, answer.reuse.dropped_tokens) == (
            "",
            None,
            0,
        )
        assert mine.parent == (before.step_id if before else None)
        context = steps[before.step_id].context if before else array("I")
        assert mine.prompt[: len(context)] == context
        assert answer.reuse.carried_tokens == len(context)
        assert (answer.usage.cached_prompt or 0) >= (len(context) - 1) // BLOCK * BLOCK
    assert sum(before is not None for _, before in pairs) == continued
    assert forks == [{"forks": forked}]
