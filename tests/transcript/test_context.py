"""Contexts as serialised ids."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import StepNotFinished
from paceline.transcript.context import Context, context_of, pack, unpack
from paceline.workflow.model import Segments, Step, StepState

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=30)


def step(step_id: str, segments: Segments | None) -> Step:
    """A step of which only the segments matter."""
    return Step(step_id, "workflow", "tenant", "request", "hash", StepState.FINISHED, (), segments=segments)


def segments(carried: int, rendered: list[int], generated: list[int]) -> Segments:
    """What a step added."""
    return Segments(carried, pack(rendered), pack(generated), "tokenizer", "template")


@given(st.lists(IDS, max_size=5))
def test_extending_appends(parts: list[list[int]]) -> None:
    context, ids = Context.empty(), list[int]()
    for part in parts:
        context, ids = context.extend(part), ids + part
    assert json.loads(context.prompt_json()) == ids
    assert context.tokens == len(ids)
    assert context == Context.empty().extend(ids)


@given(IDS, IDS, IDS)
def test_the_common_beginning_is_one_of_whole_ids(same: list[int], one: list[int], other: list[int]) -> None:
    first, second = Context.empty().extend(same + one), Context.empty().extend(same + other)
    length = next(
        (at for at, pair in enumerate(zip(same + one, same + other, strict=False)) if pair[0] != pair[1]),
        min(len(same + one), len(same + other)),
    )
    assert first.common(second) == second.common(first) == Context.empty().extend((same + one)[:length])


def test_ids_that_begin_alike_are_not_the_same() -> None:
    first, second = Context.empty().extend([1, 12]), Context.empty().extend([1, 123, 4])
    assert first.common(second) == Context(b"1", 1)


@given(IDS)
def test_packing_is_little_endian_and_lossless(ids: list[int]) -> None:
    assert pack(ids) == b"".join(token_id.to_bytes(4, "little") for token_id in ids)
    assert unpack(pack(ids)).tolist() == ids


def test_half_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack(b"\x00\x00\x00")


def test_a_chain_folds_to_the_ids_of_its_last_step() -> None:
    first, second = segments(0, [1, 2], [3]), segments(3, [4], [5, 6])
    fork = segments(4, [7], [8])
    assert context_of([step("a", first), step("b", second)]).body == b"1,2,3,4,5,6"
    assert context_of([step("a", first), step("b", second), step("c", fork)]).body == b"1,2,3,4,7,8"
    assert context_of([step("a", first), step("b", segments(0, [9], []))]).body == b"9"
    assert context_of([]) == Context.empty()


def test_broken_chains_are_refused() -> None:
    with pytest.raises(StepNotFinished, match="step b"):
        context_of([step("a", segments(0, [1], [2])), step("b", None)])
    with pytest.raises(ValueError, match="carries 3 of 2"):
        context_of([step("a", segments(0, [1], [2])), step("b", segments(3, [1], [2]))])
