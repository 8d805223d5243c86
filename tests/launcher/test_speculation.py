"""What the launcher asks about a drafter before it starts anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import structlog.testing
from tests.launcher.conftest import MakeEngine
from tests.speculation.models import pair

from paceline import config
from paceline.engines import install
from paceline.engines.launcher import LaunchedServer
from paceline.errors import ConfigError


async def test_a_drafter_that_does_not_fit_is_refused_before_anything_starts(
    make_engine: MakeEngine, tmp_path: Path
) -> None:
    target, drafter = pair()
    drafter.config["vocab_size"] = 7
    profile = config.Speculation(method="draft_model", drafter=str(drafter.write(tmp_path / "drafter")))
    model = str(target.write(tmp_path / "target"))
    server = LaunchedServer("one", make_engine(), profile, model, tmp_path)
    with pytest.raises(ConfigError, match=r"speculation: refused: config\.vocab_size: vocab_size 640 / 7"):
        await server.start()
    assert not server.log.exists()


async def test_doubts_and_models_that_are_elsewhere_are_logged(make_engine: MakeEngine, tmp_path: Path) -> None:
    target, drafter = pair()
    drafter.config["max_position_embeddings"] = 64
    profile = config.Speculation(method="draft_model", drafter=str(drafter.write(tmp_path / "drafter")))
    model = str(target.write(tmp_path / "target"))
    with structlog.testing.capture_logs() as logs:
        for number, path in enumerate([model, "owner/nowhere"]):
            server = LaunchedServer(str(number), make_engine(), profile, path, tmp_path)
            await server.start()
            await server.close()
    assert [(entry["event"], entry["engine"]) for entry in logs] == [
        ("speculation_doubtful", "0"),
        ("speculation_not_checked", "1"),
    ]
    assert logs[0]["rule"] == "length"


async def test_suffix_needs_its_package(tmp_path: Path) -> None:
    engine = config.Engine(model="m", platform="cpu", python=sys.executable)
    server = LaunchedServer("one", engine, config.Speculation(method="suffix"), str(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="needs the package arctic_inference beside"):
        await server.start()


def test_packages_are_looked_up_beside_the_engine() -> None:
    assert install.has_package(Path(sys.executable), "pytest")
    assert not install.has_package(Path(sys.executable), "no_such_package")
