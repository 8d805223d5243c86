"""The demo without a model: the scripted replies repair every demo program, some of them not at once."""

from __future__ import annotations

from paceline.emulator.replies import NOTICE, read_script
from paceline_agents import Answer
from paceline_agents.cli import DEMO_SUITE
from paceline_agents.repair.loop import repair
from paceline_agents.repair.subject import SuiteSubject
from paceline_agents.repair.suite import load_suite
from paceline_agents.types import SamplingOptions

RULES = read_script(DEMO_SUITE.with_name("demo_replies.json"))


class Emulated:
    """Answers by the first rule that fits the conversation, as the emulated engine does."""

    def __init__(self) -> None:
        self._conversation = ""

    async def __call__(self, prompt: str, sampling: SamplingOptions, *, fresh: bool) -> Answer:
        self._conversation = prompt if fresh else self._conversation + prompt
        reply = next(rule.reply for rule in RULES if rule.fits(lambda: self._conversation))
        assert reply is not None
        self._conversation += reply
        return Answer("step-0001", reply, "stop")


async def test_every_demo_program_is_repaired_and_some_need_several_turns() -> None:
    turns = {}
    for program in load_suite(DEMO_SUITE):
        result = await repair(SuiteSubject(program), Emulated(), turns=8)
        assert result.verdict.passed, program.name
        turns[program.name] = len(result.answers)

    assert min(turns.values()) == 1
    assert turns["format_size"] == 2
    assert turns["merge_intervals"] >= 2


def test_every_reply_says_that_no_model_ran() -> None:
    assert all(rule.reply and rule.reply.startswith(NOTICE) for rule in RULES)
