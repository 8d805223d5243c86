"""Servers with scripted replies, and the adapter in front of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.engines.scripted import ScriptedServer

from paceline.engines.base import GenerateRequest, GenerationEnd
from paceline.engines.vllm_http import VllmHttpEngine
from paceline.workflow.model import Sampling

MakeEngine = Callable[..., VllmHttpEngine]


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A server without scripts."""
    scripted = ScriptedServer()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def make_engine(server: ScriptedServer) -> AsyncIterator[MakeEngine]:
    """Makes adapters in front of the server. At the end they are closed and no task of theirs is left."""
    before = asyncio.all_tasks()
    engines: list[VllmHttpEngine] = []

    def make(**options: object) -> VllmHttpEngine:
        engines.append(VllmHttpEngine(server.url, **options))  # type: ignore[arg-type]  # checked by the class
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()
    own = {asyncio.current_task(), *before}
    left = [task for task in asyncio.all_tasks() - own if "ScriptedServer" not in repr(task)]
    assert not left


@pytest.fixture
def engine(make_engine: MakeEngine) -> VllmHttpEngine:
    """One adapter with its defaults."""
    return make_engine(served_model_name="coder")


ENGINE_FLAGS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "4"),
    *("--block-size", "32", "--served-model-name", "coder", "--host", "127.0.0.1"),
    *("--enable-prompt-tokens-details", "--per-request-spec-decode-metrics", "summary", "--speculative-config"),
    '{"method":"ngram","num_speculative_tokens":6,"prompt_lookup_min":2,"prompt_lookup_max":5}',
)


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real vLLM with ngram speculation, all reports on and blocks of 32 tokens."""
    python, model = (os.environ.get(f"PACELINE_TEST_{name}", "") for name in ("ENGINE_PYTHON", "MODEL"))
    if not python or not model:
        pytest.fail(
            "set PACELINE_TEST_ENGINE_PYTHON to the Python of a venv with vLLM, and PACELINE_TEST_MODEL to the"
            " folder of a Qwen2.5-Coder model"
        )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--port", str(port)]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    openmp = Path(python).parents[1] / "lib" / "libiomp5.so"
    if openmp.exists():
        variables["LD_PRELOAD"] = str(openmp)
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    process = subprocess.Popen(
        [*command, *ENGINE_FLAGS],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        copier = threading.Thread(target=_wait_until_started, args=(process, log, started := threading.Event()))
        copier.start()
        if not started.wait(300) or process.poll() is not None:
            pytest.fail(f"vLLM did not start; the end of its log:\n{log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        copier.join()


def _wait_until_started(process: subprocess.Popen[bytes], log: Path, started: threading.Event) -> None:
    """Copy the server's output to the log; set the event when it has started or ended."""
    assert process.stdout is not None
    with log.open("wb") as file, process.stdout as lines:
        for line in lines:
            file.write(line)
            file.flush()
            if b"Application startup complete" in line:
                started.set()
    started.set()


def request_for(
    prompt: bytes = b"[1,2,3]",
    *,
    max_tokens: int = 8,
    sampling: Sampling | None = None,
    stop_token_ids: tuple[int, ...] = (),
    cache_salt: str = "tenant-a",
    session_id: str = "workflow-1",
) -> GenerateRequest:
    """A request with these parts and plain defaults."""
    return GenerateRequest(
        request_id="request-1",
        prompt_json=prompt,
        prompt_tokens=prompt.count(b",") + 1,
        max_tokens=max_tokens,
        sampling=sampling or Sampling(temperature=0.0),
        stop_token_ids=stop_token_ids,
        cache_salt=cache_salt,
        session_id=session_id,
    )


async def collect(engine: VllmHttpEngine, request: GenerateRequest) -> tuple[list[int], GenerationEnd]:
    """All ids of a request and its end; the end comes once and last."""
    ids: list[int] = []
    ends: list[GenerationEnd] = []
    async with aclosing(engine.generate(request)) as stream:
        async for item in stream:
            assert not ends
            if isinstance(item, GenerationEnd):
                ends.append(item)
            else:
                ids += item.token_ids
    assert len(ends) == 1
    return ids, ends[0]
