"""Tokenizing and detokenizing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ModelError
from paceline.transcript.chat import ChatModel
from paceline.transcript.tokenizer import INLINE_CHARACTERS, MAX_HELD, load_tokenizer

EMULATED = load_tokenizer("emulated")


@given(st.lists(st.one_of(st.integers(0, 262), st.integers(128, 255)), max_size=40))
def test_streamed_pieces_join_to_the_decoded_text(ids: list[int]) -> None:
    stream = EMULATED.stream()
    pieces = [stream.step(token_id) for token_id in ids]
    assert "".join(pieces) + stream.flush() == EMULATED.decode(ids)


def test_no_piece_ends_inside_a_character(model: ChatModel) -> None:
    text = "naïve 漢字 🚲🏔\n"
    stream = model.tokenizer.stream()
    pieces = [stream.step(token_id) for token_id in model.tokenizer.encode_now(text)]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert stream.flush() == ""


def test_an_unfinished_character_is_flushed_once() -> None:
    stream = EMULATED.stream()
    assert [stream.step(token_id) for token_id in "a漢".encode()[:-1]] == ["a", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_ids_that_never_become_a_character_are_not_collected_for_ever() -> None:
    stream = EMULATED.stream()
    text = "".join(stream.step(0x80) for _ in range(10 * MAX_HELD)) + stream.step(ord("a"))
    assert text == "\ufffd" * (10 * MAX_HELD) + "a"


async def test_a_long_text_gets_the_same_ids_as_a_short_one(model: ChatModel) -> None:
    text = "def ride(self):\n    return '漢字' + 'x'\n\n\n" * (INLINE_CHARACTERS // 10)
    assert await model.tokenizer.encode(text) == model.tokenizer.encode_now(text)


async def test_long_texts_leave_the_loop_free() -> None:
    """The loop takes other work between the start and the end of a long tokenization."""
    done: list[str] = []

    async def tokenize() -> None:
        await EMULATED.encode("x" * (INLINE_CHARACTERS + 1))
        done.append("long")

    async def other() -> None:
        done.append("other")

    await asyncio.gather(tokenize(), other())
    assert done == ["other", "long"]


async def test_text_of_special_tokens_becomes_them(model: ChatModel) -> None:
    ids = await model.tokenizer.encode("a<|im_end|>b")
    assert model.tokenizer.id_of("<|im_end|>") in ids
    assert model.tokenizer.id_of("<|nothing|>") is None


def test_the_hash_is_the_hash_of_the_file(qwen_folder: Path, tmp_path: Path) -> None:
    content = (qwen_folder / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(content)
    assert load_tokenizer(str(tmp_path)).hash == load_tokenizer(str(qwen_folder)).hash
    (tmp_path / "tokenizer.json").write_bytes(content + b"\n")
    assert load_tokenizer(str(tmp_path)).hash != load_tokenizer(str(qwen_folder)).hash


def test_a_tokenizer_that_is_not_there_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such folder.*models fetch"):
        load_tokenizer(str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"needs a tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        load_tokenizer(str(tmp_path))
