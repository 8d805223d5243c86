"""`paceline serve`: run the runtime until a stop signal."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from paceline import config, log
from paceline.cli.failure import clear_errors

_CONFIG = typer.Option(
    "--config", "-c", help="Configuration file; default: $PACELINE_CONFIG, then ./paceline.toml."
)


@clear_errors
def serve(
    config_path: Annotated[Path | None, _CONFIG] = None,
    *,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write address and ports here as JSON once the server accepts calls.")
    ] = None,
) -> None:
    """Serve the gRPC API until SIGINT or SIGTERM; a second signal ends running steps at once."""
    settings = config.load(config_path)
    log.configure(settings.log)
    try:
        asyncio.run(_serve(settings, ready_file))
    except asyncio.CancelledError:
        raise typer.Exit(1) from None


async def _serve(settings: config.Settings, ready_file: Path | None) -> None:
    from paceline.app import open_runtime  # noqa: PLC0415 - heavy; `--help` and bad settings need not wait for it

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()

    def stopping() -> None:
        if stop.is_set() and main:
            main.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping)
    async with open_runtime(settings) as runtime:
        if ready_file:
            host = settings.server.listen.rpartition(":")[0]
            facts = {
                "address": f"{host}:{runtime.port}",
                "port": runtime.port,
                "metrics_port": runtime.metrics_port,
            }
            await asyncio.to_thread(_write, ready_file, json.dumps(facts))
        await stop.wait()


def _write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.write_text(text)
    unfinished.replace(path)
