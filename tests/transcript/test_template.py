"""The rendering environment."""

from __future__ import annotations

from datetime import datetime

import pytest
from tests.transcript.conversations import assistant, result, user

from paceline.errors import InvalidMessage, InvalidTool, ModelError
from paceline.transcript.template import ChatTemplate
from paceline.workflow.model import Message, Tool, ToolCall


def render(source: str, *messages: Message, tools: tuple[Tool, ...] = ()) -> str:
    """One rendering, without generation prompt."""
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools, False)


def test_json_is_written_as_in_training() -> None:
    tool = Tool("x", "<é> & 'ü'", '{"b": 1, "a": {}}')
    expected = (
        '{"type": "function", "function": {"name": "x", "description": "<é> & \'ü\'", '
        '"parameters": {"b": 1, "a": {}}}}'
    )
    assert render("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", tools=(tool,)) == expected
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_blocks_loop_controls_and_globals() -> None:
    source = """\
{% for message in messages %}
    {% if loop.index > 1 %}
        {% break %}
    {% endif %}
{% generation %}{{ bos_token ~ message.content }}{% endgeneration %}
{% endfor %}
{{ strftime_now('%Y') }}"""
    assert render(source, user("a"), user("b")) == f"<s>a{datetime.now().year}"


def test_arguments_are_given_as_an_object_where_they_are_one() -> None:
    source = "{% for call in messages[0].tool_calls %}{{ call.function.arguments is mapping }} {% endfor %}"
    calls = [ToolCall("1", "x", text) for text in ('{"a": 1}', "", "[1]", "{broken", "[" * 100_000)]
    assert render(source, assistant("", *calls)).split() == ["True", "True", "False", "False", "False"]


def test_messages_carry_what_templates_look_for() -> None:
    source = "{{ messages | tojson }}"
    assert render(source, assistant("a", reasoning="r")) == (
        '[{"role": "assistant", "content": "a", "reasoning_content": "r"}]'
    )
    assert render(source, result("a")) == (
        '[{"role": "tool", "content": "a", "tool_call_id": "call_1", "name": "read_file"}]'
    )
    assert render("{{ tools is none }}") == "True"


@pytest.mark.parametrize("source", ["{{ raise_exception('no') }}", "{{ nothing.at.all }}", "{{ 'a' + 1 }}"])
def test_a_refusing_template_is_the_messages_fault(source: str) -> None:
    with pytest.raises(InvalidMessage, match="chat template refuses them"):
        render(source)


def test_half_a_surrogate_pair_is_refused() -> None:
    call = ToolCall("1", "x", '{"a": "\\ud83d"}')
    with pytest.raises(InvalidMessage, match="surrogates"):
        render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", assistant("", call))


def test_a_tool_that_is_not_json_is_named() -> None:
    with pytest.raises(InvalidTool, match=r"tools\[x\]\.parameters_json: not JSON"):
        render("", tools=(Tool("x", parameters_json="{"),))


def test_templates_cannot_reach_out_or_change_their_input() -> None:
    with pytest.raises(InvalidMessage):
        render("{{ messages.append(1) }}")
    with pytest.raises(InvalidMessage):
        render("{{ ''.__class__.__mro__ }}")


def test_a_template_that_does_not_parse_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate("{% if %}")


def test_the_hash_binds_source_and_special_tokens() -> None:
    hashes = {ChatTemplate("a").hash, ChatTemplate("b").hash, ChatTemplate("a", {"bos_token": "x"}).hash}
    assert len(hashes) == 3
    assert ChatTemplate("a").hash == ChatTemplate("a").hash
