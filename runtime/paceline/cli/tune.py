"""`paceline spec tune`: measure real steps on a real engine, with and without speculation."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from paceline import config, log
from paceline.cli.access import Tenant, the_workflow, with_ledger
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.cli.report import labels_of
from paceline.cli.tune_report import Report
from paceline.cli.tune_servers import Servers
from paceline.errors import ConfigError
from paceline.ledger.store import SqlLedger
from paceline.models.catalog import resolve_model
from paceline.speculation.tune import sample
from paceline.speculation.tune.measure import Cell, measure, schedule
from paceline.speculation.tune.results import ResultFile
from paceline.transcript import chat
from paceline.workflow.model import Workflow
from paceline.workflow.ports import WorkflowFilter

METHODS = ("ngram", "draft_model")
MOST_K = 64
PAGE = 500
ROOM = 256
"""Contexts are rounded up to so many tokens."""


@clear_errors
def tune(
    *,
    target: Annotated[str, typer.Option(help="Model to draft for: folder, hub id or catalog name.")],
    drafter: Annotated[str, typer.Option(help="What drafts: folder, hub id or catalog name.")] = "",
    method: Annotated[str, typer.Option(help="ngram or draft_model. Default: draft_model with a drafter.")] = "",
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
    concurrency: Annotated[int, typer.Option(min=1, help="Steps at once.")] = 1,
    minutes: Annotated[
        float, typer.Option(min=0, help="Time budget: no cell is begun that would not fit.")
    ] = 60.0,
    usd_per_hour: Annotated[float | None, typer.Option(min=0, help="Price of the machine.")] = None,
    output: Annotated[Path, typer.Option(help="Measured cells; run again to go on.")] = Path("tune.jsonl"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    file: ConfigFile = None,
) -> None:
    """Replay real steps without speculation and with several K, and recommend the setting that paid."""
    log.configure(config.Log(level="warning"))
    method = _method(method, drafter)
    servers = Servers(target, drafter, method, platform, engine_python, tuple(engine_arg or ()), concurrency)
    ks = _ks(k)
    servers.check(ks[-1])
    source = Source(tuple(workflow or ()), labels_of(label or []), tenant, steps_file, max_tokens)
    chosen = sample.choose(source.read(resolve_model(target), file), steps)
    if concurrency > len(chosen):
        raise ConfigError(f"--concurrency {concurrency}: there are {len(chosen)} steps; take fewer at once")
    results = ResultFile(output, servers.conditions(sample.digest(chosen)))
    plan = schedule(ks, repeats)
    missing = asyncio.run(_measure(servers, results, plan, chosen, minutes * 60))
    report = Report(results, missing, chosen, usd_per_hour)
    if as_json:
        typer.echo(json.dumps(report.record(), indent=2))
    else:
        report.show()


@dataclass(frozen=True, slots=True)
class Source:
    """Where the steps come from: a file, or workflows of the ledger."""

    workflows: tuple[str, ...]
    labels: dict[str, str]
    tenant: str | None
    steps_file: Path | None
    max_tokens: int

    def read(self, model_path: str, file: Path | None) -> list[sample.ReplayStep]:
        """All steps. Raises `ConfigError` without a source, with two, or without steps."""
        from_ledger = bool(self.workflows or self.labels)
        if from_ledger == bool(self.steps_file):
            raise ConfigError("name the steps: --workflow or --label for the ledger's, or --steps-file")
        model = asyncio.run(chat.load(model_path))
        if self.steps_file:
            return asyncio.run(sample.of_file(self.steps_file, model, self.max_tokens))

        async def work(ledger: SqlLedger) -> list[sample.ReplayStep]:
            found = await self._workflows(ledger)
            return await sample.of_workflows(ledger, found, model.tokenizer_hash, self.max_tokens)

        return with_ledger(file, work)

    async def _workflows(self, ledger: SqlLedger) -> list[Workflow]:
        found = [await the_workflow(ledger, self.tenant, one) for one in self.workflows]
        token = ""
        while self.labels:
            if self.tenant is None:
                raise ConfigError("--label: name the tenant by --tenant")
            page = await ledger.list_workflows(self.tenant, WorkflowFilter(self.labels), PAGE, token)
            found += page.items
            token = page.next_token
            if not token:
                break
        return found


async def _measure(
    servers: Servers,
    results: ResultFile,
    plan: list[tuple[int, int]],
    steps: list[sample.ReplayStep],
    budget_seconds: float,
) -> list[tuple[int, int]]:
    """Measure what is missing while the time lasts; returns what is still missing then."""
    stop_token_ids = (await chat.load(resolve_model(servers.target))).stop_token_ids
    longest = max(step.prompt_tokens + step.max_tokens for step in steps) + max(k for k, _ in plan) + 1
    max_model_len = -(-longest // ROOM) * ROOM
    begin, slowest = time.monotonic(), 0.0
    missing = results.missing(plan)
    with _progress() as progress:
        task = progress.add_task("", total=len(plan), completed=len(plan) - len(missing))
        for k, repeat in missing:
            cell_begin = time.monotonic()
            if cell_begin - begin + slowest > budget_seconds:
                break
            progress.update(task, description=f"{f'K = {k}' if k else 'off'}, repeat {repeat + 1}")
            async with servers.open(k, max_model_len) as engine:
                cell: Cell = await measure(
                    engine,
                    k,
                    repeat,
                    steps,
                    concurrency=servers.concurrency,
                    stop_token_ids=stop_token_ids,
                )
            results.add(cell)
            slowest = max(slowest, time.monotonic() - cell_begin)
            progress.advance(task)
    return results.missing(plan)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _method(method: str, drafter: str) -> str:
    """The method; `draft_model` with a drafter. Raises `ConfigError` where the two do not fit."""
    chosen = method or ("draft_model" if drafter else "")
    if chosen not in METHODS:
        given = f"--method {chosen}" if chosen else "name --drafter or --method"
        raise ConfigError(f"{given}: tune knows {', '.join(METHODS)}")
    if (chosen == "draft_model") != bool(drafter):
        raise ConfigError(f"--drafter: method {chosen} {'has none' if drafter else 'needs one'}")
    return chosen


def _ks(text: str) -> list[int]:
    """The values of K, rising. Raises `ConfigError` for what is none."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_K for part in parts):
        raise ConfigError(f"--k {text}: write numbers from 1 to {MOST_K} with commas between, such as 1,2,4")
    return sorted({int(part) for part in parts})
