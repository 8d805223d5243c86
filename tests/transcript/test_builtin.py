"""The built-in tokenizer loses nothing."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.transcript.builtin import MARKER_TOKENS, SPECIAL_TOKENS, builtin_tokenizer

TOKENIZER = builtin_tokenizer()


@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_ids_are_the_bytes() -> None:
    text = "".join(map(chr, range(256))) + "héllo 🚲"
    assert bytes(TOKENIZER.encode(text, add_special_tokens=False).ids) == text.encode()


def test_markers_are_single_tokens() -> None:
    assert TOKENIZER.get_vocab_size() == 263
    text = "a" + "".join(SPECIAL_TOKENS + MARKER_TOKENS) + "b"
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert ids[1:-1] == list(range(256, 263))
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "a" + "".join(MARKER_TOKENS) + "b"
