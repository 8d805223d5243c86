"""`paceline spec estimate`: what speculation would cost on this machine, before any engine starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import psutil
import typer
from rich.console import Console
from rich.table import Table

from paceline.cli.failure import clear_errors
from paceline.engines.install import engine_python
from paceline.errors import ConfigError, ModelError
from paceline.models.catalog import EMULATED, resolve_model
from paceline.platforms import cpu
from paceline.speculation.estimate import (
    ASSUMED_RATES,
    LEAST_ROUNDS,
    Point,
    best,
    points,
    unrest,
)
from paceline.speculation.modelfiles import ModelFiles, open_model
from paceline.speculation.shapes import Shapes, forward_shapes, output_head
from paceline.speculation.timing import Probe, Timings

Device = Literal["cpu", "cuda", "neuron"]
Dtype = Literal["float32", "bfloat16", "float16"]
DRAFTED_BY_MODEL = ("draft_model", "eagle3")
METHODS = (*DRAFTED_BY_MODEL, "ngram", "suffix")
MOST_K = 64
BUSY = 1.3
"""Where a middling pass takes so many times as long as the fastest, the fastest was hardly undisturbed either."""
MOST_MEMORY_BYTES = 8 * 2**30
NOTE = (
    "An estimate from matrix products of the models' shapes, one step at a time: no engine ran. "
    "Norms, sampling, scheduling and the search of ngram or suffix are left out"
)


@clear_errors
def estimate(
    *,
    target: Annotated[str, typer.Option(help="Model to draft for: folder, hub id or catalog name.")],
    drafter: Annotated[str, typer.Option(help="What drafts: folder, hub id or catalog name.")] = "",
    method: Annotated[
        str, typer.Option(help="draft_model, eagle3, ngram or suffix. Default: draft_model with a drafter.")
    ] = "",
    k: Annotated[int, typer.Option("--k", min=1, max=MOST_K, help="Largest K; every smaller one is shown.")] = 10,
    platform: Annotated[str, typer.Option(help="cpu, cuda or neuron.")] = "cpu",
    engine_python_path: Annotated[
        str, typer.Option("--engine-python", help="Python with torch. Default: the installed engine's.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16. Default: the engine's.")] = "",
    context: Annotated[int, typer.Option(min=0, help="Tokens to attend to. 0 leaves attention out.")] = 0,
    repeats: Annotated[
        int, typer.Option(min=LEAST_ROUNDS, help="Rounds; the fastest pass of each kind counts.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time forward passes on this machine and say what acceptance length speculation needs to pay."""
    method = _method(method, drafter)
    probe = _probe(_choice("--platform", platform, Device), engine_python_path, dtype, repeats)
    models = _models(target, drafter, method, context)
    with Console(stderr=True).status("timing matrix products"):
        timings = probe.run(models, range(1, k + 2))
    found = points(timings.seconds["target"], timings.seconds.get("drafter"), k)
    report = Report(target, drafter, method, context, probe, models, timings, found)
    if as_json:
        typer.echo(json.dumps(report.record(), indent=2))
    else:
        report.show()


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """One estimate with its conditions."""

    target: str
    drafter: str
    method: str
    context: int
    probe: Probe
    models: dict[str, Shapes]
    timings: Timings
    points: Sequence[Point]

    @property
    def note(self) -> str:
        """What the figures leave out."""
        return NOTE + (
            f"; attention over {self.context} tokens is in." if self.context else ", and attention too."
        )

    def record(self) -> dict[str, Any]:
        """Everything for `--json`."""
        return {
            "target": self.target,
            "drafter": self.drafter or None,
            "method": self.method,
            "context": self.context,
            "device": self.probe.device,
            "dtype": self.probe.dtype,
            "repeats": self.probe.repeats,
            **{name: getattr(self.timings, name) for name in self.timings.__struct_fields__},
            "shapes": {name: shapes.source for name, shapes in self.models.items()},
            "points": [
                dataclasses.asdict(point)
                | {"break_even_rate": point.break_even_rate}
                | {"speed_up_assuming": {str(rate): point.speed_up(rate) for rate in ASSUMED_RATES}}
                for point in self.points
            ],
            "best_k_assuming": {str(rate): _best_k(self.points, rate) for rate in ASSUMED_RATES},
            "unrest": unrest(self.timings.seconds["target"]),
            "note": self.note,
        }

    def show(self) -> None:
        """The cost per K, what follows from assumed acceptance, the conditions and the limits."""
        out = Console(highlight=False, soft_wrap=True, markup=False)
        by = f" by {self.drafter}" if self.drafter else ""
        plain = min(self.timings.seconds["target"][1])
        out.print(f"{self.method}{by} for {self.target}: a step without speculation takes {plain * 1e3:.1f} ms")
        out.print(self._costs(), soft_wrap=False)
        out.print("Speed against no speculation, ASSUMING this chance for each drafted token to be accepted:")
        out.print(self._speeds(), soft_wrap=False)
        out.print(f"{self._conditions()}\n{self.note}")

    def _costs(self) -> Table:
        table = Table("K", "ms per step", "of it drafting", "break-even length", "range", "break-even rate")
        for point in self.points:
            table.add_row(
                str(point.k),
                f"{point.seconds * 1e3:.1f}",
                f"{point.draft_seconds * 1e3:.1f}",
                f"{point.break_even:.2f}",
                f"{point.break_even_low:.2f}-{point.break_even_high:.2f}",
                "never" if point.break_even_rate is None else f"{point.break_even_rate:.0%}",
            )
        return table

    def _speeds(self) -> Table:
        table = Table("K", *map(str, ASSUMED_RATES))
        for point in self.points:
            table.add_row(str(point.k), *(f"{point.speed_up(rate):.2f} x" for rate in ASSUMED_RATES))
        table.add_section()
        table.add_row(
            "best", *(f"K = {k}" if (k := _best_k(self.points, rate)) else "none" for rate in ASSUMED_RATES)
        )
        return table

    def _conditions(self) -> str:
        timings, probe = self.timings, self.probe
        shapes = ", ".join(f"{name} from {found.source}" for name, found in self.models.items())
        share = timings.matrix_bytes / timings.model_bytes
        memory = "" if share > 0.99 else f", {share:.0%} of the models' matrices held and used repeatedly"
        disturbance = unrest(timings.seconds["target"])
        advice = ": the machine is busy, repeat this" if disturbance > BUSY else ""
        return (
            f"{probe.device} ({timings.device_name}), {probe.dtype}, {timings.threads} threads, "
            f"torch {timings.torch}{memory}; shapes: {shapes}. The fastest pass of {probe.repeats} rounds counts, "
            f"the range is that of their halves; a middling pass took {disturbance:.2f} times as long{advice}."
        )


