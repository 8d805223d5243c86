"""Pairs that are wrong in one small way, each of which a size comparison lets pass, and a pair that is right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.speculation.models import PADDED_SIZE, Change, Model, findings, model, notable, pair

from paceline import config
from paceline.speculation import checks

MAPPED: dict[str, Any] = {"use_heterogeneous_vocab": True}
NGRAM = {"method": "ngram", "drafter": None}
MTP: dict[str, Any] = {"method": "mtp", "drafter": None}
SUFFIX = {"method": "suffix", "drafter": None}


def permuted(_target: Model, drafter: Model) -> None:
    tokens = sorted(drafter.vocab, key=drafter.vocab.__getitem__)
    swapped = [*tokens[:-20], *reversed(tokens[-20:])]
    drafter.tokenizer["model"]["vocab"] = {token: token_id for token_id, token in enumerate(swapped)}


def two_tokens_exchanged(_target: Model, drafter: Model) -> None:
    first, second = list(drafter.vocab)[300:302]
    drafter.vocab[first], drafter.vocab[second] = drafter.vocab[second], drafter.vocab[first]


def one_token_renamed(_target: Model, drafter: Model) -> None:
    last = max(drafter.vocab, key=drafter.vocab.__getitem__)
    drafter.tokenizer["model"]["merges"] = drafter.tokenizer["model"]["merges"][:-1]
    drafter.vocab["zzzz"] = drafter.vocab.pop(last)


def fewer_tokens(_target: Model, drafter: Model) -> None:
    last = max(drafter.vocab, key=drafter.vocab.__getitem__)
    drafter.tokenizer["model"]["merges"] = drafter.tokenizer["model"]["merges"][:-1]
    del drafter.vocab[last]


def special_ids_exchanged(_target: Model, drafter: Model) -> None:
    start, end = drafter.added[1], drafter.added[2]
    start["content"], end["content"] = end["content"], start["content"]


def added_token_missing(_target: Model, drafter: Model) -> None:
    drafter.added.pop()


def added_token_more(_target: Model, drafter: Model) -> None:
    drafter.added.append({**drafter.added[-1], "id": drafter.added[-1]["id"] + 1, "content": "<think>"})


def added_token_beyond(_target: Model, drafter: Model) -> None:
    drafter.added.append({**drafter.added[-1], "id": PADDED_SIZE, "content": "<think>"})


def other_end(_target: Model, drafter: Model) -> None:
    drafter.tokenizer_config["eos_token"] = "<|endoftext|>"


def other_end_id(_target: Model, drafter: Model) -> None:
    drafter.generation["eos_token_id"] = 0


def other_begin(_target: Model, drafter: Model) -> None:
    drafter.tokenizer_config["bos_token"] = "<|im_start|>"


def digits_apart(_target: Model, drafter: Model) -> None:
    parts = [{"type": "Digits", "individual_digits": True}, drafter.tokenizer["pre_tokenizer"]]
    drafter.tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}


def lower_case(_target: Model, drafter: Model) -> None:
    drafter.tokenizer["normalizer"] = {"type": "Lowercase"}


def merges_reversed(_target: Model, drafter: Model) -> None:
    drafter.tokenizer["model"]["merges"].reverse()


def same_cut_written_otherwise(_target: Model, drafter: Model) -> None:
    parts = [drafter.tokenizer["pre_tokenizer"]]
    drafter.tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": parts}


def no_tokenizer(_target: Model, drafter: Model) -> None:
    drafter.tokenizer = {}


def no_configuration(target: Model, drafter: Model) -> None:
    target.config, drafter.config = {}, {}


def other_template(_target: Model, drafter: Model) -> None:
    drafter.template += " "


def more_embedding_rows(_target: Model, drafter: Model) -> None:
    drafter.tensors["model.embed_tokens.weight"][0] += 64


def fewer_rows_than_ids(target: Model, drafter: Model) -> None:
    for each in (target, drafter):
        each.config["vocab_size"] = 100
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            each.tensors[name][0] = 100


def other_vocab_size(_target: Model, drafter: Model) -> None:
    drafter.config["vocab_size"] = PADDED_SIZE + 128
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        drafter.tensors[name][0] = PADDED_SIZE + 128


def no_weights(_target: Model, drafter: Model) -> None:
    drafter.tensors = {}


def other_family(_target: Model, drafter: Model) -> None:
    drafter.config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def shorter(_target: Model, drafter: Model) -> None:
    drafter.config["max_position_embeddings"] = 2048


def quantised(_target: Model, drafter: Model) -> None:
    drafter.config["quantization_config"] = {"quant_method": "awq"}


def as_large(target: Model, drafter: Model) -> None:
    drafter.config, drafter.tensors = target.config, target.tensors


def half_as_large(_target: Model, drafter: Model) -> None:
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        drafter.tensors[name][1] = 48


def head(_target: Model, drafter: Model) -> None:
    drafter.config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 320}


def head_of_another(target: Model, drafter: Model) -> None:
    head(target, drafter)
    drafter.config["target_hidden_size"] = 128


def head_for_target(target: Model, drafter: Model) -> None:
    head(target, drafter)
    drafter.config |= {"target_hidden_size": 64, "num_hidden_layers": 1}
    drafter.tokenizer = {}


def head_of_two_layers(target: Model, drafter: Model) -> None:
    head_for_target(target, drafter)
    drafter.config["num_hidden_layers"] = 2


def block_head(target: Model, drafter: Model) -> None:
    head_for_target(target, drafter)
    drafter.config |= {"architectures": ["DFlashDraftModel"], "block_size": 8}


def linear_layers(target: Model, _drafter: Model) -> None:
    target.config["layer_types"] = ["linear_attention", "full_attention"] * 2


def mamba_by_key(target: Model, _drafter: Model) -> None:
    del target.config["layer_types"]
    target.config["mamba_d_state"] = 16


def linear_layers_inside(target: Model, _drafter: Model) -> None:
    inner = target.config | {"layer_types": ["linear_attention"]}
    target.config = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": inner}


def predicts_three(target: Model, _drafter: Model) -> None:
    target.config["num_nextn_predict_layers"] = 3


def min_p(target: Model, _drafter: Model) -> None:
    target.generation["min_p"] = 0.05


def no_stand_in(_target: Model, drafter: Model) -> None:
    drafter.tokenizer_config = {"bos_token": "<|endoftext|>"}


def few_common(target: Model, drafter: Model) -> None:
    permuted(target, drafter)
    for token in [token for token in drafter.vocab if len(token) == 1]:
        drafter.vocab[f"x{token}"] = drafter.vocab.pop(token)
    drafter.tokenizer["model"]["merges"] = []


def nothing(_target: Model, _drafter: Model) -> None:
    """The pair as it is."""


WRONG: list[tuple[Change, dict[str, Any], str, str]] = [
    (permuted, {}, "tokenizer.vocabulary", "refused"),
    (two_tokens_exchanged, {}, "tokenizer.vocabulary", "refused"),
    (one_token_renamed, {}, "tokenizer.vocabulary", "refused"),
    (fewer_tokens, {}, "tokenizer.vocabulary", "refused"),
    (no_tokenizer, {}, "tokenizer.files", "refused"),
    (special_ids_exchanged, {}, "tokenizer.added_tokens", "refused"),
    (added_token_missing, {}, "tokenizer.added_tokens", "refused"),
    (added_token_beyond, {}, "tokenizer.added_tokens", "refused"),
    (added_token_more, {}, "tokenizer.added_tokens", "warning"),
    (digits_apart, {}, "tokenizer.encoding", "refused"),
    (lower_case, {}, "tokenizer.encoding", "refused"),
    (merges_reversed, {}, "tokenizer.encoding", "refused"),
    (same_cut_written_otherwise, {}, "tokenizer.encoding", "warning"),
    (other_end, {}, "tokenizer.special_ids", "warning"),
    (other_end_id, {}, "tokenizer.special_ids", "warning"),
    (other_begin, {}, "tokenizer.special_ids", "warning"),
    (other_template, {}, "template", "warning"),
    (more_embedding_rows, {}, "weights.embedding_rows", "refused"),
    (fewer_rows_than_ids, {}, "weights.embedding_rows", "refused"),
    (no_weights, {}, "weights.embedding_rows", "warning"),
    (other_vocab_size, {}, "config.vocab_size", "refused"),
    (other_family, {}, "architecture.family", "warning"),
    (shorter, {}, "length", "warning"),
    (quantised, {}, "quantization", "warning"),
    (as_large, {}, "pair.size", "refused"),
    (half_as_large, {}, "pair.size", "warning"),
    (head, {}, "drafter.kind", "refused"),
    (nothing, {"method": "eagle3"}, "drafter.kind", "refused"),
    (nothing, {"num_speculative_tokens": 3, "method": "dflash"}, "drafter.kind", "refused"),
    (head_of_another, {"method": "eagle3"}, "head.hidden_size", "refused"),
    (block_head, {"method": "dflash", "num_speculative_tokens": 8}, "k", "refused"),
    (block_head, {"method": "dflash", "num_speculative_tokens": 5}, "k", "warning"),
    (
        block_head,
        {"method": "dflash", "num_speculative_tokens": 5, "platform": "neuron"},
        "neuron.dflash-k",
        "refused",
    ),
    (head_of_two_layers, {"method": "eagle3", "platform": "neuron"}, "neuron.eagle3-one-layer", "refused"),
    (nothing, {"platform": "neuron"}, "neuron.trained-heads-only", "refused"),
    (linear_layers, NGRAM, "target.attention", "refused"),
    (linear_layers, SUFFIX, "target.attention", "refused"),
    (mamba_by_key, NGRAM, "target.attention", "refused"),
    (linear_layers_inside, NGRAM, "target.attention", "refused"),
    (linear_layers, {}, "target.attention", "warning"),
    (predicts_three, {**MTP, "num_speculative_tokens": 4}, "k", "refused"),
    (predicts_three, {**MTP, "num_speculative_tokens": 6}, "k", "warning"),
    (nothing, MTP, "k", "refused"),
    (no_configuration, MTP, "k", "warning"),
    (no_configuration, {}, "config.vocab_size", "warning"),
    (no_configuration, {}, "drafter.kind", "warning"),
    (nothing, {**SUFFIX, "num_speculative_tokens": 24}, "k", "warning"),
    (min_p, NGRAM, "sampling", "refused"),
    (nothing, MAPPED, "tokenizer.common_vocabulary", "warning"),
    (few_common, MAPPED, "tokenizer.common_vocabulary", "warning"),
    (no_stand_in, MAPPED, "tokenizer.common_vocabulary", "refused"),
    (permuted, {**MAPPED, "platform": "cuda"}, "cuda.old-runner", "warning"),
    (nothing, {**SUFFIX, "platform": "cuda"}, "cuda.old-runner", "warning"),
    (head_for_target, {"method": "eagle3", "platform": "neuron"}, "neuron.models-0-29", "warning"),
    (
        block_head,
        {"method": "dflash", "num_speculative_tokens": 7, "platform": "neuron"},
        "neuron.dflash-no-reuse",
        "warning",
    ),
    (block_head, {"method": "dflash", "num_speculative_tokens": 7}, "cpu.dflash", "warning"),
    (block_head, {"method": "dflash", "num_speculative_tokens": 7}, "prefix_caching", "warning"),
    (predicts_three, {**MTP, "num_speculative_tokens": 3}, "prefix_caching", "warning"),
]


@pytest.mark.parametrize(("change", "profile", "rule", "level"), WRONG)
def test_a_wrong_pair_is_caught(
    change: Change, profile: dict[str, Any], rule: str, level: str, tmp_path: Path
) -> None:
    assert notable(findings(tmp_path, change, **profile)).get(rule) == level


RIGHT: list[tuple[Change, dict[str, Any]]] = [
    (nothing, {}),
    (nothing, NGRAM),
    (nothing, SUFFIX),
    (nothing, {"platform": "cuda"}),
    (head_for_target, {"method": "eagle3", "num_speculative_tokens": 3}),
    (permuted, MAPPED),
    (added_token_missing, MAPPED),
]


@pytest.mark.parametrize(("change", "profile"), RIGHT)
def test_a_right_pair_passes(change: Change, profile: dict[str, Any], tmp_path: Path) -> None:
    assert notable(findings(tmp_path, change, **profile)) == {}


def test_nothing_else_is_said_about_a_mapped_pair(tmp_path: Path) -> None:
    found = findings(tmp_path, permuted, **MAPPED)
    assert any(item.rule == "tokenizer.common_vocabulary" and "(100%)" in item.statement for item in found)
    assert not any(item.rule in ("tokenizer.vocabulary", "tokenizer.added_tokens") for item in found)


def test_differences_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    (found,) = [item for item in findings(tmp_path, permuted) if item.rule == "tokenizer.vocabulary"]
    assert re.fullmatch(
        r"20 of \d+ ids mean another token: (\d+: '.+' / '.+'(; )?){3} and 17 more", found.statement
    )
    assert "use_heterogeneous_vocab" in found.remedy


def test_a_bad_k_names_the_next_good_ones(tmp_path: Path) -> None:
    (found,) = [
        item for item in findings(tmp_path, predicts_three, **MTP, num_speculative_tokens=4) if item.rule == "k"
    ]
    assert found.remedy == "set `num_speculative_tokens` to 3 or 6"


def test_every_finding_that_is_not_ok_has_a_remedy(tmp_path: Path) -> None:
    for number, (change, profile, _, _) in enumerate(WRONG):
        found = findings(tmp_path / str(number), change, **profile)
        assert [item for item in found if item.level != "ok" and not item.remedy] == []


def test_a_drafter_that_is_the_target_is_refused_by_any_name(tmp_path: Path) -> None:
    folder = model(64, 4).write(tmp_path / "target")
    (tmp_path / "link").symlink_to(folder)
    profile = config.Speculation(method="draft_model", drafter=str(tmp_path / "link"))
    found = checks.check(checks.open_subject(profile, str(folder), offline=True))
    assert notable(found) == {"pair.size": "refused"}


def test_a_file_that_a_cache_lacks_is_no_reason_to_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM does not fetch the tokenizer of a drafter, so that file is usually not there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    ours, theirs = pair()
    for name, files in [("target", ours), ("drafter", theirs)]:
        reference = tmp_path / f"models--o--{name}" / "refs" / "main"
        reference.parent.mkdir(parents=True)
        reference.write_text("0" * 40)
        folder = files.write(tmp_path / f"models--o--{name}" / "snapshots" / ("0" * 40))
    (folder / "tokenizer.json").unlink()
    profile = config.Speculation(method="draft_model", drafter="o/drafter")
    found = checks.check_engine(config.Engine(model="m", platform="cpu"), profile, "o/target")
    assert notable(found) == {"tokenizer.files": "warning"}
