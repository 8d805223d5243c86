"""The block cache: hits, sharing, eviction order and books that always add up."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.emulator.kvcache import BlockCache, CachedSequence, block_hashes, root_hash

BLOCK = 4


def ids(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


def run(cache: BlockCache, prompt: bytes, output: bytes = b"", salt: str = "") -> int:
    """Run a sequence to its end and return its hit."""
    sequence = cache.start(prompt, salt)
    assert sequence is not None
    cache.compute(sequence, sequence.tokens)
    for at in range(0, len(output), 4):
        assert cache.append(sequence, output[at : at + 4])
    cache.release(sequence)
    cache.check([])
    return sequence.hit_tokens


@pytest.mark.parametrize(("prompt", "hit"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12)])
def test_a_repeated_prompt_hits_full_blocks_but_never_its_last_token(prompt: int, hit: int) -> None:
    cache = BlockCache(16, BLOCK)
    assert run(cache, ids(*range(prompt))) == 0
    assert run(cache, ids(*range(prompt))) == hit


@given(prompt=st.integers(1, 40), output=st.integers(1, 40), more=st.integers(1, 20))
def test_a_second_turn_hits_all_but_the_last_token_of_the_first(prompt: int, output: int, more: int) -> None:
    """The last generated token was never computed: floor((prompt + output - 1) / block) blocks are cached."""
    cache = BlockCache(64, BLOCK)
    context = ids(*range(prompt + output))
    run(cache, context[: prompt * 4], context[prompt * 4 :])
    assert run(cache, context + ids(*range(1000, 1000 + more))) == (prompt + output - 1) // BLOCK * BLOCK


def test_another_salt_shares_nothing() -> None:
    cache = BlockCache(16, BLOCK)
    run(cache, ids(*range(9)), salt="a")
    assert run(cache, ids(*range(9)), salt="b") == 0
    assert run(cache, ids(*range(9)), salt="a") == 8


def test_a_block_is_known_only_behind_its_own_prefix() -> None:
    cache = BlockCache(16, BLOCK)
    run(cache, ids(0, 1, 2, 3, 4, 5, 6, 7, 8))
    assert run(cache, ids(9, 9, 9, 9, 4, 5, 6, 7, 8)) == 0


def test_the_oldest_goes_first_and_its_tail_before_its_head() -> None:
    cache = BlockCache(6, BLOCK)
    run(cache, ids(*range(12)))
    run(cache, ids(*range(100, 108)))
    run(cache, ids(*range(200, 208)))  # needs two blocks, one is empty: the tail of the first goes
    assert run(cache, ids(*range(12), 99)) == 8
    removed = [event for event in cache.events if event.kind == "removed"]
    chain = block_hashes(ids(*range(12)), BLOCK, root_hash(""))
    assert removed[0].hashes == (chain[2],)


def test_blocks_in_use_are_never_taken() -> None:
    cache = BlockCache(4, BLOCK)
    first = cache.start(ids(*range(12)), "")
    assert first is not None
    cache.compute(first, 12)
    assert cache.start(ids(*range(100, 108)), "") is None
    cache.check([first])
    assert cache.append(first, ids(12, 13, 14, 15))
    assert not cache.append(first, ids(16))
    assert first.tokens == 16
    assert cache.usage == 1.0
    cache.release(first)
    assert cache.usage == 0.0
    assert cache.start(ids(*range(100, 108)), "") is not None


def test_a_hit_on_idle_blocks_is_not_counted_as_free_room() -> None:
    cache = BlockCache(3, BLOCK)
    run(cache, ids(*range(12)))
    other = cache.start(ids(50), "")
    assert other is not None
    assert cache.start(ids(*range(12)), "") is None
    cache.check([other])


def test_events_tell_what_is_cached() -> None:
    cache = BlockCache(3, BLOCK, event_limit=4)
    for start in range(0, 120, 12):
        run(cache, ids(*range(start, start + 12)))
    numbers = [event.sequence_number for event in cache.events]
    assert len(numbers) <= 4
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert list(cache.events_since(numbers[-1])) == cache.events[-1:]
    last = cache.events[-1]
    assert (last.kind, last.parent, len(last.hashes)) == ("stored", root_hash(""), 3)


class Books(RuleBasedStateMachine):
    """Random requests on a small cache; the books are audited after each move."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(10, BLOCK)
        self.running: list[CachedSequence] = []
        self.cached: set[bytes] = set()
        self.read = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=24), salt=st.sampled_from(["", "a"]))
    def begin(self, tokens: list[int], salt: str) -> None:
        sequence = self.cache.start(ids(*tokens), salt)
        if sequence is not None:
            assert sequence.hit_tokens <= len(tokens) - 1
            assert sequence.hit_tokens % BLOCK == 0
            self.running.append(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        if sequence.computed < sequence.tokens - 1:
            self.cache.compute(sequence, data.draw(st.integers(sequence.computed, sequence.tokens)))
        else:
            self.cache.append(sequence, ids(*data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        self.running.remove(sequence)
        self.cache.release(sequence)

    @rule()
    def clear(self) -> None:
        self.cache.clear()

    @invariant()
    def books_add_up(self) -> None:
        self.cache.check(self.running)

    @invariant()
    def events_replay_to_the_cache(self) -> None:
        for event in self.cache.events_since(self.read):
            assert event.sequence_number == self.read
            self.read += 1
            if event.kind == "stored":
                assert not self.cached & set(event.hashes)
                self.cached |= set(event.hashes)
            else:
                assert self.cached >= set(event.hashes)
                self.cached -= set(event.hashes)
        assert self.cached == set(self.cache._holders)


TestBooks = Books.TestCase
