"""The start of a server on NeuronCores: loading, then compiling what the cache folder does not remember."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.emulator.neuron import NeuronSettings, graph_key
from paceline.emulator.settings import Settings

CACHE_FOLDER = Path("neuron/compile_cache/emulated")
"""Below VLLM_CACHE_ROOT, and apart from what the plugin compiles."""
LABEL = "no model runs and nothing is compiled; times are a model from published figures, not a measurement"


@dataclass(frozen=True, slots=True)
class Started:
    """What a start did. Seconds before they are scaled."""

    compiled: int = 0
    cached: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0


def log(text: str, level: str = "INFO") -> None:
    """A line in the form of vLLM's log."""
    sys.stderr.write(f"{level} {time.strftime('%m-%d %H:%M:%S')} [emulator] {text}\n")
    sys.stderr.flush()


async def start_up(settings: Settings, neuron: NeuronSettings, say: Callable[[str], None] = log) -> Started:
    """Take the time of a start. A graph is remembered when it is done, so an ended start goes on where it was."""
    scale, times = settings.timing.scale, neuron.times
    say(f"Emulated NeuronCores: {LABEL}")
    say(f"Starting to load model {settings.model_name}")
    await asyncio.sleep(times.load_seconds * scale)
    say(f"Loading weights took {times.load_seconds:.2f} seconds of the model's time")
    graphs = neuron.graphs(drafting=settings.spec_method != "none")
    compiled = 0
    for number, graph in enumerate(graphs, 1):
        entry = _entry(settings, neuron, graph)
        if entry and entry.exists():
            say(f"Graph {number} of {len(graphs)}, {graph}: in the compile cache")
            continue
        say(f"Compiling a graph, {number} of {len(graphs)}: {graph}")
        await asyncio.sleep(times.compile_graph_seconds * scale)
        compiled += 1
        if entry:
            _remember(entry, graph)
    return Started(compiled, len(graphs) - compiled, compiled * times.compile_graph_seconds, times.load_seconds)


def _entry(settings: Settings, neuron: NeuronSettings, graph: str) -> Path | None:
    if neuron.cache is None:
        return None
    return neuron.cache / CACHE_FOLDER / f"{graph_key(_shape(settings, neuron) | {'graph': graph})}.json"


def _shape(settings: Settings, neuron: NeuronSettings) -> dict[str, Any]:
    """What forces a recompilation beside the bucket itself."""
    return {
        "plugin": settings.features.version,
        "model": settings.model_path,
        "tensor_parallel_size": neuron.tensor_parallel_size,
        "block_size": settings.block_size,
        "num_blocks": settings.num_blocks,
        "prefix_caching": settings.prefix_caching,
        "sampling": neuron.sampling,
        "structured_outputs": neuron.structured_outputs,
        "method": settings.spec_method,
        "drafter": neuron.drafter,
        "k": settings.spec_tokens,
    }


def _remember(entry: Path, graph: str) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    new = entry.with_suffix(".new")
    new.write_text(json.dumps({"graph": graph, "note": "emulated: nothing was compiled"}))
    new.replace(entry)
