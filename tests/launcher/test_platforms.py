"""Command lines and variables, without starting anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import config, platforms
from paceline.engines.launcher import environment
from paceline.errors import ModelError
from paceline.platforms import cpu
from paceline.platforms.plan import LaunchPlan

NGRAM = config.Speculation(method="ngram", num_speculative_tokens=4)


def make_plan(
    speculation: config.Speculation | None = None, model: str = "o/m", python: str = "/v/bin/python", **values: Any
) -> LaunchPlan:
    return platforms.plan(config.Engine(model="m", **values), speculation, model, Path(python), 8123)


def option(plan: LaunchPlan, name: str) -> str | None:
    return plan.command[plan.command.index(name) + 1] if name in plan.command else None


def test_cpu_command() -> None:
    plan = make_plan(NGRAM, platform="cpu", max_concurrent_steps=3, max_model_len=2048, kv_cache_gib=1.5)
    assert plan.command[:3] == ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    assert option(plan, "--host") == "127.0.0.1"
    assert option(plan, "--port") == "8123"
    assert option(plan, "--served-model-name") == "m"
    assert option(plan, "--block-size") == "32"
    assert option(plan, "--max-num-seqs") == "3"
    assert option(plan, "--max-model-len") == "2048"
    assert option(plan, "--kv-cache-memory-bytes") == str(3 << 29)
    assert option(plan, "--per-request-spec-decode-metrics") == "summary"
    assert json.loads(option(plan, "--speculative-config") or "") == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }
    assert plan.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.mark.parametrize("speculation", [None, config.Speculation(method="none")])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_no_speculation_no_speculation_metrics(platform: str, speculation: config.Speculation | None) -> None:
    plan = make_plan(speculation, platform=platform)
    assert "--per-request-spec-decode-metrics" not in plan.command
    assert "--speculative-config" not in plan.command


def test_cuda_keeps_the_defaults_of_vllm() -> None:
    plan = make_plan(platform="cuda", extra_args=["--tensor-parallel-size", "2"])
    assert option(plan, "--dtype") == "auto"
    assert option(plan, "--block-size") is None
    assert option(plan, "--kv-cache-memory-bytes") is None
    assert plan.command[-2:] == ("--tensor-parallel-size", "2")
    assert plan.preload == ()


def test_a_drafter_is_found_or_refused() -> None:
    with pytest.raises(ModelError, match="no such folder"):
        make_plan(config.Speculation(method="draft_model", drafter="nothing"), platform="cpu")
    plan = make_plan(config.Speculation(method="draft_model", drafter="o/d"), platform="cpu")
    assert json.loads(option(plan, "--speculative-config") or "")["model"] == "o/d"


def test_the_hub_is_asked_only_for_what_is_not_here(tmp_path: Path) -> None:
    draft = config.Speculation(method="draft_model", drafter="o/d")
    local_draft = config.Speculation(method="draft_model", drafter=str(tmp_path))
    assert "HF_HUB_OFFLINE" not in make_plan(platform="cpu").env
    assert "HF_HUB_OFFLINE" not in make_plan(draft, model=str(tmp_path), platform="cpu").env
    assert make_plan(local_draft, model=str(tmp_path), platform="cpu").env["HF_HUB_OFFLINE"] == "1"


def test_dtype_follows_the_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 avx512f\n")
    assert cpu.default_dtype(cpu.features(cpuinfo)) == "float32"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 avx512_bf16\n")
    assert cpu.default_dtype(cpu.features(cpuinfo)) == "bfloat16"
    assert cpu.features(tmp_path / "none") == frozenset()
    assert option(make_plan(platform="cpu", dtype="float16"), "--dtype") == "float16"


def test_kv_cache_default() -> None:
    assert cpu.default_kv_cache_gib(8 << 30) == 2
    assert cpu.default_kv_cache_gib(256 << 30) == 4


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    plan = make_plan(platform="cpu", python=str(tmp_path / "bin" / "python"))
    engine = config.Engine(model="m", platform="cpu", env={"MINE": "1"})
    monkeypatch.setenv("PACELINE_LEDGER__URL", "postgresql://user:secret@host/db")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("LD_PRELOAD", "")
    env = environment(plan, engine)
    assert (env["MINE"], env["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "nobind")
    assert env["LD_PRELOAD"] == str(library)
    assert not {"PACELINE_LEDGER__URL", "PYTHONPATH"} & env.keys()
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1")
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    env = environment(plan, engine)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert env["LD_PRELOAD"].split() == [str(library), "/lib/other.so"]
    engine = config.Engine(model="m", platform="cpu", env={"VLLM_CPU_OMP_THREADS_BIND": "auto"})
    assert environment(plan, engine)["VLLM_CPU_OMP_THREADS_BIND"] == "auto"
