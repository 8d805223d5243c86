"""Which matrix products a forward pass consists of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.speculation.models import PADDED_SIZE, Model, model

from paceline.errors import ModelError
from paceline.speculation.modelfiles import open_model
from paceline.speculation.shapes import Product, Shapes, forward_shapes

LAYER = {
    "self_attn.q_proj.weight": [64, 64],
    "self_attn.k_proj.weight": [16, 64],
    "self_attn.v_proj.weight": [16, 64],
    "self_attn.o_proj.weight": [64, 64],
    "self_attn.q_proj.bias": [64],
    "mlp.gate_proj.weight": [256, 64],
    "mlp.up_proj.weight": [256, 64],
    "mlp.down_proj.weight": [64, 256],
    "input_layernorm.weight": [64],
}
LAYERS = 3
PRODUCTS = {
    Product(96, 64, LAYERS),
    Product(64, 64, LAYERS),
    Product(512, 64, LAYERS),
    Product(64, 256, LAYERS),
}


def dense(**settings: Any) -> Model:
    """A Qwen2-like model with all its weights: 8 query heads and 2 KV heads of width 8."""
    found = model(64, LAYERS)
    found.config |= {"intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2} | settings
    found.tensors = {name: [PADDED_SIZE, 64] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for layer in range(LAYERS):
        found.tensors |= {f"model.layers.{layer}.{name}": shape for name, shape in LAYER.items()}
    return found


def shapes(found: Model, folder: Path, **options: Any) -> Shapes:
    return forward_shapes(open_model(str(found.write(folder / "model")), offline=True), **options)


def test_weights_and_configuration_tell_the_same(tmp_path: Path) -> None:
    expected = PRODUCTS | {Product(PADDED_SIZE, 64)}
    from_weights = shapes(dense(), tmp_path / "weights")
    assert (set(from_weights.products), from_weights.source) == (expected, "weights")
    without = dense()
    without.tensors = {}
    from_config = shapes(without, tmp_path / "config")
    assert (set(from_config.products), from_config.source) == (expected, "config.json, gated MLP assumed")


def test_a_drafter_needs_its_head_once_per_pass(tmp_path: Path) -> None:
    assert shapes(dense(), tmp_path, drafts=True).products[-1] == Product(PADDED_SIZE, 64, last_only=True)


def test_tied_embeddings_are_the_head(tmp_path: Path) -> None:
    tied = dense()
    del tied.tensors["lm_head.weight"]
    assert shapes(tied, tmp_path).products[-1] == Product(PADDED_SIZE, 64)


def test_a_trained_head_borrows_the_output_head(tmp_path: Path) -> None:
    head = dense()
    head.tensors = {"midlayer.mlp.down_proj.weight": [64, 256], "fc.weight": [64, 192]}
    found = shapes(head, tmp_path, drafts=True, head=Product(1000, 64))
    assert set(found.products) == {Product(64, 256), Product(64, 192), Product(1000, 64, last_only=True)}


def test_no_head_at_all_is_refused(tmp_path: Path) -> None:
    head = dense()
    head.tensors = {"fc.weight": [64, 192]}
    with pytest.raises(ModelError, match="output head"):
        shapes(head, tmp_path)


def test_attention_over_a_context(tmp_path: Path) -> None:
    """Each KV head's keys and values meet the four query heads of its group."""
    found = shapes(dense(), tmp_path, context=100)
    assert found.products[-2:] == (Product(100, 8, 2 * LAYERS, 4), Product(8, 100, 2 * LAYERS, 4))


def test_parts_that_see_no_text_are_left_out(tmp_path: Path) -> None:
    seeing = dense()
    seeing.tensors |= {"visual.blocks.0.attn.qkv.weight": [30, 10], "model.embed_positions.weight": [512, 64]}
    assert set(shapes(seeing, tmp_path).products) == PRODUCTS | {Product(PADDED_SIZE, 64)}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"num_experts": 64}, "mixture of experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by awq"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "Mamba or linear attention"),
    ],
)
def test_costs_that_are_no_matrix_products_are_refused(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        shapes(dense(**settings), tmp_path)


def test_experts_are_seen_in_the_weights(tmp_path: Path) -> None:
    mixed = dense()
    mixed.tensors["model.layers.0.mlp.experts.0.up_proj.weight"] = [32, 64]
    with pytest.raises(ModelError, match="mixture of experts"):
        shapes(mixed, tmp_path)


@pytest.mark.parametrize("missing", ["intermediate_size", "num_attention_heads", "num_hidden_layers"])
def test_a_configuration_with_gaps_is_refused(tmp_path: Path, missing: str) -> None:
    gaps = dense()
    gaps.tensors = {}
    del gaps.config[missing]
    with pytest.raises(ModelError, match=missing):
        shapes(gaps, tmp_path)


def test_latent_attention_needs_the_weights(tmp_path: Path) -> None:
    latent = dense(kv_lora_rank=512)
    latent.tensors = {}
    with pytest.raises(ModelError, match="latent attention"):
        shapes(latent, tmp_path)
