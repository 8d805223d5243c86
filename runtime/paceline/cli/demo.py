"""`paceline demo`: the main job from nothing, on embedded defaults."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline import config, log
from paceline.cli import config_text, doctor, doctor_devices, engine, models
from paceline.cli.config import EXAMPLE_ACCELERATOR, EXAMPLE_INSTANCE, EXAMPLE_PRICE, HEADER
from paceline.cli.failure import clear_errors
from paceline.cli.report import report
from paceline.errors import EngineUnavailable, InvalidArgument
from paceline.routing.placement import ReplicaPhase

MODEL = "qwen2.5-coder-0.5b"
CHECKS = (doctor.system, doctor_devices.processor, doctor.memory, doctor.storage)
REFRESH_SECONDS = 0.25

out = Console(highlight=False, soft_wrap=True)


class DemoEngine(StrEnum):
    """What answers."""

    CPU = "cpu"
    EMULATED = "emulated"


@clear_errors
def demo(
    *,
    kind: Annotated[
        DemoEngine, typer.Option("--engine", help="`emulated` needs no download, and no model runs.")
    ] = DemoEngine.CPU,
    file: Annotated[Path | None, typer.Option(help="Repair this file instead of the demo programs.")] = None,
    tests: Annotated[str | None, typer.Option(help="Command that fails while the file is wrong.")] = None,
) -> None:
    """Repair small programs with a real model: start a runtime and an engine, run the agent, show the costs."""
    if (file is None) != (tests is None):
        raise InvalidArgument("--file and --tests go together", field="file")
    if file and kind is DemoEngine.EMULATED:
        raise InvalidArgument("--file: an emulated engine only knows the demo programs; leave --engine out")
    _describe(kind)
    if kind is DemoEngine.CPU:
        engine.install(engine.Platform.CPU, torch_index=None)
        models.fetch(MODEL, "")
    settings = _settings(kind)
    path = _write(settings)
    log.configure(config.Log(level="error"))
    run = time.strftime("%Y%m%dT%H%M%S")
    code = asyncio.run(_run(settings, _agent_arguments(run, file, tests)))
    out.rule("the ledger's own report of this run")
    report(by=["label:program"], label=[f"run={run}"], file=path)
    out.print(f"Go on with the same configuration and ledger: paceline serve --config {path}")
    raise typer.Exit(code)


def _describe(kind: DemoEngine) -> None:
    table = Table("what", "found", "what to do", title="this machine")
    for check in CHECKS:
        for finding in check(config.Settings()):
            table.add_row(finding.subject, escape(finding.text), escape(finding.remedy))
    out.print(table, soft_wrap=False)
    if kind is DemoEngine.EMULATED:
        out.print("Engine: EMULATED. No model runs, the answers are scripted. About 20 seconds.")
    else:
        out.print(
            f"Engine: vLLM on this CPU with {MODEL}. The first run loads about 2 GB (engine) and 0.5 GB (model), "
            "takes 6 GB of disk and 5 to 9 minutes before the model answers; later runs about 1 minute."
        )


def _settings(kind: DemoEngine) -> config.Settings:
    name = MODEL if kind is DemoEngine.CPU else "emulated"
    options = {"model": name, "platform": kind.value, "speculation": "ngram", "instance_type": EXAMPLE_INSTANCE}
    if kind is DemoEngine.EMULATED:
        options["emulator_script"] = str(_replies())
    return config.parse(
        {
            "server": {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"},
            "ledger": {"url": f"sqlite:///{_folder() / 'ledger.db'}"},
            "models": {name: {"path": name, "sampling_temperature": 0.0}},
            "engines": {"demo": {**options, "max_model_len": 8192, "max_concurrent_steps": 2}},
            "speculation": {"ngram": {"method": "ngram", "num_speculative_tokens": 6}},
            "prices": {name: EXAMPLE_PRICE},
            "accelerators": {EXAMPLE_INSTANCE: EXAMPLE_ACCELERATOR},
        },
        "demo",
    )


def _folder() -> Path:
    folder = config.data_dir() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _replies() -> Path:
    import paceline_agents  # noqa: PLC0415 - only for the place of its data; the runtime never needs the agents

    return Path(paceline_agents.__file__).with_name("demo_replies.json")


def _write(settings: config.Settings) -> Path:
    path = _folder() / "paceline.toml"
    path.write_text(HEADER + config_text.commented(settings))
    return path


def _agent_arguments(run: str, file: Path | None, tests: str | None) -> list[str]:
    what = ["--file", str(file), "--tests", str(tests)] if file else ["--demo"]
    return ["repair", *what, "--label", f"run={run}"]


async def _run(settings: config.Settings, arguments: list[str]) -> int:
    from paceline.app import Runtime, open_runtime  # noqa: PLC0415 - heavy; the checks above come first

    async def wait_ready(runtime: Runtime) -> None:
        (replica,) = runtime.replicas.all()
        begin = time.monotonic()
        with out.status("starting the engine") as status:
            while not runtime.ready.is_set():
                status.update(f"engine: {escape(replica.detail)} ({time.monotonic() - begin:.0f} s)")
                if replica.load.phase is ReplicaPhase.DOWN:
                    raise EngineUnavailable(f"the engine did not start: {replica.detail}")
                with suppress(TimeoutError):
                    await asyncio.wait_for(runtime.ready.wait(), REFRESH_SECONDS)
        info = replica.info
        emulated = " EMULATED: no model runs" if info and info.emulated else ""
        version = info.version if info else "unknown"
        out.print(f"engine ready after {time.monotonic() - begin:.0f} s: vLLM {version}{emulated}")

    async with open_runtime(settings) as runtime:
        await wait_ready(runtime)
        return await _repair(f"127.0.0.1:{runtime.port}", arguments)


async def _repair(target: str, arguments: list[str]) -> int:
    """Run the agent as its users do: a process of its own that knows nothing but the address."""
    command = [sys.executable, "-m", "paceline_agents", *arguments, "--target", target]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await process.wait()
