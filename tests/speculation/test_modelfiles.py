"""What the files of a model say, and what is done about broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.speculation.models import model, write_safetensors

from paceline.errors import ModelError
from paceline.speculation.modelfiles import ModelFiles, open_model
from paceline.speculation.safetensors import EMBEDDINGS, read_weights
from paceline.speculation.tokenmap import read_token_map


def with_config(folder: Path, **values: Any) -> ModelFiles:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return ModelFiles("m", folder)


def test_weights_in_several_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-1.safetensors", {"model.embed_tokens.weight": [10, 4]})
    write_safetensors(tmp_path / "model-2.safetensors", {"lm_head.weight": [12, 4], "norm.weight": [4]})
    files = ModelFiles("m", tmp_path)
    assert (files.embedding_rows, files.head_rows) == (10, 12)
    assert files.weights
    assert files.weights.size_bytes == 2 * (10 * 4 + 12 * 4 + 4)
    assert files.weights.rows(("absent",)) is None


def test_no_weights(tmp_path: Path) -> None:
    assert read_weights(tmp_path) is None
    assert ModelFiles("m", tmp_path).embedding_rows is None


@pytest.mark.parametrize(
    "content", [b"", b"\x05", b"\xff" * 8, (9).to_bytes(8, "little") + b"{", (4).to_bytes(8, "little") + b"[1]\n"]
)
def test_broken_weights_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors: no safetensors file"):
        read_weights(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"model": {"vocab": 3}}', b'{"model": {"vocab": [3]}}'])
def test_broken_tokenizers_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        read_token_map(path)


def test_a_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]}}))
    assert read_token_map(path).tokens == {0: "<unk>", 1: "a"}


def test_the_settings_of_an_inner_model_win(tmp_path: Path) -> None:
    files = with_config(
        tmp_path,
        architectures=["A"],
        model_type="outer",
        vocab_size=1,
        text_config={"vocab_size": 9, "model_type": "qwen3_moe"},
    )
    assert (files.vocab_size, files.family, files.architectures) == (9, "qwen3", ("A",))
    assert with_config(tmp_path / "head", transformer_layer_config={"hidden_size": 5}).hidden_size == 5


@pytest.mark.parametrize(
    ("values", "hybrid"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, False),
        ({"layer_types": ["linear_attention", "full_attention"]}, True),
        ({"layers_block_type": ["mamba", "attention"]}, True),
        ({"layer_types": ["conv", "full_attention"]}, True),
        ({"layer_types": ["attention"], "mamba_d_state": 128}, False),
        ({"mamba_d_state": 128}, True),
        ({"hybrid_override_pattern": "M*M-"}, True),
        ({}, False),
    ],
)
def test_layers_with_a_state(tmp_path: Path, values: dict[str, Any], hybrid: bool) -> None:
    assert with_config(tmp_path, **values).hybrid is hybrid


def test_a_folder_without_files_says_nothing(tmp_path: Path) -> None:
    files = ModelFiles("m", tmp_path)
    assert (files.vocab_size, files.family, files.tokens, files.template) == (None, "", None, "")
    assert (files.quantization, files.predicted_tokens, files.special("eos_token")) == ("", None, None)


def test_a_template_inside_the_tokenizer_configuration(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    assert ModelFiles("m", tmp_path).template == "{{ x }}"


def test_offline_a_hub_id_must_be_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="the hub did not give it"):
        open_model("owner/model", offline=True)
    revision = tmp_path / "cache/models--owner--model/refs/main"
    revision.parent.mkdir(parents=True)
    revision.write_text("0" * 40)
    model(8, 1).write(tmp_path / "cache/models--owner--model/snapshots" / ("0" * 40))
    files = open_model("owner/model", offline=True)
    assert (files.name, files.vocab_size) == ("owner/model", 640)
    assert files.weights
    assert files.weights.rows(EMBEDDINGS) == 640
