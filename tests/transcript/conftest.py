"""The built-in model, and folders of others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.transcript import models

from paceline.transcript import builtin
from paceline.transcript.chat import ChatModel, load


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as a hub download looks."""
    return models.qwen_folder(tmp_path_factory.mktemp("qwen"), builtin.TEMPLATE)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama 3.1."""
    return models.llama_folder(tmp_path_factory.mktemp("llama"), models.template("llama3_1"))


@pytest.fixture(scope="session")
def gpt_oss_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpt-oss, as a hub download looks."""
    return models.gpt_oss_folder(tmp_path_factory.mktemp("gpt_oss"))


@pytest.fixture(scope="session")
def folder_of(
    qwen_folder: Path, llama_folder: Path, gpt_oss_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Finds the folder of a model by the name of its template in the package trl, made once."""
    made = {"gptoss": gpt_oss_folder}

    def find(name: str) -> Path:
        if name not in made:
            base = llama_folder if name.startswith("llama") else qwen_folder
            made[name] = tmp_path_factory.mktemp(name) / "model"
            shutil.copytree(base, made[name])
            (made[name] / "chat_template.jinja").write_text(models.template(name))
        return made[name]

    return find


@pytest.fixture(params=["emulated", "qwen"])
async def model(request: pytest.FixtureRequest) -> ChatModel:
    """Each test runs with both models."""
    if request.param == "emulated":
        return await load("emulated")
    return await load(str(request.getfixturevalue("qwen_folder")))


@pytest.fixture
async def emulated() -> ChatModel:
    """The built-in model."""
    return await load("emulated")
