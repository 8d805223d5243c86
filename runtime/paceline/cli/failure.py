"""Known errors end a command with one line and exit code 1, never with a traceback."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console

from paceline.errors import PacelineError

P = ParamSpec("P")
R = TypeVar("R")


def clear_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a CLI command."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except PacelineError as error:
            Console(stderr=True, soft_wrap=True).print(f"[red]error[/red] {error.reason}: ", end="")
            Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False).print(error.message)
            raise typer.Exit(1) from None

    return wrapped
