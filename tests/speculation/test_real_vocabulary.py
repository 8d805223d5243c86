"""The check on a vocabulary of full size: Qwen's own, and the real model where there is one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.speculation.models import model, notable
from tests.transcript import models

from paceline import config
from paceline.speculation import checks
from paceline.speculation.tokenmap import TokenMap, conflicts

pytestmark = pytest.mark.slow

QWEN_SIZE = 151_936


@pytest.fixture(scope="session")
def qwen_tokenizer() -> str:
    """The content of tokenizer.json."""
    text: str = models.qwen_tokenizer().to_str()
    return text


def write_pair(folder: Path, ours: str, theirs: str) -> tuple[str, str]:
    """A pair of full vocabulary size with these tokenizers."""
    for name, text, hidden in [("target", ours, 64), ("drafter", theirs, 16)]:
        small = model(hidden, 1)
        small.config["vocab_size"] = QWEN_SIZE
        small.tensors = {"model.embed_tokens.weight": [QWEN_SIZE, hidden]}
        small.write(folder / name)
        (folder / name / "tokenizer.json").write_text(text)
    return str(folder / "target"), str(folder / "drafter")


def check(target: str, drafter: str) -> dict[str, str]:
    profile = config.Speculation(method="draft_model", drafter=drafter)
    return notable(checks.check(checks.open_subject(profile, target, platform="cpu", offline=True)))


def test_the_same_vocabulary_passes(tmp_path: Path, qwen_tokenizer: str) -> None:
    assert check(*write_pair(tmp_path, qwen_tokenizer, qwen_tokenizer)) == {}


def test_two_exchanged_tokens_among_all_are_found(tmp_path: Path, qwen_tokenizer: str) -> None:
    changed = json.loads(qwen_tokenizer)
    vocab = changed["model"]["vocab"]
    first, second = "\u0120return", "\u0120import"
    vocab[first], vocab[second] = vocab[second], vocab[first]
    text = json.dumps(changed)
    assert check(*write_pair(tmp_path, qwen_tokenizer, text)) == {"tokenizer.vocabulary": "refused"}
    ours, theirs = (TokenMap(content.encode(), tmp_path) for content in (qwen_tokenizer, text))
    assert {item.ours for item in conflicts(ours.tokens, theirs.tokens)} == {first, second}


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [
        (r"\p{N}|", r"\p{N}{1,3}|", "warning"),  # Qwen has no tokens of several digits: the result is the same
        (r"\s+(?!\S)|", "", "refused"),
    ],
)
def test_other_rules_of_cutting_are_found(
    old: str, new: str, level: str, tmp_path: Path, qwen_tokenizer: str
) -> None:
    changed = json.loads(qwen_tokenizer)
    pattern = changed["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    assert old in pattern["Regex"]
    pattern["Regex"] = pattern["Regex"].replace(old, new)
    found = check(*write_pair(tmp_path, qwen_tokenizer, json.dumps(changed)))
    assert found == {"tokenizer.encoding": level}


@pytest.mark.engine
def test_the_real_model(tmp_path: Path) -> None:
    real = Path(os.environ["PACELINE_TEST_MODEL"])
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    for path in real.glob("*.json*"):
        shutil.copy(path, drafter)
    assert check(str(real), str(real)) == {"pair.size": "refused"}
    assert check(str(real), str(drafter)) == {"weights.embedding_rows": "warning"}
    changed = json.loads((drafter / "tokenizer.json").read_text())
    changed["added_tokens"].pop()
    changed["model"]["vocab"].pop(max(changed["model"]["vocab"], key=changed["model"]["vocab"].__getitem__))
    (drafter / "tokenizer.json").write_text(json.dumps(changed))
    assert check(str(real), str(drafter))["tokenizer.vocabulary"] == "refused"
