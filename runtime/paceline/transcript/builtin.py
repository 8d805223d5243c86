"""The tokenizer and the template of the built-in model `emulated`, which needs no files.

One token per UTF-8 byte plus a few markers, so that any text survives the round trip unchanged.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAME = "emulated"
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

# ChatML with the Hermes tool format. Results of parallel calls share one user turn.
TEMPLATE = """\
{%- macro turn(role, content) %}{{ '<|im_start|>' ~ role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}{% endmacro %}
{%- set leading = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
    {%- set signatures %}{% for tool in tools %}{{ '\\n' ~ tool | tojson }}{% endfor %}{% endset %}
    {{- turn('system', (leading ~ '\\n\\n' if leading else '') ~ 'Call a tool by writing\\n<tool_call>\\n'
        ~ '{"name": NAME, "arguments": OBJECT}\\n</tool_call>\\nTools:' ~ signatures) }}
{%- elif leading %}
    {{- turn('system', leading) }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
    {%- elif message.role == 'assistant' %}
        {%- set calls %}{% for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first else '' }}{{- '<tool_call>\\n{"name": ' }}
            {{- call.function.name | tojson ~ ', "arguments": ' ~ call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}{% endset %}
        {%- set thought %}{% if message.reasoning_content %}
            {{- '<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n\\n' }}
        {%- endif %}{% endset %}
        {{- turn('assistant', thought ~ message.content ~ calls) }}
    {%- elif message.role == 'user' or not loop.first %}
        {{- turn(message.role, message.content) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def builtin_tokenizer() -> Tokenizer:
    """Return a new byte-level tokenizer: ids 0 to 255 are the byte values, then come special and marker tokens."""
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKER_TOKENS])
    return tokenizer


def byte_symbols() -> list[str]:
    """Return each byte's symbol in GPT-2's alphabet: printable bytes stand for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
