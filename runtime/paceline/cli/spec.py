"""`paceline spec`: choose how an engine drafts tokens."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline import config
from paceline.cli.config import ConfigFile
from paceline.cli.estimate import estimate
from paceline.cli.failure import clear_errors
from paceline.cli.tune import tune
from paceline.errors import ConfigError
from paceline.speculation import checks
from paceline.speculation.finding import Finding, Level, Subject

app = typer.Typer(help="Choose how an engine drafts tokens.", no_args_is_help=True)

COLOURS: dict[Level, str] = {"ok": "green", "warning": "yellow", "refused": "red"}


app.command()(estimate)
app.command()(tune)


@app.command()
@clear_errors
def check(
    *,
    target: Annotated[str, typer.Option(help="Model to draft for: folder, hub id or catalog name.")] = "",
    drafter: Annotated[str, typer.Option(help="What drafts: folder, hub id or catalog name.")] = "",
    method: Annotated[str, typer.Option(help="Method. Default: draft_model with a drafter.")] = "",
    k: Annotated[int | None, typer.Option("--k", help="Tokens drafted per verification.")] = None,
    heterogeneous: Annotated[
        bool, typer.Option("--heterogeneous-vocab", help="Draft only tokens that both vocabularies have.")
    ] = False,
    platform: Annotated[
        str, typer.Option(help="cpu, cuda, neuron or emulated. Default: none in particular.")
    ] = "",
    max_model_len: Annotated[int | None, typer.Option(help="Longest context of the engine, in tokens.")] = None,
    profile: Annotated[
        str, typer.Option(help="A profile of the configuration, checked for each engine that uses it.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    file: ConfigFile = None,
) -> None:
    """Say whether a drafter fits a model: tokenizers, sizes, method and platform. Exit code 1: refused."""
    limits = Limits(platform, max_model_len)
    if profile and (drafter or method or k is not None or heterogeneous):
        raise ConfigError("--profile: says method, drafter and K itself; leave the other options out")
    if profile:
        subjects = of_profile(config.load(file), profile, target, limits)
    elif target and (drafter or method):
        subjects = [limits.subject(profile_of(drafter, method, k, heterogeneous), target)]
    else:
        raise ConfigError("name --target and --drafter, --target and --method, or --profile")
    results = [(subject, checks.check(subject)) for subject in subjects]
    if as_json:
        typer.echo(json.dumps([record(*result) for result in results], indent=2))
    else:
        for result in results:
            show(*result)
    if any(checks.verdict(findings) == "refused" for _, findings in results):
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Where a pair is to run. Raises `ConfigError` for an unknown platform."""

    platform: str
    max_model_len: int | None
    engine: config.Engine | None = None

    def __post_init__(self) -> None:
        if self.platform and self.platform not in checks.PLATFORMS:
            raise ConfigError(f"--platform {self.platform}: take one of {', '.join(checks.PLATFORMS)}")

    def over(self, engine: config.Engine) -> Limits:
        """These, with those of an engine in the gaps."""
        platform = self.platform or engine.platform
        started = engine if engine.platform == platform else None
        return Limits(platform, self.max_model_len or engine.max_model_len, started)

    def subject(self, profile: config.Speculation, target: str) -> Subject:
        """A pair with its files."""
        return checks.open_subject(
            profile,
            target,
            platform=self.platform,
            max_model_len=self.max_model_len,
            engine=self.engine,
            offline=False,
        )


def of_profile(settings: config.Settings, name: str, target: str, limits: Limits) -> list[Subject]:
    """The profile with `target`, else with the model of each engine that uses it."""
    profile = settings.speculation.get(name)
    if profile is None:
        raise ConfigError(f"--profile {name}: no [speculation.{name}] in the configuration")
    if target:
        return [limits.subject(profile, target)]
    engines = [engine for engine in settings.engines.values() if engine.speculation == name]
    if not engines:
        raise ConfigError(f"--profile {name}: no engine uses it; name a model by --target")
    return [limits.over(engine).subject(profile, settings.models[engine.model].path) for engine in engines]


def profile_of(drafter: str, method: str, k: int | None, heterogeneous: bool) -> config.Speculation:
    """The profile that the options describe."""
    values: dict[str, Any] = {"method": method or "draft_model", "drafter": drafter}
    values |= {"use_heterogeneous_vocab": heterogeneous} | ({} if k is None else {"num_speculative_tokens": k})
    return config.parse({"speculation": {"options": values}}, "spec check").speculation["options"]


def record(subject: Subject, findings: list[Finding]) -> dict[str, Any]:
    """One pair for `--json`."""
    return {
        "target": subject.target.name,
        "drafter": subject.drafter.name if subject.drafter else None,
        "method": subject.profile.method,
        "num_speculative_tokens": subject.profile.num_speculative_tokens,
        "platform": subject.platform or None,
        "verdict": checks.verdict(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def show(subject: Subject, findings: list[Finding]) -> None:
    """One pair as a table, the worst first."""
    order = list(reversed(COLOURS))
    table = Table("rule", "", "found", "what to do")
    table.columns[0].no_wrap = True
    for finding in sorted(findings, key=lambda finding: order.index(finding.level)):
        mark = f"[{COLOURS[finding.level]}]{finding.level}"
        table.add_row(finding.rule, mark, escape(finding.statement), escape(finding.remedy))
    out, profile = Console(highlight=False, soft_wrap=True), subject.profile
    named = f" by {subject.drafter.name}" if subject.drafter else ""
    out.print(
        f"{profile.method}{named}, K = {profile.num_speculative_tokens}, for {subject.target.name}", markup=False
    )
    out.print(table, soft_wrap=False)
    out.print(f"verdict: {checks.verdict(findings)}", markup=False)
