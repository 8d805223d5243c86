"""How long a NeuronCore works, by published figures: a model, not a measurement. The sources are in the table."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

TABLE = "neuron_times.toml"
DEFAULT_MODEL = "llama-3.1-8b"


@dataclass(frozen=True, slots=True)
class NeuronTimes:
    """One model's row. Times in seconds, before they are scaled."""

    prefill_token_seconds: float
    """Per computed prompt token, padding included."""
    speculative_prefill_factor: float
    """Makes a prefill longer that the head computes, too."""
    step_seconds: float
    """Per decode step of a batch of one."""
    step_per_request_seconds: float
    """Added to a decode step by each further place of the batch bucket, filled or not."""
    step_per_draft_seconds: float
    """Added to a decode step by each token that is drafted and checked, for all requests together."""
    compile_graph_seconds: float
    """Per compiled graph; one after the other."""
    load_seconds: float
    """Everything of a start but compiling."""
    weights_bytes: float
    acceptance: tuple[float, ...]
    """Share of steps that accept at least 1, 2, ... drafted tokens."""

    def prefill(self, padded_tokens: int, *, drafting: bool) -> float:
        """Seconds of a prefill of a bucket's size."""
        factor = self.speculative_prefill_factor if drafting else 1.0
        return padded_tokens * self.prefill_token_seconds * factor

    def decode(self, padded_batch: int, drafts: int) -> float:
        """Seconds of a decode step of a bucket's batch in which each request drafts `drafts` tokens."""
        batch = self.step_seconds + self.step_per_request_seconds * (padded_batch - 1)
        return batch + self.step_per_draft_seconds * drafts

    def acceptance_of(self, drafts: int) -> tuple[float, ...]:
        """The rates for so many drafted tokens; beyond the published ones they go on falling alike."""
        rates = list(self.acceptance)
        while len(rates) < drafts:
            rates.append(rates[-1] * self.acceptance[-1] / self.acceptance[-2])
        return tuple(rates[:drafts])


def times_of(model: str) -> NeuronTimes:
    """The times of a model of the table."""
    return NeuronTimes(**{name: _value(figure) for name, figure in table()["models"][model].items()})


def _value(figure: dict[str, Any]) -> Any:
    return figure["value"] if "value" in figure else tuple(figure["values"])


@cache
def table() -> dict[str, Any]:
    """The file: `sources` by name and `models`, where each figure has `value` (`values`), `how` and `source`."""
    return tomllib.loads(resources.files(__package__).joinpath(TABLE).read_text(encoding="utf-8"))
