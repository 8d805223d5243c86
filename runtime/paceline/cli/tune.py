"""`paceline spec tune`: measure real steps on a real engine, with and without speculation."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline import config, log
from paceline.cli.access import Tenant
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.cli.report import labels_of
from paceline.cli.tune_report import Report, check_plot
from paceline.cli.tune_servers import Servers
from paceline.cli.tune_source import Source
from paceline.errors import ConfigError
from paceline.models.catalog import resolve_model
from paceline.speculation.tune import drafts, sample
from paceline.speculation.tune.drafts import Draft, Setting
from paceline.speculation.tune.lookup import Lookup
from paceline.speculation.tune.measure import Bench
from paceline.speculation.tune.results import ResultFile
from paceline.transcript import chat

MOST_K = 64
MOST_AT_ONCE = 1024
ROOM = 256
"""Contexts are rounded up to so many tokens."""


@clear_errors
def tune(
    *,
    target: Annotated[str, typer.Option(help="Model to draft for: folder, hub id or catalog name.")],
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="ngram, suffix, mtp, a smaller model, or METHOD:MODEL for a trained head; repeatable."),
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option(help="Draft as this profile of the configuration, K aside; repeatable.")
    ] = None,
    k: Annotated[str, typer.Option("--k", help="Values of K to measure, beside off.")] = "1,2,4,7,10",
    platform: Annotated[str, typer.Option(help="cpu, cuda or emulated.")] = "cpu",
    engine_python: Annotated[
        str, typer.Option("--engine-python", help="Python of the engine. Default: the installed engine's.")
    ] = "",
    engine_arg: Annotated[
        list[str] | None, typer.Option(help="Argument for the server's command line, as it is; repeatable.")
    ] = None,
    workflow: Annotated[list[str] | None, typer.Option(help="Replay the steps of this workflow.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Replay workflows with this label, NAME=VALUE; needs --tenant.")
    ] = None,
    tenant: Tenant = None,
    steps_file: Annotated[Path | None, typer.Option(help="Replay the steps of this JSONL file.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Most steps to replay, evenly spread.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens to generate per step.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds over all settings.")] = 2,
    concurrency: Annotated[str, typer.Option(help="Steps at once, such as 1,4.")] = "1",
    minutes: Annotated[
        float, typer.Option(min=0, help="Time budget: no server is started that would not fit.")
    ] = 60.0,
    usd_per_hour: Annotated[float | None, typer.Option(min=0, help="Price of the machine.")] = None,
    output: Annotated[Path, typer.Option(help="Measured cells; run again to go on.")] = Path("tune.jsonl"),
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves into PATH.png and PATH.html; needs the extra plot.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    file: ConfigFile = None,
) -> None:
    """Replay real steps without speculation and with several drafters and K, and recommend what paid."""
    log.configure(config.Log(level="warning"))
    if plot:
        check_plot(plot)
    compared = _drafts(drafter or [], profile or [], file)
    ks, at_once = _numbers("--k", k, MOST_K), _numbers("--concurrency", concurrency, MOST_AT_ONCE)
    servers = Servers(target, tuple(compared), platform, engine_python, tuple(engine_arg or ()), at_once[-1])
    servers.check(ks[-1])
    source = Source(tuple(workflow or ()), labels_of(label or []), tenant, steps_file, steps, max_tokens)
    chosen, record = source.read(resolve_model(target), file)
    if at_once[-1] > len(chosen):
        raise ConfigError(f"--concurrency {at_once[-1]}: there are {len(chosen)} steps; take fewer at once")
    results = ResultFile(output, servers.conditions(sample.digest(chosen)))
    campaign = Campaign(servers, results, chosen, drafts.rounds(compared, ks, repeats), at_once)
    asyncio.run(campaign.measure(minutes * 60))
    report = Report(results, compared, chosen, record, usd_per_hour, missing=campaign.missing)
    if as_json:
        typer.echo(json.dumps(report.record(), indent=2))
    else:
        report.show(Console(highlight=False, soft_wrap=True, markup=False, emoji=False))
    if plot:
        report.plot(plot)


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is to be measured, and where it goes."""

    servers: Servers
    results: ResultFile
    steps: Sequence[sample.ReplayStep]
    plan: Sequence[tuple[Setting, int]]
    at_once: Sequence[int]

    @property
    def missing(self) -> int:
        """Cells that are not measured yet."""
        return sum(len(self.results.missing(setting, self.at_once, repeat)) for setting, repeat in self.plan)

    async def measure(self, budget_seconds: float) -> None:
        """Measure what is missing while the time lasts, one server after the other."""
        model = await chat.load(resolve_model(self.servers.target))
        begin, slowest, total = time.monotonic(), 0.0, len(self.plan) * len(self.at_once)
        with _progress() as progress:
            task = progress.add_task("", total=total, completed=total - self.missing)
            for setting, repeat in self.plan:
                wanted = self.results.missing(setting, self.at_once, repeat)
                server_begin = time.monotonic()
                if wanted and server_begin - begin + slowest > budget_seconds:
                    break
                if wanted:
                    progress.update(task, description=f"{setting}, repeat {repeat + 1}")
                    await self._on_one_server(setting, repeat, wanted, model.stop_token_ids)
                    slowest = max(slowest, time.monotonic() - server_begin)
                    progress.advance(task, len(wanted))

    async def _on_one_server(
        self, setting: Setting, repeat: int, wanted: Sequence[int], stop_token_ids: tuple[int, ...]
    ) -> None:
        async with self.servers.open(setting, self._context(), repeat) as (engine, version):
            self.results.check_engine(version)
            bench = Bench(engine, setting, self.steps, stop_token_ids, self._lookup(setting))
            await bench.warm()
            for concurrency in wanted:
                self.results.add(await bench.measure(concurrency, repeat, version))

    def _context(self) -> int:
        """Room for the longest step and its last draft, in tokens."""
        most = max(setting.k for setting, _ in self.plan)
        longest = max(step.prompt_tokens + step.max_tokens for step in self.steps) + most + 1
        return -(-longest // ROOM) * ROOM

    def _lookup(self, setting: Setting) -> Lookup | None:
        draft = self.servers.draft(setting)
        return Lookup(*draft.profile.lookup) if draft and draft.profile.method == "ngram" else None


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _drafts(drafter: Sequence[str], profiles: Sequence[str], file: Path | None) -> list[Draft]:
    """What to compare, each once. Raises `ConfigError` for none, and for a profile that is not there."""
    found = [drafts.parse(text) for text in drafter]
    known = config.load(file).speculation if profiles else {}
    for name in profiles:
        if name not in known:
            raise ConfigError(f"--profile {name}: no [speculation.{name}] in the configuration")
        found.append(drafts.of_profile(known[name], f"--profile {name}"))
    if not found:
        raise ConfigError("name what drafts: --drafter ngram, --drafter MODEL or --profile NAME")
    return list({draft.name: draft for draft in found}.values())


def _numbers(option: str, text: str, most: int) -> list[int]:
    """Numbers from 1, rising. Raises `ConfigError` for what is none."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        raise ConfigError(f"{option} {text}: write numbers from 1 to {most} with commas between, such as 1,2,4")
    return sorted({int(part) for part in parts})
