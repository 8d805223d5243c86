"""An emulated engine with a section `neuron`, as the launcher starts it: cold, warm, and not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.platforms.engines import EAGLE3, engine_values

from paceline import config
from paceline.engines.launcher import LaunchedServer
from paceline.engines.progress import step
from paceline.errors import ConfigError

pytestmark = pytest.mark.slow


def engine(tmp_path: Path) -> config.Engine:
    """An engine in no time."""
    values = engine_values(neuron={"compile_cache": str(tmp_path / "graphs"), "num_gpu_blocks_override": 1024})
    return config.Engine.model_validate(values | {"platform": "emulated", "extra_args": ["--time-scale", "0"]})


async def compiled(server: LaunchedServer) -> list[str]:
    """What a start announces of compiling."""
    await server.start()
    try:
        await server.wait_ready()
    finally:
        await server.close()
    shown = [step(line) for line in server.log.read_text().splitlines()]
    return [said[1] for said in shown if said and said[0] == "compiling"]


async def test_the_second_start_is_warm(tmp_path: Path) -> None:
    def server(k: int) -> LaunchedServer:
        profile = config.Speculation.model_validate(EAGLE3 | {"num_speculative_tokens": k})
        return LaunchedServer("one", engine(tmp_path), profile, "emulated", tmp_path / "logs")

    cold = [f"compiling, graph {number} of 4" for number in range(1, 5)]
    assert [await compiled(server(k)) for k in (3, 3, 4)] == [cold, [], cold]
    (folder,) = (tmp_path / "graphs/0.29.0.1.2.0/emulated").glob("eagle3-k3-*")
    assert len(list(folder.glob("neuron/compile_cache/emulated/*.json"))) == 4


async def test_a_method_that_the_plugin_lacks_is_refused_before_the_start(tmp_path: Path) -> None:
    profile = config.Speculation.model_validate({"method": "draft_model", "drafter": "/models/small"})
    server = LaunchedServer("one", engine(tmp_path), profile, "emulated", tmp_path / "logs")
    with pytest.raises(ConfigError, match=r"neuron\.trained-heads-only"):
        await server.start()
    assert not server.log.exists()
