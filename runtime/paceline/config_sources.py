"""Where settings come from, before anybody looks at what they mean: the file and the variables as one tree."""

from __future__ import annotations

import os
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError

RESERVED_VARIABLES = frozenset({"API_KEY", "CONFIG", "DATA", "SANDBOX", "TEST_ENGINE_PYTHON", "TEST_MODEL"})
"""Variables after `PACELINE_` that are no settings: the file's path, what agents use, and what tests read."""


def read_file(path: Path) -> dict[str, Any]:
    """The tree of a TOML file. Raises `ConfigError` for one that cannot be read."""
    try:
        return tomllib.loads(path.read_text(), parse_float=Decimal)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the file by --config", origin=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", origin=path) from None


def merge_environment(values: dict[str, Any]) -> dict[str, str]:
    """Put the variables into `values`; returns the variable of each field that one set. Raises `ConfigError`."""
    variables = {}
    for variable, value in os.environ.items():
        name = variable.removeprefix("PACELINE_")
        if name == variable or name in RESERVED_VARIABLES:
            continue
        *parents, leaf = path = name.lower().split("__")
        node = values
        for part in parents:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{variable}: {part} is not a section", origin=variable)
        node[leaf] = value
        variables[".".join(path)] = variable
    return variables
