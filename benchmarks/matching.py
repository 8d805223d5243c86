"""What it costs to find where a conversation goes on that a client sends again in full.

Conversations of an agent: a tool call with program text in its arguments, its result, and so on; sent again as a
client in another language writes it, with other layout and order of the arguments and without the reasoning.
Nothing is tokenized and nothing is read from the ledger; the hashes of what is stored were kept when each step
ended.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from itertools import cycle, islice

from benchmarks._common import Report, median, percentile, source_text

from paceline.transcript.fingerprint import Trail, trail_of
from paceline.transcript.matching import match
from paceline.workflow.model import Message, Role, Step, StepState, ToolCall

TURN_BYTES = 4000
"""New text of one turn: half in the arguments of a call, half in its result."""
NEW = Message(Role.USER, "Go on.")


def steps_of(size: int) -> list[Step]:
    """A stored conversation of about `size` bytes."""
    text = "".join(islice(cycle([source_text()]), 1 + size // len(source_text())))
    steps: list[Step] = []
    for number, start in enumerate(range(0, size, TURN_BYTES)):
        half, end = start + TURN_BYTES // 2, start + TURN_BYTES
        said = Message(Role.TOOL, text[start:half], tool_call_id=f"call_{number - 1}", tool_name="run")
        call = ToolCall(f"call_{number}", "write", json.dumps({"path": f"f{number}.py", "text": text[half:end]}))
        answer = Message(Role.ASSISTANT, "I write it.", "It has to be so.", (call,))
        first = Message(Role.USER, text[start:half])
        steps.append(
            Step(
                step_id=f"step-{number}",
                workflow_id="workflow",
                tenant="tenant",
                request_id=f"request-{number}",
                request_hash="",
                state=StepState.FINISHED,
                input=(said if number else first,),
                output=answer,
            )
        )
    return steps


def again(steps: list[Step]) -> list[Message]:
    """The conversation as a client sends it, and one new message."""
    messages: list[Message] = []
    for step in steps:
        assert step.output
        calls = tuple(
            replace(call, arguments_json=json.dumps(json.loads(call.arguments_json), sort_keys=True, indent=1))
            for call in step.output.tool_calls
        )
        messages += [*step.input, replace(step.output, reasoning="", tool_calls=calls)]
    return [*messages, NEW]


def measure(conversation: list[Message], trail: Trail, repeats: int) -> list[float]:
    """Milliseconds of each match."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        found = match(conversation, trail, "")
        times.append((time.perf_counter() - started) * 1000)
        assert found.break_reason is None, found
    return times


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    report, rows = Report("matching"), []
    for size in (40_000, 400_000, 4_000_000):
        steps = steps_of(size)
        conversation, trail = again(steps), trail_of(steps)
        times = measure(conversation, trail, repeats)
        rows.append(
            {
                "kilobytes": size // 1000,
                "messages": len(conversation),
                "match p50 ms": median(times),
                "p95 ms": percentile(times, 95),
                "megabytes/s": size / 1e6 / (median(times) / 1000),
            }
        )
    report.table("rows", "Match of a conversation that is sent again", rows)
    report.write()


if __name__ == "__main__":
    main()
