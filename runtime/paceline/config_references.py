"""What settings say of each other: names that must exist, and engines that a canary can compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.config import Engine, Settings

_DRAFTING_FLAGS = ("--speculative-config", "-sc", "--spec-method", "--spec-model")


def check(settings: Settings) -> None:
    """Raise `ValueError` for the first reference that leads nowhere."""
    for name, engine in settings.engines.items():
        if engine.model not in settings.models:
            raise ValueError(f"engines.{name}.model: no [models.{engine.model}]; known: {_names(settings.models)}")
        if engine.speculation and engine.speculation not in settings.speculation:
            raise ValueError(f"engines.{name}.speculation: no [speculation.{engine.speculation}]")
        if engine.instance_type and engine.instance_type not in settings.accelerators:
            raise ValueError(f"engines.{name}.instance_type: no [accelerators.{engine.instance_type}]")
    _check_cores(settings)
    for name, canary in settings.canary.items():
        if name not in settings.models:
            raise ValueError(f"canary.{name}: no [models.{name}]; known: {_names(settings.models)}")
        if canary.share:
            _check_comparable(settings, name)


def _check_cores(settings: Settings) -> None:
    """No two engines have a NeuronCore in common: a process has its cores alone."""
    owners: dict[int, str] = {}
    for name, engine in settings.engines.items():
        for core in engine.neuron.core_ids if engine.neuron else ():
            if owner := owners.get(core):
                raise ValueError(f"engines.{name}.neuron.cores: core {core} is engines.{owner}'s; name others")
            owners[core] = name


def drafting_profiles(settings: Settings) -> frozenset[str]:
    """Names of the profiles that draft."""
    return frozenset(name for name, profile in settings.speculation.items() if profile.method != "none")


def plain_engines(settings: Settings, model: str) -> frozenset[str]:
    """Names of the engines of a model that do not draft, neither by a profile nor by an argument."""
    return frozenset(
        name
        for name, engine in settings.engines.items()
        if engine.model == model and not _drafts(settings, engine)
    )


def _check_comparable(settings: Settings, model: str) -> None:
    """A canary needs an engine that drafts and one that does not."""
    profiles, engines = drafting_profiles(settings), settings.engines.items()
    drafting = [name for name, engine in engines if engine.model == model and engine.speculation in profiles]
    if not drafting:
        raise ValueError(
            f"canary.{model}.share: no engine of {model} has a profile that drafts, so there is nothing to "
            f"compare; name one by `speculation` in its [engines.NAME], or remove [canary.{model}]"
        )
    if not plain_engines(settings, model):
        raise ValueError(
            f"canary.{model}.share: every engine of {model} drafts ({', '.join(drafting)}), so there is none to "
            "compare with; add an [engines.NAME] of it without `speculation`, or set share = 0"
        )


def _drafts(settings: Settings, engine: Engine) -> bool:
    by_argument = any(argument.partition("=")[0] in _DRAFTING_FLAGS for argument in engine.extra_args)
    return by_argument or engine.speculation in drafting_profiles(settings)


def _names(known: Iterable[str]) -> str:
    return ", ".join(sorted(known)) or "none"
