"""An emulated engine with a section `neuron`: the same flags as on the device, and the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.platforms.engines import EAGLE3, PLUGINS, engine_values

from paceline import config, platforms
from paceline.emulator.__main__ import make_parser, to_settings
from paceline.emulator.settings import VERSIONS
from paceline.errors import ConfigError
from paceline.platforms import emulated, kubernetes
from paceline.speculation import checks

NAMES = ("neuron", "emulated")
SECTION = {"num_gpu_blocks_override": 1024, "num_seqs_buckets": [2, 4]}


def engine(platform: str = "emulated", plugin: str = PLUGINS["0.29"], **more: Any) -> config.Engine:
    """The tests' engine on Neuron, on another platform."""
    return config.Engine.model_validate(
        engine_values(plugin, SECTION, structured_outputs=False) | {"platform": platform} | more
    )


def plan(one: config.Engine, profile: config.Speculation | None) -> platforms.LaunchPlan:
    """Its command, as an owner of the models writes it."""
    return platforms.as_written(one, profile, "emulated", Path("python"), 8000)


def test_the_emulator_takes_what_the_plugin_takes() -> None:
    profile = config.Speculation.model_validate(EAGLE3)
    on_device, here = plan(engine("neuron"), profile), plan(engine(), profile)
    shared = ["--additional-config", "--speculative-config", "--max-num-batched-tokens"]
    shared += ["--num-gpu-blocks-override", "--tensor-parallel-size", "--block-size", "--max-num-seqs"]
    for flag in shared:
        assert value(here, flag) == value(on_device, flag)
    assert here.env["VLLM_CACHE_ROOT"] == on_device.env["VLLM_CACHE_ROOT"]
    settings = to_settings(make_parser().parse_args(here.command[3:]))
    assert settings.features.version == "0.29.0"
    assert settings.neuron is not None
    assert (settings.spec_method, settings.spec_tokens, settings.neuron.batch_buckets) == ("eagle3", 3, (2, 4))
    assert settings.neuron.prefill_buckets == (2048,)


def value(plan: platforms.LaunchPlan, flag: str) -> str:
    """What follows a flag."""
    return plan.command[plan.command.index(flag) + 1]


def test_without_the_section_nothing_is_different() -> None:
    plain = config.Engine.model_validate({"model": "m", "platform": "emulated", "block_size": 16})
    command = plan(plain, None).command
    assert "--additional-config" not in command
    assert command[-2:] == ("--block-size", "16")
    with pytest.raises(ConfigError, match="emulated does not run method eagle3"):
        plan(plain, config.Speculation.model_validate(EAGLE3))


def test_a_pod_without_the_device_asks_for_none() -> None:
    assert kubernetes.resources(engine()) == {}
    assert kubernetes.resources(engine("neuron")) == {"resources": {"limits": {"aws.amazon.com/neuroncore": 8}}}
    both = [engine(name, PLUGINS["0.24"]) for name in NAMES]
    images = [kubernetes.fragment("one", one, None, "m", port=1, image="") for one in both]
    assert ["public.ecr.aws" in text for text in images] == [True, False]


def test_only_emulated_versions_can_be_asked_for() -> None:
    assert set(emulated.VERSIONS) == VERSIONS.keys()
    with pytest.raises(ConfigError, match=r"imitates vLLM 0\.24, 0\.29, 0\.32, not 0\.21"):
        plan(engine(plugin=PLUGINS["0.21"]), None)


def test_the_rules_are_checked_before_the_start() -> None:
    ngram = config.Speculation.model_validate({"method": "ngram"})
    with pytest.raises(ConfigError, match=r"neuron\.trained-heads-only"):
        checks.check_engine(engine(), ngram, "emulated")
    assert [item.rule for item in checks.check_engine(engine(max_concurrent_steps=4), None, "emulated")] == []
    assert platforms.greedy_only(engine(), None)
    assert not platforms.greedy_only(config.Engine.model_validate({"model": "m", "platform": "emulated"}), None)
