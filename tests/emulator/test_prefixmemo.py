"""What the emulator remembers of long prompts never changes an answer."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.emulator.kvcache import BlockCache, block_hashes, root_hash
from paceline.emulator.prefixmemo import PrefixMemo
from paceline.emulator.protocol import PromptParser, Refused

PROMPTS = st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=12)


@given(prompts=PROMPTS)
def test_parsing_with_memory_is_plain_parsing(prompts: list[list[int]]) -> None:
    parser, context = PromptParser(remembered=3), list[int]()
    for more in prompts:
        context = context + more if sum(more) % 3 else more
        parsed = parser.parse(orjson.dumps(context))
        assert memoryview(parsed.data).cast("I").tolist() == context
        assert parsed.largest == max(context, default=-1)


@given(prompts=PROMPTS)
def test_hashing_with_memory_is_plain_hashing(prompts: list[list[int]]) -> None:
    cache, root, context = BlockCache(8, 2), root_hash(""), b""
    for more in prompts:
        new = b"".join(token.to_bytes(4, "little") for token in more)
        context = context + new if len(more) % 3 else new
        whole = context[: len(context) // 8 * 8]
        assert cache._chain(root, whole) == block_hashes(whole, 2, root)


def test_a_number_is_not_taken_for_the_start_of_a_longer_one() -> None:
    parser = PromptParser()
    parser.parse(b"[1,2]")
    assert memoryview(parser.parse(b"[1,23]").data).cast("I").tolist() == [1, 23]


@pytest.mark.parametrize(
    "text", [b"[1,-2]", b"[1,2.5]", b'["a"]', b"[[1]]", b'{"a":1}', b"[1,2", b"7", b"[4294967296]"]
)
def test_anything_but_ids_is_refused(text: bytes) -> None:
    with pytest.raises(Refused) as refused:
        PromptParser().parse(text)
    assert refused.value.body["error"]["param"] == "body.prompt"


def test_the_least_recently_used_is_forgotten() -> None:
    memo: PrefixMemo[int] = PrefixMemo(2)
    memo.put(b"a", 1)
    memo.put(b"b", 2)
    assert memo.longest(b"ax") == (b"a", 1)
    memo.put(b"c", 3)
    assert memo.longest(b"bx") is None
    memo.put(b"cd", 4, instead=b"c")
    assert memo.longest(b"cx") is None
    assert memo.longest(b"cde") == (b"cd", 4)
