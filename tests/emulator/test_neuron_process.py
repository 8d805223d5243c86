"""The command with a `neuron_config`: cold and warm start, segments, metrics and refusals over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.emulator.conftest import Launch, ready_url

from paceline.engines.progress import step

GREEDY: dict[str, Any] = {"on_device_sampling_config": {"all_greedy": True}}
EAGLE3 = {"method": "eagle3", "model": "/models/head", "num_speculative_tokens": 3}


def flags(neuron_config: dict[str, Any], *more: str) -> list[str]:
    """A small server that waits for nothing."""
    given = [
        "--time-scale",
        "0",
        "--max-model-len",
        "4096",
        "--max-num-seqs",
        "2",
        "--max-num-batched-tokens",
        "512",
    ]
    return [*given, "--additional-config", json.dumps({"neuron_config": neuron_config}), *more]


async def metrics(http: aiohttp.ClientSession, url: str) -> dict[str, dict[str, float]]:
    """The plugin's metrics: name, then bucket (empty without)."""
    async with http.get(url + "/metrics") as reply:
        text = await reply.text()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm_neuron:") and "le" not in sample.labels:
                short = sample.name.removeprefix("vllm_neuron:")
                found.setdefault(short, {})[sample.labels.get("bucket_name", "")] = sample.value
                assert sample.labels["model_name"] == "emulated"
    return found


async def complete(http: aiohttp.ClientSession, url: str, prompt: list[int], **body: Any) -> dict[str, Any]:
    """The answer to a greedy request."""
    values = {"prompt": prompt, "temperature": 0, "max_tokens": 1} | body
    async with http.post(url + "/v1/completions", json=values) as reply:
        answer: dict[str, Any] = await reply.json()
        return answer


def count(log: list[str], text: str) -> int:
    """Lines with a text."""
    return len([line for line in log if text in line])


async def started(process: asyncio.subprocess.Process) -> tuple[list[str], dict[str, dict[str, float]]]:
    """The log up to the ready line, and the metrics then; ends the server."""
    url = await ready_url(process)
    async with aiohttp.ClientSession() as http:
        values = await metrics(http, url)
    process.terminate()
    _, errors = await process.communicate()
    return errors.decode().splitlines(), values


async def test_a_second_start_finds_its_graphs(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prefill graph, and for batches of 1 and 2 three graphs each; another K compiles anew."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    common = flags(GREEDY, "--speculative-config")
    k3, k4 = json.dumps(EAGLE3), json.dumps(EAGLE3 | {"num_speculative_tokens": 4})
    cold, cold_metrics = await started(await launch(*common, k3))
    warm, warm_metrics = await started(await launch(*common, k3))
    other, _ = await started(await launch(*common, k4))
    assert [count(log, "Compiling a graph") for log in (cold, warm, other)] == [7, 0, 7]
    assert [count(log, "in the compile cache") for log in (cold, warm, other)] == [0, 7, 0]
    assert len(list((tmp_path / "neuron/compile_cache/emulated").glob("*.json"))) == 14
    assert cold_metrics["compilation_time_seconds"] == {"": 7 * 47.75}
    assert cold_metrics["startup_time_seconds"] == {"": 7 * 47.75 + 109}
    assert warm_metrics["compilation_time_seconds"] == {"": 0}
    assert warm_metrics["model_load_time_seconds"] == {"": 109}
    assert warm_metrics["model_load_size_bytes"] == {"": 16.06e9}
    assert any("a model from published figures, not a measurement" in line for line in cold)
    announced = [shown for line in cold if (shown := step(line))]
    assert announced[0] == ("loading", "loading weights")
    assert announced[-1] == ("compiling", "compiling, graph 7 of 7")


async def test_without_a_cache_folder_each_start_compiles(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    for _ in range(2):
        log, _ = await started(await launch(*flags(GREEDY)))
        assert count(log, "Compiling a graph") == 3


async def test_only_what_is_missing_is_compiled(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
    await started(await launch(*flags(GREEDY)))
    _, *lost = (tmp_path / "neuron/compile_cache/emulated").glob("*.json")
    for entry in lost:
        entry.unlink()
    log, values = await started(await launch(*flags(GREEDY)))
    assert (len(lost), count(log, "Compiling a graph")) == (2, 2)
    assert values["compilation_time_seconds"] == {"": 2 * 47.75}


async def test_segments_and_padding_are_counted(launch: Launch) -> None:
    url = await ready_url(
        await launch(*flags(GREEDY, "--enable-prompt-tokens-details", "--neuron-times", "qwen3-32b"))
    )
    prompts = [[number % 200 for number in range(first, first + length)] for first, length in ((1, 1), (3, 512))]
    prompts += [[7, 8, *range(250)] * 6]  # 1512 tokens
    async with aiohttp.ClientSession() as http:
        for prompt in prompts:
            await complete(http, url, prompt)
        again = await complete(http, url, prompts[-1], max_tokens=4)
        values = await metrics(http, url)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 1504
        assert values["neff_execution_count_total"] == {"prefill_s512": 1 + 1 + 3 + 1, "decode_b1_c4096": 3}
        assert values["num_batched_tokens_padding_sum"] == {"prefill_s512": 511 + 0 + 24 + 504}
        assert values["num_seqs_padding_sum"] == {"decode_b1_c4096": 0}
        async with http.get(url + "/emulator/kv_events") as reply:
            assert reply.status == 404


async def test_drafting_runs_head_and_target(launch: Launch) -> None:
    options = [
        "--speculative-config",
        json.dumps(EAGLE3),
        "--acceptance",
        "1,1,1",
        "--num-gpu-blocks-override",
        "256",
    ]
    more = ["--per-request-spec-decode-metrics", "summary"]
    given = GREEDY | {"num_seqs_buckets": [2]}
    url = await ready_url(await launch(*flags(given, *options, *more)))
    async with aiohttp.ClientSession() as http:
        answer = await complete(http, url, [1, 2, 3], max_tokens=9)
        values = await metrics(http, url)
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 6
    runs = {"prefill_s512": 1, "decode_b2_c4096_spec": 2, "decode_b2_c4096_draft": 2}
    assert values["neff_execution_count_total"] == runs
    assert values["num_seqs_padding_sum"] == {"decode_b2_c4096_spec": 2}


async def test_a_doubtful_start_says_so(launch: Launch) -> None:
    log, _ = await started(await launch(*flags(GREEDY, "--num-gpu-blocks-override", "128")))
    assert any("WARNING" in line and "neuron.worst-case-admission" in line for line in log)
