"""`python -m paceline.emulator`: start one emulated server."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from paceline.emulator import neuron_rules
from paceline.emulator.neuron import Limits, NeuronSettings, neuron_settings
from paceline.emulator.neuron_start import Started, log, start_up
from paceline.emulator.neuron_times import DEFAULT_MODEL, table
from paceline.emulator.replies import read_script
from paceline.emulator.server import EmulatorServer
from paceline.emulator.settings import VERSIONS, Settings, Timing
from paceline.errors import ConfigError
from paceline.transcript.builtin import NAME

VERSION, NEURON_VERSION = "0.32", "0.29"
TIMES = ("prefill_token", "prefill_fixed", "step", "step_per_request", "step_per_draft")


def make_parser() -> argparse.ArgumentParser:
    """The options. Those that vLLM has too carry its names."""
    parser = argparse.ArgumentParser(prog="python -m paceline.emulator", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free port; the address is printed")
    add("--emulate-version", choices=sorted(VERSIONS), help="0.32; with a neuron_config 0.29")
    add("--model", default=NAME, help="model folder with tokenizer.json, or the built-in one")
    add("--served-model-name", default=NAME)
    add("--max-model-len", type=int, default=32_768)
    add("--max-num-seqs", type=int, default=8)
    add("--max-num-batched-tokens", type=int, default=2048)
    add("--block-size", type=int, default=32)
    add(
        "--num-gpu-blocks-override",
        type=int,
        help="KV blocks; at least 4096 and two longest requests if not given",
    )
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    add("--no-enable-prefix-caching", action="store_true")
    add("--additional-config", type=json.loads, help="with neuron_config: the rules of vLLM's Neuron plugin")
    add("--tensor-parallel-size", type=int, default=1, help="of a neuron_config: forces a recompilation")
    add("--neuron-times", choices=sorted(table()["models"]), help="whose published figures give the times")
    add("--speculative-config", type=json.loads, default={}, help="method ngram or draft_model, as vLLM's JSON")
    add("--acceptance", type=_rates, default=(), help="share of steps that accept 1, 2, ... tokens, e.g. 0.9,0.8")
    add("--enable-prompt-tokens-details", action="store_true")
    add("--enable-force-include-usage", action="store_true")
    add("--enable-per-request-metrics", action="store_true")
    add("--per-request-spec-decode-metrics", choices=("off", "summary", "detailed"), default="off")
    add("--script", type=Path, help="scripted replies: a JSON array of rules, or one per line")
    add("--reply-tokens", type=int, default=64, help="length of a reply without a script")
    add("--seed", type=int, default=0)
    add("--counts-file", type=Path, help="append the true counts of each ended request as a JSON line")
    times = Timing()
    add("--prefill-token-seconds", type=float, default=times.prefill_token)
    add("--prefill-fixed-seconds", type=float, default=times.prefill_fixed)
    add("--step-seconds", type=float, default=times.step)
    add("--step-per-request-seconds", type=float, default=times.step_per_request)
    add("--step-per-draft-seconds", type=float, default=times.step_per_draft)
    add("--time-scale", type=float, default=times.scale, help="0: no waiting at all")
    return parser


def to_settings(options: argparse.Namespace) -> Settings:
    """Settings of parsed options. Raises `ValueError` for a combination that a server would refuse."""
    plugin = options.additional_config is not None
    features = VERSIONS[options.emulate_version or (NEURON_VERSION if plugin else VERSION)]
    speculation: dict[str, Any] = options.speculative_config
    settings = Settings(
        model_name=options.served_model_name,
        features=features,
        model_path=options.model,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        block_size=options.block_size,
        num_blocks=options.num_gpu_blocks_override or _default_blocks(options.max_model_len, options.block_size),
        priority_scheduling=options.scheduling_policy == "priority",
        prefix_caching=not options.no_enable_prefix_caching,
        neuron=_neuron(options) if plugin else None,
        spec_method=speculation.get("method", "none"),
        spec_tokens=speculation.get("num_speculative_tokens", 0),
        lookup=(speculation.get("prompt_lookup_min", 2), speculation.get("prompt_lookup_max", 5)),
        acceptance=options.acceptance,
        prompt_tokens_details=options.enable_prompt_tokens_details,
        force_include_usage=options.enable_force_include_usage,
        per_request_metrics=options.enable_per_request_metrics,
        spec_metrics=options.per_request_spec_decode_metrics,
        timing=Timing(
            prefill_token=options.prefill_token_seconds,
            prefill_fixed=options.prefill_fixed_seconds,
            step=options.step_seconds,
            step_per_request=options.step_per_request_seconds,
            step_per_draft=options.step_per_draft_seconds,
            scale=options.time_scale,
        ),
        reply_tokens=options.reply_tokens,
        seed=options.seed,
        counts_file=options.counts_file,
    )
    if settings.neuron:
        for warning in neuron_rules.check(settings):
            log(f"{warning.rule}: {warning.statement} ({warning.remedy})", "WARNING")
    return settings


async def serve(settings: Settings, script: Path | None, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; prints one JSON line with the address when ready."""
    rules = read_script(script) if script else []
    started = await start_up(settings, settings.neuron) if settings.neuron else Started()
    server = EmulatorServer(settings, rules, started)
    # A client that goes away cancels its handler, which aborts its request.
    runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    listener = socket.create_server((host, port))
    await web.SockSite(runner, listener).start()
    address = f"http://{host}:{listener.getsockname()[1]}"
    ready = {"url": address, "model": settings.model_name, "note": "emulated: no model runs"}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Entry point."""
    parser = make_parser()
    options = parser.parse_args()
    try:
        settings = to_settings(options)
        asyncio.run(serve(settings, options.script, options.host, options.port))
    except (ConfigError, OSError, ValueError) as error:
        parser.error(str(error))


def _neuron(options: argparse.Namespace) -> NeuronSettings:
    """Raises `ValueError` for times of the other model, which would have no effect."""
    times = Timing()
    for name in TIMES:
        if getattr(options, f"{name}_seconds") != getattr(times, name):
            raise ValueError(f"{name}-seconds: with a neuron_config times come from --neuron-times; leave it out")
    limits = Limits(
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        prefix_caching=not options.no_enable_prefix_caching,
    )
    root = os.environ.get("VLLM_CACHE_ROOT")
    return neuron_settings(
        options.additional_config,
        limits,
        tensor_parallel_size=options.tensor_parallel_size,
        drafter=options.speculative_config.get("model", ""),
        cache=Path(root) if root else None,
        times=options.neuron_times or DEFAULT_MODEL,
    )


def _default_blocks(max_model_len: int, block_size: int) -> int:
    return max(4096, 2 * -(-max_model_len // block_size))


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(rate) for rate in text.split(","))


if __name__ == "__main__":
    main()
