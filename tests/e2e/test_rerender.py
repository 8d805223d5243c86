"""A chat template that cannot be continued: every step is rendered in full, and says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.transcript.chat import load
from paceline.workflow.model import Message, Role

NUMBERED = (
    "{% for message in messages %}<|im_start|>{{ messages|length - loop.index }} {{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The number of each message changes with every one that follows."""


async def test_a_template_that_looks_ahead_is_rendered_in_full_each_step(
    emulator: Callable[..., Any], run: Callable[..., Any], tmp_path: Path
) -> None:
    template = tmp_path / "numbered.jinja"
    template.write_text(NUMBERED)
    engine = emulator("--time-scale=0")
    await engine.script({"contains": "two", "reply": "second"}, {"contains": "one", "reply": "first"})
    async with run(engine.url, models={"m": {"path": "emulated", "template": str(template)}}) as paceline:
        workflow = await paceline.client.create_workflow(system="sys")
        first, second = await workflow.step("one"), await workflow.step("two")
    chat = await load("emulated", template)
    whole = await chat.render_first(
        "sys", (), [Message(Role.USER, "one"), Message(Role.ASSISTANT, "first"), Message(Role.USER, "two")]
    )
    assert (first.text, second.text) == ("first", "second")
    assert first.reuse.break_reason == ""
    assert second.reuse.break_reason == "template_rerender"
    assert second.reuse.prompt_tokens == len(whole)
    assert second.reuse.carried_tokens < 5  # what both renderings happen to begin with
