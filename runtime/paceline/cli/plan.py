"""`paceline plan`: how many agents an instance holds, and what that costs."""

from __future__ import annotations

import dataclasses
import json
import re
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from paceline import config
from paceline.cli import config_text
from paceline.cli.config import ConfigFile
from paceline.cli.failure import clear_errors
from paceline.errors import ConfigError
from paceline.planning import instances, models
from paceline.planning.figures import Figure
from paceline.planning.fit import Demand
from paceline.planning.report import Plan, make
from paceline.planning.settings import settings
from paceline.platforms import kubernetes
from paceline.rules.case import NEURON_BLOCK_SIZE, Case
from paceline.rules.check import findings, require

THOUSANDS = {"": 1, "k": 1000, "m": 1_000_000}
NOTE = (
    "Arithmetic on published numbers, nothing measured on Trainium. Activations, compiled graphs and a drafter "
    "take device memory, too: leave room."
)
PORT = 8000
WIDTH = 115
"""Of what is no terminal, in characters."""


class Format(StrEnum):
    """What is printed."""

    TABLE = "table"
    JSON = "json"


class Cache(StrEnum):
    """Number format of keys and values."""

    BF16 = "bf16"
    FP8 = "fp8"


BYTES = {Cache.BF16: 2, Cache.FP8: 1}


@clear_errors
def plan(
    *,
    instance: Annotated[str, typer.Option(help="Instance type, such as trn2.48xlarge.")],
    model: Annotated[str, typer.Option(help="Folder with a config.json, or a known name such as qwen3-32b.")],
    agents: Annotated[int, typer.Option(help="Agents at work at once.")],
    context: Annotated[str, typer.Option(help="Tokens that one conversation grows to: 100000 or 100k.")],
    max_model_len: Annotated[
        str, typer.Option(help="Longest request, in tokens. Default: `--context`, in whole blocks.")
    ] = "",
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="Cores that the model is split over. Default: chosen.", min=1)
    ] = None,
    kv_cache: Annotated[Cache, typer.Option(help="Number format of the KV cache.")] = Cache.BF16,
    style: Annotated[Format, typer.Option("--format", help="A table or JSON.")] = Format.TABLE,
    write: Annotated[
        Path | None, typer.Option(help="New folder for paceline.toml and a Kubernetes part for each engine.")
    ] = None,
    file: ConfigFile = None,
) -> None:
    """Say what an instance can serve, with every formula and source. Exit code 1: it does not fit.

    The hourly price is that of the instance's own section below `accelerators` in the configuration, taken for the
    whole instance; without one, a published price with its date.
    """
    machine, shape = instances.find(instance), models.find(model)
    demand = _demand(agents, context, max_model_len, kv_cache)
    price = _price(machine, config.load(file))
    found = make(machine, shape, demand, price, tensor_parallel_size)
    if style is Format.JSON:
        typer.echo(json.dumps(_record(found), indent=2))
    else:
        _show(found)
    if write:
        _write(found, settings(found, price), write)
    if not found.fits:
        raise typer.Exit(1)


def tokens(text: str, option: str) -> int:
    """A number of tokens such as 32768, 100k or 1.5m. Raises `ConfigError` for any other text."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([km]?)", text.strip().lower())
    number = Decimal(match[1]) * THOUSANDS[match[2]] if match else Decimal(0)
    if number < 1 or number != int(number):
        raise ConfigError(
            f"{option} {text}: must be a number of tokens such as 32768 or 100k (k is 1,000)", field=option
        )
    return int(number)


def _demand(agents: int, context: str, max_model_len: str, kv_cache: Cache) -> Demand:
    if agents < 1:
        raise ConfigError(f"--agents {agents}: must be 1 or more", field="--agents")
    each = tokens(context, "--context")
    whole = -(-each // NEURON_BLOCK_SIZE) * NEURON_BLOCK_SIZE
    longest = tokens(max_model_len, "--max-model-len") if max_model_len else whole
    if longest < each:
        raise ConfigError(f"--max-model-len {longest}: is less than --context {each}; give that or more")
    return Demand(agents, each, longest, BYTES[kv_cache])


def _price(machine: instances.Instance, known: config.Settings) -> instances.Price | None:
    given = known.accelerators.get(machine.name)
    if given is None:
        return machine.price
    source = f'[accelerators."{machine.name}"] of the configuration, for the whole instance'
    return instances.Price(given.usd_per_hour, source, None, given.example)


def _show(found: Plan) -> None:
    out = Console(highlight=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = WIDTH
    sources = list(dict.fromkeys(item.source for item in found.figures))
    table = Table("figure", "value", "formula", "source", box=None, padding=(0, 2, 0, 0))
    for item in found.figures:
        table.add_row(
            item.name, _value(item), item.formula, f"[{sources.index(item.source) + 1}]".replace("[", r"\[")
        )
    out.print(table)
    out.print()
    for number, source in enumerate(sources, 1):
        out.print(f"[{number}] {source}", markup=False)
    out.print()
    for problem in found.problems:
        out.print(f"does not fit: {problem.statement}", markup=False)
        for remedy in problem.remedies:
            out.print(f"  would: {remedy}", markup=False)
    if found.fits:
        out.print("fits")
    for warning in found.warnings:
        out.print(f"warning {warning.rule}: {warning.statement}; {warning.remedy}", markup=False)
    out.print(NOTE)


def _value(item: Figure) -> str:
    if item.value is None:
        return "not found"
    value = f"{item.value:,}" if isinstance(item.value, int) else str(item.value)
    return f"{value} {item.unit}".rstrip()


def _record(found: Plan) -> dict[str, Any]:
    """The plan as JSON; amounts of money are text, to stay exact."""
    return {
        "instance": found.instance.name,
        "model": found.shape.name,
        "demand": dataclasses.asdict(found.demand),
        "fits": found.fits,
        "figures": [_plain(dataclasses.asdict(item)) for item in found.figures],
        "splits": [dataclasses.asdict(item) for item in found.splits],
        "problems": [dataclasses.asdict(item) for item in found.problems],
        "warnings": [dataclasses.asdict(item) for item in found.warnings],
        "note": NOTE,
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Decimal) else value for key, value in values.items()}


def _write(found: Plan, written: config.Settings, folder: Path) -> None:
    """Write the files. Raises `ConfigError` for what the rules refuse, and for a folder that exists."""
    texts = {"paceline.toml": _header(found) + config_text.given(written)}
    warnings: dict[str, None] = {}
    for name, engine in written.engines.items():
        case = Case("neuron", engine, None, found.shape.files)
        warnings |= {
            f"{item.rule}: {item.statement}; {item.remedy}": None for item in require(findings(case), name)
        }
        part = kubernetes.fragment(name, engine, None, found.shape.path, port=PORT, image="")
        texts[f"{kubernetes.label(name)}.yaml"] = part
    try:
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--write {folder}: {error.strerror}; name a folder that does not exist yet") from None
    for warning in warnings:
        typer.echo(f"# warning {warning}", err=True)
    typer.echo(f"wrote {folder}: {', '.join(texts)}", err=True)


def _header(found: Plan) -> str:
    """Comments: what was planned, and what does not fit."""
    asked = f"{found.demand.agents} agents of {found.demand.context} tokens"
    lines = [f"Written by `paceline plan` for {found.shape.name} on {found.instance.name}, {asked}.", NOTE]
    for problem in found.problems:
        lines += [f"Does not fit: {problem.statement}", *(f"  would: {remedy}" for remedy in problem.remedies)]
    return "".join(f"# {line}\n" for line in lines)
