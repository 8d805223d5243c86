"""What a conversation may differ in and still be found, and what makes it another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.transcript.conversations import assistant, result, user

from paceline.transcript.chainhash import ChainHash, chain_hash
from paceline.transcript.fingerprint import keys_of
from paceline.workflow.model import Message, ToolCall

ONE, TWO = (
    ToolCall("c1", "read_file", '{"path": "a", "lines": [1, 2]}'),
    ToolCall("c2", "read_file", '{"path": "b"}'),
)
ASKED = [user("Read both.")]
SAID = assistant("Reading.", ONE, TWO, reasoning="Both.")
RESULTS = [result("x = 1\n", "c1"), result("y = 2\n", "c2")]
DONE = assistant("Done.", reasoning="That was it.")
WHOLE = [*ASKED, SAID, *RESULTS, DONE, user("Thanks.")]


def hashed(messages: list[Message], caller: str = "key agent", model: str = "m", system: str = "") -> ChainHash:
    return chain_hash(caller, model, system, messages)


def test_a_step_leaves_the_hash_by_which_its_continuation_finds_it() -> None:
    first = hashed(ASKED)
    answered = first.answered(keys_of([*ASKED, SAID]).keys[-1])
    second = hashed([*ASKED, SAID, *RESULTS])
    third = hashed(WHOLE)
    assert first.answers == ()
    assert second.answers == (answered,)
    assert third.answers == (second.answered(keys_of([DONE]).keys[-1]), answered)
    assert first.first == second.first == third.first == first.whole


@pytest.mark.parametrize(
    "sent",
    [
        [*ASKED, replace(SAID, reasoning=""), *RESULTS, replace(DONE, reasoning=""), WHOLE[-1]],
        [*ASKED, replace(SAID, reasoning="Otherwise."), *RESULTS, DONE, WHOLE[-1]],
        [*ASKED, replace(SAID, content=" Reading.\n"), *RESULTS, DONE, WHOLE[-1]],
        [
            *ASKED,
            replace(SAID, tool_calls=(replace(ONE, arguments_json='{"lines":[1.0,2],"path":"a"}'), TWO)),
            *RESULTS,
            DONE,
            WHOLE[-1],
        ],
        [*ASKED, SAID, *reversed(RESULTS), DONE, WHOLE[-1]],
        [
            *ASKED,
            replace(SAID, tool_calls=(replace(ONE, tool_call_id=""), replace(TWO, tool_call_id=""))),
            *(replace(one, tool_call_id="", tool_name="") for one in RESULTS),
            DONE,
            WHOLE[-1],
        ],
    ],
    ids=["no reasoning", "other reasoning", "white space", "layout", "order of results", "no ids"],
)
def test_what_does_not_break_a_match_does_not_change_the_hash(sent: list[Message]) -> None:
    assert hashed(sent) == hashed(WHOLE)


@pytest.mark.parametrize("at", range(len(WHOLE)))
def test_any_other_change_changes_the_hashes_from_there_on(at: int) -> None:
    sent = [*WHOLE[:at], replace(WHOLE[at], content=WHOLE[at].content + " ."), *WHOLE[at + 1 :]]
    before = sum(message in (SAID, DONE) for message in WHOLE[:at])
    other, own = hashed(sent), hashed(WHOLE)
    assert other.whole != own.whole
    assert (other.first == own.first) == (at > 0)
    same = len(set(other.answers) & set(own.answers))
    assert (same, other.answers[len(own.answers) - same :]) == (before, own.answers[len(own.answers) - same :])


@pytest.mark.parametrize(
    "scope",
    [{"caller": "key other"}, {"model": "n"}, {"system": "Be brief."}, {"caller": "key agentm", "model": ""}],
    ids=["caller", "model", "system", "the border between them"],
)
def test_every_hash_belongs_to_one_caller_model_and_system_prompt(scope: dict[str, str]) -> None:
    other, own = hashed(WHOLE, **scope), hashed(WHOLE)
    assert {other.first, *other.answers, other.whole}.isdisjoint({own.first, *own.answers, own.whole})
