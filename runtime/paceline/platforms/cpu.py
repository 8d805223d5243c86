"""vLLM on CPUs (x86-64 and Arm Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import psutil

from paceline import config
from paceline.platforms.plan import GIB, LaunchPlan, vllm_command, vllm_env
from paceline.rules.table import table

CPUINFO = Path("/proc/cpuinfo")
BLOCK_SIZE = 32
"""vLLM's CPU default of 128 would leave short prompts without a full block to reuse."""
MOST_KV_CACHE_GIB = 4.0
BFLOAT16_FEATURES = frozenset({"avx512_bf16", "amx_bf16"})


def plan(
    engine: config.Engine, speculation: config.Speculation | None, model_path: str, python: Path, port: int
) -> LaunchPlan:
    """The command and environment of a server on this machine's CPU.

    Nothing is compiled (`--enforce-eager`): compiling takes longer than it saves on small machines. OpenMP threads
    are not bound to cores (measured: 1.3 to 1.5 times as fast as vLLM's own choice on two cores).
    """
    kv_cache_gib = engine.kv_cache_gib or default_kv_cache_gib(psutil.virtual_memory().total)
    command = vllm_command(engine, speculation, model_path, python, port)
    command += ["--dtype", engine.dtype or default_dtype(features()), "--enforce-eager"]
    command += ["--block-size", str(engine.block_size or BLOCK_SIZE)]
    command += ["--kv-cache-memory-bytes", str(int(kv_cache_gib * GIB))]
    env = vllm_env(speculation, model_path) | {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return LaunchPlan((*command, *engine.extra_args), env, openmp(python))


def greedy_only(speculation: config.Speculation | None) -> str:
    """Why only greedy steps give sense; empty if sampling works.

    vLLM 0.32's CPU build loses temperature and top-p of a step that drafts: the kernel that spreads them over the
    drafted tokens (`vllm.utils.cpu_triton_utils`) writes into a converted copy. Sampled steps then return noise,
    and were seen to disturb greedy ones beside them.
    """
    if speculation is None or speculation.method == "none":
        return ""
    return table()["cpu.greedy-only"].statement


def default_dtype(cpu_features: AbstractSet[str]) -> str:
    """bfloat16 where the CPU computes with it, else float32.

    Measured on two Zen 4 cores with avx512_bf16 (0.5B, ngram, about 700 prompt tokens; best of two rounds on a
    machine shared with other work): bfloat16 prefills 1.3 to 1.8 times and generates 1.3 to 1.5 times as fast, in
    half the memory. On a CPU without such instructions it was many times slower. Other CPUs may differ.
    """
    return "bfloat16" if cpu_features & BFLOAT16_FEATURES else "float32"


def default_kv_cache_gib(memory_bytes: int) -> float:
    """A quarter of the memory, at most 4 GiB. vLLM itself would take 92 % of the machine."""
    return min(MOST_KV_CACHE_GIB, memory_bytes / 4 / GIB)


def features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """The CPU's instruction sets in Linux's names; empty where the system does not tell."""
    flags = _values(cpuinfo, "flags", "Features")
    return frozenset(next(flags, "").split())


def model_name(cpuinfo: Path = CPUINFO) -> str:
    """What the CPU calls itself; `unknown CPU` where the system does not tell."""
    return next(_values(cpuinfo, "model name"), "").strip() or "unknown CPU"


def _values(cpuinfo: Path, *names: str) -> Iterator[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return
    yield from (line.partition(":")[2] for line in lines if line.startswith(names))


def openmp(python: Path) -> tuple[Path, ...]:
    """Intel's OpenMP library in the engine's venv: preloaded, it makes vLLM several times as fast."""
    return tuple(path for path in [python.parent.parent / "lib" / "libiomp5.so"] if path.exists())
