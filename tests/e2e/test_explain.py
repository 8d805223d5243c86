"""`paceline workflow explain`: history, tools and system prompt of a workflow change, and its replica dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from tests.e2e.conftest import Emulator
from tests.e2e.servers import to_toml
from typer.testing import CliRunner

from paceline.cli import workflow as command
from paceline.cli.money import usd
from paceline.routing.placement import ReplicaPhase
from paceline.workflow.remedies import REMEDIES
from paceline_agents import types as t

BLOCK = 32
DRAFTS = 4
MISS_NANOS = 450
"""What a token costs more computed than cached, by the prices below."""
SETTINGS: dict[str, Any] = {
    "models": {"m": {"path": "emulated"}},
    "prices": {"m": {"input": "0.50", "cached_input": "0.05", "output": "2.00", "example": True}},
    "speculation": {"n": {"method": "ngram", "num_speculative_tokens": DRAFTS}},
}
READ, LIST = t.Tool("read", "Read a file."), t.Tool("list", "List files.")
app = typer.Typer()
app.add_typer(command.app, name="workflow")


def user(text: str) -> t.Message:
    """What a client says."""
    return t.Message(t.Role.USER, text)


def system(turn: int) -> t.Message:
    """A system prompt whose second line changes."""
    return t.Message(t.Role.SYSTEM, f"You fix code.\nIt is turn {turn}.\n" + "Be brief. " * 40)


async def live(paceline: Any, engines: list[Emulator]) -> str:
    """Seven turns; returns the workflow."""
    workflow = await paceline.client.create_workflow(system=system(1).content, tools=[READ, LIST])
    said = [system(1), user("one " * 50)]

    async def whole(*new: t.Message, tools: list[t.Tool]) -> None:
        said.extend(new)
        answer = await workflow.step(list(said), whole_conversation=True, tools=tools)
        said.append(t.Message(t.Role.ASSISTANT, answer.text))

    await whole(tools=[READ, LIST])
    await whole(user("two " * 50), tools=[READ, LIST])
    said[3] = user("edited " * 50)
    await whole(user("three"), tools=[READ, LIST])
    await whole(user("four"), tools=[LIST, READ])
    said[0] = system(2)
    await whole(user("five"), tools=[LIST, READ])
    await whole(user("six"), tools=[LIST, READ])
    (bound,) = paceline.sql("select replica from workflows")
    replicas = paceline.runtime.replicas.all()
    lost = next(replica for replica in replicas if replica.name == bound["replica"])
    engines[replicas.index(lost)].kill()
    lost.suspect()
    async with asyncio.timeout(20):
        while lost.load.phase is ReplicaPhase.READY:
            await asyncio.sleep(0.02)
    await whole(user("seven"), tools=[LIST, READ])
    return str(workflow.workflow_id)


async def test_each_turn_is_explained(
    emulator: Callable[..., Emulator], run: Callable[..., Any], tmp_path: Path, ledger: Path
) -> None:
    engines = [emulator(f"--block-size={BLOCK}", "--reply-tokens=40") for _ in range(2)]
    async with run(*(engine.url for engine in engines)) as paceline:
        workflow_id = await live(paceline, engines)
        rows = paceline.sql(
            "select * from steps join attempts on attempt_id = last_attempt_id order by number, created_at"
        )
    config = tmp_path / "paceline.toml"
    config.write_text(to_toml({**SETTINGS, "ledger": {"url": f"sqlite:///{ledger}"}}))

    def explain(*options: str) -> str:
        words = ["workflow", "explain", workflow_id, *options, "--config", str(config)]
        result = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
        assert result.exit_code == 0, result.output
        return result.stdout

    found = json.loads(await asyncio.to_thread(explain, "--json"))
    turns = found["turns"]
    reasons = [None, None, "edited_history", "tools_changed", "system_changed", None, "moved"]
    assert [turn["break_reason"] for turn in turns] == reasons
    for turn, row in zip(turns, rows, strict=True):
        assert turn["step_id"] == row["step_id"]
        assert turn["cached_tokens"] == row["cached_prompt_tokens"]
        assert turn["carried_tokens"] + turn["rendered_tokens"] == turn["prompt_tokens"]
        assert turn["rounding_tokens"] < BLOCK + DRAFTS + 1
        assert turn["again_tokens"] + turn["rounding_tokens"] <= row["uncached_prompt_tokens"]
        assert [part["list_nanos"] for part in turn["again"]] == [
            part["tokens"] * MISS_NANOS for part in turn["again"]
        ]
        assert all(0 < part["seconds"] <= row["first_token_us"] / 1e6 for part in turn["again"])
        assert all(0 < part["infrastructure_nanos"] <= row["infrastructure_nanos"] for part in turn["again"])
    assert [turn["again_tokens"] > 0 for turn in turns] == [reason is not None for reason in reasons]
    gone = turns[6]
    assert gone["again_tokens"] + gone["rounding_tokens"] == gone["carried_tokens"] - gone["cached_tokens"]
    causes = {cause["reason"]: cause for cause in found["causes"]}
    assert causes["tools_changed"]["detail"] == "another order"
    assert causes["system_changed"]["detail"] == "line 2 of the system prompt"
    assert causes["edited_history"]["detail"] == "from message 3 on"
    assert causes["moved"]["detail"] in {"e0 to e1", "e1 to e0"}
    sizes = [cause["tokens"] for cause in found["causes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert (found["again_tokens"], found["unknown_turns"]) == (sum(sizes), 0)

    shown = await asyncio.to_thread(explain)
    assert "Found by the conversation" not in shown
    assert f"{found['again_tokens']} of {found['prompt_tokens']} prompt tokens were computed again" in shown
    for reason, cause in causes.items():
        assert REMEDIES[reason] == cause["remedy"]
        assert f"{reason}: {cause['remedy']}\n" in shown
    assert "turn 5: system_changed, line 2 of the system prompt: at most" in shown
    sizes_of = ("prompt", "carried", "cached", "rendered", "again", "rounding")
    cells = [line.split() for line in shown.splitlines()]
    for turn in turns:
        why = [turn["break_reason"]] if turn["break_reason"] else []
        assert [str(turn["number"]), *(str(turn[f"{name}_tokens"]) for name in sizes_of), *why] in cells
    (lost,) = gone["again"]
    amounts = (usd(lost[name], digits=6) for name in ("list_nanos", "infrastructure_nanos"))
    assert "{:.3f} s, list cost {}, infra cost {}\n".format(lost["seconds"], *amounts) in shown
    assert "EXAMPLE" in shown
    assert "Be brief" not in shown
