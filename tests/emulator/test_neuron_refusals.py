"""What a server under the Neuron plugin's rules refuses: starts, and requests."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from tests.emulator.conftest import Launch, Start
from tests.emulator.test_neuron_process import EAGLE3, GREEDY, flags

from paceline.emulator.__main__ import make_parser, to_settings
from paceline.errors import ConfigError


def parsed(config: dict[str, Any], *more: str) -> argparse.Namespace:
    """The options of a command line."""
    return make_parser().parse_args(flags(config, *more))


@pytest.mark.parametrize(
    ("config", "body", "part"),
    [
        (GREEDY, {"temperature": 0.7}, "compiled in as greedy"),
        (GREEDY, {"temperature": None}, "compiled in as greedy"),
        (GREEDY, {"structured_outputs": {"json": {}}}, "enable_structured_outputs"),
        (GREEDY, {"response_format": {"type": "json_object"}}, "enable_structured_outputs"),
        (GREEDY, {"response_format": {"type": "text"}}, ""),
        ({"on_device_sampling_config": {}}, {"temperature": 0.7}, ""),
        ({}, {"temperature": 0.7}, ""),
        (GREEDY | {"enable_structured_outputs": True}, {"structured_outputs": {"json": {}}}, ""),
    ],
)
async def test_requests_that_were_not_compiled_in_are_refused(
    start: Start, config: dict[str, Any], body: dict[str, Any], part: str
) -> None:
    one = await start(neuron=to_settings(parsed(config)).neuron)
    status, _, answer = await one.post({"prompt": [1, 2], "temperature": 0, "max_tokens": 1} | body)
    assert status == (400 if part else 200)
    assert part in answer.decode()


NGRAM = '{"method":"ngram","num_speculative_tokens":3}'
DFLASH = '{"method":"dflash","model":"/models/head","num_speculative_tokens":7}'
DFLASH_FLAGS = [
    "--max-num-batched-tokens",
    "4096",
    "--num-gpu-blocks-override",
    "256",
    "--no-enable-prefix-caching",
]


@pytest.mark.parametrize(
    ("config", "more", "part"),
    [
        (GREEDY, ["--speculative-config", NGRAM], r"neuron\.trained-heads-only.*eagle3 and dflash only"),
        (GREEDY, ["--speculative-config", DFLASH], r"neuron\.dflash-caching"),
        (GREEDY, ["--speculative-config", DFLASH, *DFLASH_FLAGS], "dflash of the plugin is not emulated"),
        ({}, ["--speculative-config", json.dumps(EAGLE3)], r"neuron\.spec-sampling"),
        (GREEDY, ["--max-num-batched-tokens", "600"], r"neuron\.segment-size.*no kernel for segments of 600"),
        (GREEDY | {"num_seqs_buckets": [1]}, [], r"neuron\.largest-decode-bucket"),
        (GREEDY | {"num_batched_tokens_buckets": [256]}, [], r"neuron\.segment-bucket"),
        (GREEDY | {"decode_context_length_buckets": [100]}, [], r"neuron\.context-buckets"),
        ({"enable_structured_outputs": True}, [], r"neuron\.structured-sampling"),
        (GREEDY | {"quantization": "mxfp8"}, [], "quantization"),
        (GREEDY, ["--step-seconds", "1"], "step-seconds|step_seconds"),
    ],
)
def test_a_start_that_a_rule_forbids_ends(config: dict[str, Any], more: list[str], part: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=part):
        to_settings(parsed(config, *more))


async def test_the_command_says_which_rule(launch: Launch) -> None:
    given = json.dumps({"neuron_config": GREEDY})
    process = await launch("--additional-config", given, "--speculative-config", NGRAM)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert "neuron.trained-heads-only: neuron does not run method ngram" in errors.decode()
