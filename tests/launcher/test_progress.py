"""Reading engine logs; the lines are vLLM 0.32's."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.engines.progress import LogReader, cause, step


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "(APIServer pid=1) INFO 11-30 16:31:44 [model.py:733] Resolved architecture: Qwen2ForCausalLM",
            ("loading", "reading Qwen2ForCausalLM"),
        ),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:05<00:05,  5.87s/it]",
            ("loading", "loading weights, 50 %"),
        ),
        (
            "(Worker pid=1) INFO 11-30 16:34:31 [default_loader.py:501] Loading weights took 5.88 seconds",
            ("loading", "weights loaded in 5.88 s"),
        ),
        (
            "(EngineCore pid=1) INFO 11-30 16:34:36 [kv_cache_utils.py:2327] CPU KV cache size: 43,680 tokens",
            ("loading", "KV cache holds 43,680 tokens"),
        ),
        ("INFO 11-30 16:31:44 [backends.py:1] Compiling a graph for 1-8 takes 9.1 s", ("compiling", "compiling")),
        (
            "INFO 12-01 01:01:09 [emulator] Compiling a graph, 3 of 10: decode_b1_c4096_spec",
            ("compiling", "compiling, graph 3 of 10"),
        ),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|████      | 2/5 [00:00<00:00]",
            ("compiling", "capturing CUDA graphs, 40 %"),
        ),
        ("Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.", None),
        ("INFO:     Application startup complete.", None),
    ],
)
def test_step(line: str, expected: tuple[str, str] | None) -> None:
    assert step(line) == expected


def test_the_cause_is_the_engines_own_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "(EngineCore pid=7) ERROR 11-30 16:34:31 [core.py:1] Traceback (most recent call last):\n"
        "(EngineCore pid=7) ERROR 11-30 16:34:31 [core.py:1] ValueError: To serve 4096 tokens, 0.5 GiB is needed\n"
        "(EngineCore pid=7) Process EngineCore:\n"
        "(APIServer pid=1) Traceback (most recent call last):\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}\n"
        "[W1130 16:34:25 utils.cpp:68] Warning: NUMA binding\n"
    )
    assert cause(log) == "ValueError: To serve 4096 tokens, 0.5 GiB is needed"
    log.write_text("api_server.py: error: unrecognized arguments: --nonsense\n")
    assert cause(log) == "api_server.py: error: unrecognized arguments: --nonsense"
    log.write_text("one\nlast words\n\n")
    assert cause(log) == "last words"
    log.write_text("")
    assert cause(log) == "the log is empty"


def test_only_new_lines_are_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\n 10%\r 20%\r")
    reader = LogReader(log)
    assert reader.new_lines() == ["one", " 10%", " 20%"]
    assert reader.new_lines() == []
    with log.open("a") as file:
        file.write("two\n")
    assert reader.new_lines() == ["two"]
