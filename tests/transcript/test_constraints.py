"""What a backend is told so that an answer has a wanted form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.transcript.conversations import READ, RUN, TOOLS

from paceline.errors import InvalidArgument
from paceline.transcript.chat import ChatModel, load
from paceline.transcript.constraints import enforce_calls, enforce_json
from paceline.transcript.families import plain, qwen2_5, qwen3
from paceline.workflow.model import Tool

FolderOf = Callable[[str], Path]
SCHEMA = '{"type": "object", "properties": {"path": {"type": "string"}}}'


def told(outputs: dict[str, Any]) -> dict[str, Any]:
    """The format of a structural tag."""
    (text,) = outputs.values()
    found: dict[str, Any] = json.loads(text)["format"]
    return found


def test_one_call_is_the_templates_words_around_a_schema(emulated: ChatModel) -> None:
    assert qwen2_5.FAMILY.call_form
    asked = enforce_calls(qwen2_5.FAMILY.call_form, [READ], qwen2_5.FAMILY, several=False, reasoning_open=False)
    assert told(asked) == {
        "type": "tag",
        "begin": '<tool_call>\n{"name": "read_file", "arguments": ',
        "content": {"type": "json_schema", "json_schema": json.loads(READ.parameters_json)},
        "end": "}\n</tool_call>",
    }


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ("", {"type": "object"}),
        ('{"properties": {}}', {"type": "object", "properties": {}}),
        ('{"$ref": "#/$defs/a", "$defs": {"a": {}}}', {"$ref": "#/$defs/a", "$defs": {"a": {}}}),
        ('{"anyOf": [{"type": "object"}]}', {"anyOf": [{"type": "object"}]}),
    ],
)
def test_arguments_are_always_an_object(schema: str, sent: dict[str, Any]) -> None:
    assert qwen2_5.FAMILY.call_form
    tool = Tool("t", parameters_json=schema)
    asked = enforce_calls(qwen2_5.FAMILY.call_form, [tool], qwen2_5.FAMILY, several=False, reasoning_open=False)
    assert told(asked)["content"]["json_schema"] == sent


def test_json_without_reasoning_is_left_to_the_backend() -> None:
    assert enforce_json(SCHEMA, qwen2_5.FAMILY, reasoning_open=False) == {"json": SCHEMA}
    assert enforce_json("", plain.FAMILY, reasoning_open=False) == {"json_object": True}


def test_a_form_begins_behind_the_reasoning() -> None:
    opened = told(enforce_json(SCHEMA, qwen3.FAMILY, reasoning_open=True))
    assert [element["type"] for element in opened["elements"]] == ["tag", "const_string", "json_schema"]
    assert opened["elements"][0]["begin"] == ""
    maybe = told(enforce_json("", qwen3.FAMILY, reasoning_open=False))
    assert maybe["elements"][0] == {"type": "json_schema", "json_schema": {"type": "object"}}
    assert maybe["elements"][1]["elements"][0]["begin"] == "<think>"


async def test_families_without_a_known_form_refuse(gpt_oss_folder: Path) -> None:
    model = await load(str(gpt_oss_folder))
    with pytest.raises(InvalidArgument, match=r"tool_choice: .* gpt-oss cannot be enforced; use AUTO or NONE"):
        model.enforce_calls(TOOLS, several=True)
    with pytest.raises(InvalidArgument, match=r"response_format: .* gpt-oss"):
        model.enforce_json(SCHEMA)


async def test_several_calls_only_where_the_template_shows_several(folder_of: FolderOf) -> None:
    qwen = await load(str(folder_of("qwen2_5")))
    assert told(qwen.enforce_calls([RUN], several=True))["type"] == "tags_with_separator"
    assert told(qwen.enforce_calls([RUN], several=False))["type"] == "tag"
    llama = await load(str(folder_of("llama3_1")))
    assert told(llama.enforce_calls([RUN], several=True))["type"] == "tag"
    assert told(llama.enforce_calls(TOOLS, several=True))["type"] == "or"
