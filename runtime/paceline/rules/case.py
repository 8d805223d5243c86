"""What a platform rule looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline import config
from paceline.config_neuron import Neuron
from paceline.rules.table import NEWEST_PLUGIN, PlatformRule
from paceline.speculation.modelfiles import ModelFiles

NEURON_BLOCK_SIZE = 32
"""The plugin's default, in tokens."""


@dataclass(frozen=True, slots=True)
class Case:
    """An engine and its speculation; what is not known is None, and rules about it say nothing."""

    platform: str
    engine: config.Engine | None = None
    profile: config.Speculation | None = None
    target: ModelFiles | None = None
    drafter: ModelFiles | None = None

    @property
    def method(self) -> str:
        """The speculation method; `none` for no speculation."""
        return self.profile.method if self.profile else "none"

    @property
    def plugin(self) -> str:
        """Version of the Neuron plugin; the newest known one where no engine says."""
        return self.engine.neuron.plugin if self.engine and self.engine.neuron else NEWEST_PLUGIN


@dataclass(frozen=True, slots=True)
class NeuronCase:
    """A case of a configured engine on Neuron."""

    case: Case
    engine: config.Engine
    neuron: Neuron
    max_model_len: int
    block_size: int

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of the KV cache; None where the plugin sizes it."""
        blocks = self.neuron.num_gpu_blocks_override
        return blocks * self.block_size if blocks else None


Values = dict[str, object]
Check = Callable[[PlatformRule, Case], Iterator[Values]]
"""Yields what fills the rule's text, once per violation; nothing where the rule is kept or does not apply."""
NeuronCheck = Callable[[PlatformRule, NeuronCase], Iterator[Values]]


def configured(check: NeuronCheck) -> Check:
    """A check that says nothing without an engine on Neuron."""

    def checked(rule: PlatformRule, case: Case) -> Iterator[Values]:
        engine = case.engine
        if engine and engine.neuron and engine.max_model_len:
            block_size = engine.block_size or NEURON_BLOCK_SIZE
            yield from check(rule, NeuronCase(case, engine, engine.neuron, engine.max_model_len, block_size))

    return checked
