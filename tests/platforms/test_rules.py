"""The table of rules, and for each rule that is checked a case that breaks it and is told what to do."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.platforms.engines import DFLASH, DFLASH_ENGINE, EAGLE3, PLUGINS, case, engine, files

from paceline import config
from paceline.errors import ConfigError
from paceline.rules import memory
from paceline.rules.case import Case
from paceline.rules.check import CHECKS, findings
from paceline.rules.table import generation_of, table
from paceline.speculation import checks

NGRAM = {"method": "ngram"}
LARGE: dict[str, Any] = {"num_hidden_layers": 64, "num_key_value_heads": 8, "head_dim": 128}
ONE_PREFILL = {"prefix_caching": False, "segment_size": 8192, "num_batched_tokens_buckets": [128, 8192]}
Violation = Callable[[Path], Case]


def having(profile: dict[str, Any] | None = None, **settings: Any) -> Violation:
    return lambda _folder: case(profile, **settings)


def arguments(*flags: str) -> Violation:
    return having(extra_args=list(flags))


def section(**settings: Any) -> Violation:
    return having(neuron=settings)


VIOLATIONS: dict[str, Violation] = {
    "neuron.fork-retired": having(plugin="0.9.1"),
    "neuron.nxdi-retired": having(plugin="0.5.3"),
    "neuron.unknown-plugin": having(plugin="0.26.0"),
    "neuron.unverified": having(plugin="0.32.0.1.4.0"),
    "neuron.too-old": having(plugin=PLUGINS["0.21"]),
    "neuron.eagle3-only": having(DFLASH, plugin=PLUGINS["0.21"]),
    "neuron.trained-heads-only": having(NGRAM),
    "neuron.eagle3-one-layer": lambda folder: case(
        EAGLE3, drafter=files(folder, "LlamaForCausalLMEagle3", num_hidden_layers=2)
    ),
    "neuron.eagle3-models": lambda folder: case(EAGLE3, target=files(folder, "Qwen3ForCausalLM")),
    "neuron.spec-sampling": having(EAGLE3, neuron={"sampling": "cpu"}),
    "neuron.dflash-no-reuse": having(DFLASH, neuron=DFLASH_ENGINE),
    "neuron.dflash-caching": having(DFLASH, neuron=DFLASH_ENGINE | {"prefix_caching": True}),
    "neuron.dflash-one-prefill": having(DFLASH, neuron=DFLASH_ENGINE | {"segment_size": 4096}),
    "neuron.dflash-k": lambda folder: case(
        DFLASH, drafter=files(folder, "DFlashDraftModel", block_size=16), neuron=DFLASH_ENGINE
    ),
    "neuron.dflash-blocks": having(DFLASH, neuron=DFLASH_ENGINE | {"num_gpu_blocks_override": 4096}),
    "neuron.nxdi-plain-draft": having({"method": "draft_model", "drafter": "/models/d"}, plugin="0.5.3"),
    "neuron.nxdi-eagle3-caching": having(EAGLE3, plugin="0.5.3"),
    "neuron.nxdi-batch-1": having(plugin="0.2.0", max_concurrent_steps=1),
    "neuron.segment-size": section(segment_size=3072),
    "neuron.segment-8192": having(plugin=PLUGINS["0.21"], neuron={"segment_size": 8192}),
    "neuron.segment-blocks": having(block_size=48),
    "neuron.segment-bucket": section(num_batched_tokens_buckets=[1024, 2048]),
    "neuron.largest-prefill-bucket": section(prefix_caching=False, segment_size=16_384),
    "neuron.largest-decode-bucket": section(num_seqs_buckets=[1, 2]),
    "neuron.buckets-ascend": section(num_seqs_buckets=[2, 1, 4]),
    "neuron.context-buckets": section(decode_context_length_buckets=[1000]),
    "neuron.kv-one-request": section(num_gpu_blocks_override=255),
    "neuron.worst-case-admission": section(num_gpu_blocks_override=1000),
    "neuron.kv-budget": lambda folder: case(
        target=files(folder, "LlamaForCausalLM", **LARGE), neuron={"num_gpu_blocks_override": 40_000}
    ),
    "neuron.cores": section(cores="8-14"),
    "neuron.idle-cores": section(cores="8-16"),
    "neuron.core-range": section(cores="57-64"),
    "neuron.lnc-env": having(env={"NEURON_LOGICAL_NC_CONFIG": "1"}),
    "neuron.no-pipeline": arguments("--pipeline-parallel-size=2"),
    "neuron.no-lora": having(plugin=PLUGINS["0.24"], extra_args=["--enable-lora"]),
    "neuron.no-quantization-flag": arguments("--quantization", "neuron_quant"),
    "neuron.no-ray": arguments("--distributed-executor-backend", "ray"),
    "neuron.no-device-flag": arguments("--device", "neuron"),
    "neuron.own-flags": arguments("--additional-config", "{}"),
    "neuron.v2-runner": having(env={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    "neuron.greedy": section(sampling="device"),
    "neuron.structured-sampling": section(sampling="cpu"),
    "neuron.models-0-21": lambda folder: case(plugin=PLUGINS["0.21"], target=files(folder, "LlamaForCausalLM")),
    "neuron.models-0-24": lambda folder: case(plugin=PLUGINS["0.24"], target=files(folder, "Qwen3ForCausalLM")),
    "neuron.models-0-29": lambda folder: case(target=files(folder, "Qwen2ForCausalLM")),
    "neuron.start-timeout": having(start_timeout_seconds=900),
    "cpu.dflash": having(DFLASH, platform="cpu"),
    "cuda.old-runner": having({"method": "suffix"}, platform="cuda"),
}
CHECKED = sorted(rule.id for rule in table().values() if rule.severity != "note")


@pytest.mark.parametrize("rule", CHECKED)
def test_each_rule_has_a_case_that_breaks_it(rule: str, tmp_path: Path) -> None:
    found = [finding for finding in findings(VIOLATIONS[rule](tmp_path)) if finding.rule == rule]
    assert len(found) == 1
    assert found[0].level == table()[rule].severity
    assert not any("{" in text and "{}" not in text for text in (found[0].statement, found[0].remedy))
    assert found[0].remedy


def test_checks_and_rows_belong_together() -> None:
    assert set(CHECKED) == CHECKS.keys() == VIOLATIONS.keys()


@pytest.mark.parametrize("rule", table().values(), ids=lambda rule: rule.id)
def test_each_row_is_complete(rule: Any) -> None:
    assert rule.id.startswith(f"{rule.platform}.")
    assert all((rule.generation, rule.versions, rule.statement, rule.remedy, rule.source))
    assert rule.severity in ("refused", "warning", "note")
    assert isinstance(rule.read, datetime.date)
    if rule.severity == "note":
        assert rule.text() == (rule.statement, rule.remedy)


@pytest.mark.parametrize(
    ("profile", "settings"),
    [
        (None, {}),
        (EAGLE3, {}),
        (EAGLE3, {"plugin": PLUGINS["0.24"]}),
        (DFLASH, {"neuron": DFLASH_ENGINE, "plugin": PLUGINS["0.24"]}),
        (None, {"neuron": {"num_gpu_blocks_override": 1024, "decode_context_length_buckets": [2048, 4096]}}),
        (
            None,
            {"neuron": {"prefix_caching": False, "segment_size": 8192, "num_batched_tokens_buckets": [128, 8192]}},
        ),
        (None, {"neuron": {"logical_nc_config": 1, "cores": "120-127"}}),
        (None, {"extra_args": ["--optimization-level", "2", "--distributed-executor-backend", "mp"]}),
        (None, {"env": {"NEURON_LOGICAL_NC_CONFIG": "2", "VLLM_USE_V2_MODEL_RUNNER": "0"}}),
    ],
)
def test_what_keeps_the_rules_is_left_alone(profile: dict[str, Any] | None, settings: dict[str, Any]) -> None:
    found = [finding.rule for finding in findings(case(profile, **settings))]
    assert found == (["neuron.dflash-no-reuse"] if profile is DFLASH else [])


def test_a_newer_plugin_keeps_the_newest_rules(tmp_path: Path) -> None:
    newer = case(
        NGRAM, plugin="0.31.0.1.4.0", neuron={"segment_size": 3000}, target=files(tmp_path, "Qwen2ForCausalLM")
    )
    found = {finding.rule: finding for finding in findings(newer)}
    assert found["neuron.unverified"].statement == "rules unverified for plugin 0.31.0.1.4.0 (newest known: 0.29)"
    assert {"neuron.segment-size", "neuron.trained-heads-only", "neuron.models-0-29"} <= found.keys()
    assert not any(rule in found for rule in ("neuron.no-lora", "neuron.eagle3-only"))


@pytest.mark.parametrize(
    ("version", "generation"),
    [
        ("0.2.0", "nxdi"),
        ("0.5.3", "nxdi"),
        ("0.9.1", "fork"),
        ("0.16.0", "unknown"),
        ("0.21.0.1.0.0", "plugin"),
        ("0.24.0.1.1.0+e8242a9", "plugin"),
        ("0.29", "plugin"),
        ("0.33.0.1.5.0", "plugin"),
        ("latest", "unknown"),
    ],
)
def test_the_generation_of_a_version(version: str, generation: str) -> None:
    assert generation_of(version) == generation


def test_without_an_engine_only_speculation_is_judged() -> None:
    drafting = config.Speculation.model_validate(EAGLE3)
    assert findings(Case("neuron", None, drafting)) == []
    assert [finding.rule for finding in findings(Case("neuron", None, config.Speculation(method="mtp")))] == [
        "neuron.trained-heads-only"
    ]


def test_the_launcher_refuses_with_every_rule_and_remedy() -> None:
    wrong = engine(neuron={"segment_size": 3072, "cores": "0-3"})
    with pytest.raises(ConfigError) as caught:
        checks.check_engine(wrong, None, "nobody/here")
    assert (
        "neuron.segment-size: no kernel for segments of 3072 tokens (set `segment_size` to one of 512, 1024,"
        in (caught.value.message)
    )
    assert "neuron.cores: `tensor_parallel_size` 8 is more than the 4 logical cores" in caught.value.message


def test_the_budget_of_a_core_is_the_documented_formula() -> None:
    assert memory.core_gib(2) == 24
    assert memory.kv_budget_gib(24, 7.6) == pytest.approx(6.48)
    assert memory.kv_budget_gib(24, 18.0) == pytest.approx(3.6)
    assert memory.kv_budget_gib(24, 30.0) == 0
    assert memory.admitted(212_000, 32_768) == 6


def test_heads_fewer_than_cores_are_held_several_times(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    target = files(tmp_path, "Qwen3ForCausalLM", **shape)
    assert memory.kv_bytes_per_token(target, 1) == 256 * 1024
    assert memory.kv_bytes_per_token(target, 8) == memory.kv_bytes_per_token(target, 32) == 32 * 1024