def _best_k(found: Sequence[Point], rate: float) -> int:
    point = best(found, rate)
    return point.k if point else 0


def _choice(option: str, value: str, kind: Any) -> str:
    if value not in get_args(kind):
        raise ConfigError(f"{option} {value}: take one of {', '.join(get_args(kind))}")
    return value


def _method(method: str, drafter: str) -> str:
    """The method; `draft_model` with a drafter. Raises `ConfigError` where the two do not fit."""
    chosen = method or ("draft_model" if drafter else "")
    if chosen not in METHODS:
        given = f"--method {chosen}" if chosen else "name --drafter or --method"
        raise ConfigError(f"{given}: the estimate knows {', '.join(METHODS)}")
    if (chosen in DRAFTED_BY_MODEL) != bool(drafter):
        raise ConfigError(f"--drafter: method {chosen} {'has none' if drafter else 'needs one'}")
    return chosen


def _probe(device: str, python: str, dtype: str, repeats: int) -> Probe:
    """The probe for an engine's Python, with the engine's number format and libraries."""
    if device == "neuron" and not python:
        raise ConfigError(
            "--engine-python: name the Python that has torch-neuronx; Paceline installs none for neuron"
        )
    found = engine_python(device, python)
    if not dtype:
        dtype = cpu.default_dtype(cpu.features()) if device == "cpu" else "bfloat16"
    half = psutil.virtual_memory().available // 2
    return Probe(
        found,
        device,
        _choice("--dtype", dtype, Dtype),
        repeats,
        min(MOST_MEMORY_BYTES, half) if device == "cpu" else MOST_MEMORY_BYTES,
        cpu.openmp(found) if device == "cpu" else (),
    )


def _models(target: str, drafter: str, method: str, context: int) -> dict[str, Shapes]:
    """Shapes of the models that run. A trained head without an output head uses the target's."""
    models = {"target": forward_shapes(_open(target), context=context)}
    if drafter:
        head = output_head(_open(target)) if method == "eagle3" else None
        models["drafter"] = forward_shapes(_open(drafter), context=context, drafts=True, head=head)
    return models


def _open(name: str) -> ModelFiles:
    path = resolve_model(name)
    if path == EMULATED:
        raise ModelError("emulated: is built in and has no shapes; name a real model", model=name)
    return open_model(path, offline=False)
