"""Runs in an engine venv's Python, without Paceline: how vLLM renders conversations and reads answers.

Reads one JSON object from stdin, writes one to stdout.
"""

import json
import sys
from functools import lru_cache
from typing import Any


@lru_cache
def tokenizer_of(folder: str) -> Any:
    """The tokenizer as vLLM loads it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def by_template(folder: str, messages: list[Any], tools: list[Any], arguments: dict[str, Any]) -> list[int]:
    """vLLM's first prompt of a model with a chat template."""
    from vllm.renderers.hf import safe_apply_chat_template

    tokenizer = tokenizer_of(folder)
    asked = {"tools": tools or None, "chat_template": tokenizer.chat_template, **arguments}
    config: Any = None  # only looked at where no template is given
    return list(safe_apply_chat_template(config, tokenizer, messages, add_generation_prompt=True, **asked))


def by_harmony(messages: list[Any], tools: list[Any]) -> list[int]:
    """vLLM's first prompt of gpt-oss."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.entrypoints.openai.parser import harmony_utils

    instructions, rest = harmony_utils.extract_instructions_from_messages(messages)
    described: Any = [ChatCompletionToolsParam.model_validate(tool) for tool in tools] or None
    preamble = harmony_utils.build_harmony_preamble(instructions=instructions, tools=described)
    shown = harmony_utils.parse_chat_inputs_to_harmony_messages(rest)
    return list(harmony_utils.render_for_completion([*preamble, *shown]))


def parsed(folder: str, parser: str, text: str, tools: list[Any]) -> dict[str, Any]:
    """What vLLM's tool parser finds in a whole answer."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tokenizer = tokenizer_of(folder)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=tools)
    made = ToolParserManager.get_tool_parser(parser)(tokenizer, request.tools)
    found = made.extract_tool_calls(text, request)
    calls = [[call.function.name, json.loads(call.function.arguments)] for call in found.tool_calls]
    return {"calls": calls, "content": found.content}


def reasoned(folder: str, parser: str, text: str, tools: list[Any]) -> dict[str, Any]:
    """What vLLM's tool and reasoning parsers find together in a whole answer."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    tokenizer = tokenizer_of(folder)
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=tools)
    made = ParserManager.get_parser(
        tool_parser_name=parser, reasoning_parser_name="qwen3", enable_auto_tools=True, tokenizer=tokenizer
    )
    reasoning, content, calls = made(tokenizer, request.tools).parse(text, request, enable_auto_tools=True)
    found = [[call.name, json.loads(call.arguments)] for call in calls or []]
    return {"reasoning": reasoning, "content": content, "calls": found}


def main() -> None:
    """Answer every question."""
    asked = json.load(sys.stdin)
    answers = {
        "template": [by_template(**question) for question in asked["template"]],
        "harmony": [by_harmony(**question) for question in asked["harmony"]],
        "parsed": [parsed(**question) for question in asked["parsed"]],
        "reasoned": [reasoned(**question) for question in asked["reasoned"]],
    }
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
