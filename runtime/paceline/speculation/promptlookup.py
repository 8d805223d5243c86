"""What vLLM's ngram method drafts: what followed the earliest occurrence of the longest ending that repeats.

The rule is that of `vllm/v1/spec_decode/ngram_proposer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

ID_BYTES = 4


def lookup(
    context: bytes | bytearray, upcoming: Sequence[int], most: int, shortest: int, longest: int
) -> tuple[int, int]:
    """(drafted, accepted) for a uint32 `context` that `upcoming` follows; (0, 0) when no ending repeats.

    At most `most` tokens are drafted. Endings of `longest` down to `shortest` tokens are looked for.
    """
    for length in range(min(longest, len(context) // ID_BYTES - 1), shortest - 1, -1):
        at = _find_aligned(context, bytes(context[-length * ID_BYTES :]))
        if at < len(context) - length * ID_BYTES:
            first = at + length * ID_BYTES
            proposal = memoryview(bytes(context[first : first + most * ID_BYTES])).cast("I").tolist()
            return len(proposal), _common_prefix(proposal, upcoming)
    return 0, 0


def _find_aligned(context: bytes | bytearray, ending: bytes) -> int:
    at = context.find(ending)
    while at % ID_BYTES:
        at = context.find(ending, at + 1)
    return at


def _common_prefix(proposal: Sequence[int], upcoming: Sequence[int]) -> int:
    for length, (proposed, wanted) in enumerate(zip(proposal, upcoming, strict=False)):
        if proposed != wanted:
            return length
    return min(len(proposal), len(upcoming))
