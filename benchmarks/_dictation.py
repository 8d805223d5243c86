"""Makes a real engine say what is written for it: loaded by vLLM as a logits processor, in the engine's Python.

Only sampling is overruled. Prompts and answers are computed and cached as ever, the dictated tokens too.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    import torch

VARIABLE = "BENCHMARK_DICTATION"
"""JSON: a list of [last ids of a prompt, ids of its answer]."""


class Dictation(AdapterLogitsProcessor):  # type: ignore[misc] # vLLM is in engine venvs only
    """Answers the prompts that it knows as written; all others are left alone."""

    def is_argmax_invariant(self) -> bool:
        """It changes greedy answers."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """The same for all requests."""
        return dictate


ANSWERS: list[tuple[list[int], list[int]]] = json.loads(os.environ.get(VARIABLE, "[]"))


def dictate(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Leave only the next written token possible."""
    for ending, answer in ANSWERS:
        if prompt[-len(ending) :] == ending and len(output) < len(answer):
            only = logits.new_full(logits.shape, float("-inf"))
            only[answer[len(output)]] = 0.0
            return only
    return logits
