"""A launch plan as text for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from paceline import config
from paceline.platforms.plan import LaunchPlan

SECRET = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD)(_|$)", re.IGNORECASE)


def environment(plan: LaunchPlan, engine: config.Engine) -> dict[str, str]:
    """The plan's variables, over them `[engines.NAME.env]`, and what is preloaded."""
    values = plan.env | engine.env
    preload = [*map(str, plan.preload), *values.get("LD_PRELOAD", "").split()]
    return values | ({"LD_PRELOAD": " ".join(preload)} if preload else {})


def is_secret(name: str) -> bool:
    """Whether the value of a variable is better not printed, by its name."""
    return SECRET.search(name) is not None


def variables(plan: LaunchPlan, engine: config.Engine) -> str:
    """One `NAME=value` per line, quoted for a shell. A secret is named only: the caller's own is taken."""
    return "".join(f"{assignment}\n" for assignment in _assignments(plan, engine))


def command(plan: LaunchPlan, engine: config.Engine) -> str:
    """The command behind its variables, one flag per line."""
    program, flags = split(plan.command)
    lines = ["env", *_assignments(plan, engine), shlex.join(program), *map(shlex.join, flags)]
    return " \\\n  ".join(lines) + "\n"


def split(parts: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The program, and each flag with its values."""
    begin = next((index for index, part in enumerate(parts) if part.startswith("--")), len(parts))
    flags: list[list[str]] = []
    for part in parts[begin:]:
        if part.startswith("-") or not flags:
            flags.append([part])
        else:
            flags[-1].append(part)
    return list(parts[:begin]), flags


def _assignments(plan: LaunchPlan, engine: config.Engine) -> Iterator[str]:
    for name, value in environment(plan, engine).items():
        yield f'{name}="${name}"' if is_secret(name) else f"{name}={shlex.quote(value)}"
