"""Long answers in which something comes again and again: reading takes time in proportion to their length."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from tests.fuzz.answers import ALL, JUNK, MARKERS, READERS, WORD, Case, visible

LONG = 100_000


@dataclass(frozen=True, slots=True)
class Long:
    """An answer in which something comes again and again."""

    reader: str
    begin: tuple[str, ...]
    again: tuple[str, ...]
    end: tuple[str, ...]
    stop: tuple[str, ...]


_XML = "<tool_call><function=write>"
INSIDE = (
    *("", "<think>", "<tool_call>", "<tool_call>{", '<tool_call>{"name": "', "{", '{"name"', '{"name": "'),
    *(_XML, f"{_XML}<parameter=path>", f"{_XML}<parameter=path>x</parameter>"),
    *("<|channel|>", "<|channel|>analysis<|message|>", "<|channel|>x to=functions.write<|message|>"),
)
"""Where something may come again and again."""
some = st.lists(st.sampled_from([*MARKERS, *JUNK, WORD, "a"]), max_size=3).map(tuple)
longs = st.builds(
    Long,
    reader=st.sampled_from([reader.name for reader in READERS]),
    begin=some | st.sampled_from(INSIDE).map(lambda text: (text,)),
    again=some.filter(any),
    end=some,
    stop=st.just(()) | st.just(("z" * 50,)) | st.just((" " * 200 + "x",)),
)


def check_long(case: Long) -> None:
    """Read it, id by id; only the time counts, which is watched."""
    again = "".join(case.again)
    text = "".join(case.begin) + again * (LONG // len(again)) + "".join(case.end)
    reader = next(reader for reader in READERS if reader.name == case.reader)
    parser = reader.parser(Case((), True, (), (), case.stop, ALL))
    parser.feed(text.encode())
    answer = parser.finish()
    assert answer.message.content or answer.message.reasoning or answer.message.tool_calls or not visible(text)
