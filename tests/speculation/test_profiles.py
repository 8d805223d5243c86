"""What a profile may say, and the exact values that vLLM gets for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline import config, platforms
from paceline.errors import ConfigError
from paceline.speculation.profiles import EMULATED_METHODS, speculative_config, unsupported

GOLDEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ngram": (
        {"num_speculative_tokens": 4},
        {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
    ),
    "suffix": (
        {
            "num_speculative_tokens": 16,
            "suffix_decoding_max_tree_depth": 32,
            "suffix_decoding_max_cached_requests": 0,
            "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.0,
        },
        {
            "method": "suffix",
            "num_speculative_tokens": 16,
            "suffix_decoding_max_tree_depth": 32,
            "suffix_decoding_max_cached_requests": 0,
            "suffix_decoding_max_spec_factor": 2.0,
            "suffix_decoding_min_token_prob": 0.0,
        },
    ),
    "draft_model": (
        {"drafter": "o/d", "use_heterogeneous_vocab": True},
        {"method": "draft_model", "num_speculative_tokens": 6, "model": "o/d", "use_heterogeneous_vocab": True},
    ),
    "eagle3": (
        {"drafter": "o/head", "num_speculative_tokens": 3},
        {"method": "eagle3", "num_speculative_tokens": 3, "model": "o/head"},
    ),
    "mtp": ({"num_speculative_tokens": 1}, {"method": "mtp", "num_speculative_tokens": 1}),
    "dflash": (
        {"drafter": "o/flash", "num_speculative_tokens": 15},
        {"method": "dflash", "num_speculative_tokens": 15, "model": "o/flash"},
    ),
}


def problem(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config.parse({"speculation": {"s": values}}, "file")
    return caught.value.message


@pytest.mark.parametrize("method", GOLDEN)
def test_the_values_of_each_method(method: str) -> None:
    settings, values = GOLDEN[method]
    assert speculative_config(config.Speculation.model_validate({"method": method, **settings})) == values


def test_none_and_what_is_left_to_vllm() -> None:
    assert speculative_config(config.Speculation()) is None
    suffix = config.Speculation(method="suffix")
    assert speculative_config(suffix) == {"method": "suffix", "num_speculative_tokens": 6}
    own_head = config.Speculation(method="mtp", drafter="o/mtp", num_speculative_tokens=2)
    assert speculative_config(own_head) == {"method": "mtp", "num_speculative_tokens": 2, "model": "o/mtp"}


@pytest.mark.parametrize("platform", ["cpu", "cuda", "emulated"])
@pytest.mark.parametrize("method", GOLDEN)
def test_the_command_of_each_platform(platform: str, method: str) -> None:
    settings, values = GOLDEN[method]
    profile = config.Speculation.model_validate({"method": method, **settings})
    engine = config.Engine.model_validate({"model": "m", "platform": platform})
    if platform == "emulated" and method not in EMULATED_METHODS:
        with pytest.raises(ConfigError, match=f"{platform} does not run method {method}"):
            platforms.plan(engine, profile, "o/m", Path("/v/bin/python"), 1)
        return
    command = platforms.plan(engine, profile, "o/m", Path("/v/bin/python"), 1).command
    assert json.loads(command[command.index("--speculative-config") + 1]) == values
    assert command[command.index("--per-request-spec-decode-metrics") + 1] == "summary"


def test_the_emulator_imitates_two_methods() -> None:
    for method in ("suffix", "mtp"):
        reason = unsupported(config.Speculation.model_validate({"method": method}), "emulated")
        assert f"emulated does not run method {method}" in reason
    assert unsupported(config.Speculation(), "emulated") == ""
    assert unsupported(config.Speculation(method="mtp"), "") == ""


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"method": "draft_model"}, "speculation.s: method draft_model needs `drafter = ...`"),
        ({"method": "eagle3"}, "method eagle3 needs `drafter = ...`"),
        ({"method": "dflash"}, "method dflash needs `drafter = ...`"),
        (
            {"method": "ngram", "drafter": "o/d"},
            "`drafter` belongs to method draft_model or eagle3 or mtp or dflash",
        ),
        ({"drafter": "o/d"}, "not none; remove it"),
        ({"method": "suffix", "prompt_lookup_min": 3}, "`prompt_lookup_min` belongs to method ngram, not suffix"),
        ({"method": "ngram", "suffix_decoding_max_cached_requests": 0}, "belongs to method suffix, not ngram"),
        ({"method": "eagle3", "drafter": "o/d", "use_heterogeneous_vocab": True}, "belongs to method draft_model"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "`prompt_lookup_min` is more than"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "s.num_speculative_tokens: Input should be greater"),
        ({"method": "eagle"}, "speculation.s.method: Input should be 'none', 'ngram'"),
    ],
)
def test_what_does_not_belong_together_is_refused(values: dict[str, Any], part: str) -> None:
    assert part in problem(**values)


def test_the_other_lookup_length_gives_way() -> None:
    assert config.Speculation(method="ngram", prompt_lookup_max=1).lookup == (1, 1)
    assert config.Speculation(method="ngram", prompt_lookup_min=8).lookup == (8, 8)
    assert config.Speculation(method="ngram", prompt_lookup_min=8, prompt_lookup_max=9).lookup == (8, 9)


@pytest.mark.engine
def test_vllm_knows_every_key() -> None:
    used = sorted({key for _, values in GOLDEN.values() for key in values})
    script = (
        "import dataclasses, sys\n"
        "from vllm.config.speculative import SpeculativeConfig\n"
        "print(sorted(set(sys.argv[1:]) - {field.name for field in dataclasses.fields(SpeculativeConfig)}))"
    )
    command = [os.environ["PACELINE_TEST_ENGINE_PYTHON"], "-c", script, *used]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
