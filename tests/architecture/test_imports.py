"""Who may import whom."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "runtime", ROOT / "agents")
OUTER = {"rpc", "engines", "ledger"}
PORT = {"paceline.engines", "paceline.engines.base"}
"""The engine port: what the use case asks of an engine. Its package's `__init__` comes along."""


def dotted(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    dotted(path, source): path
    for source in SOURCES
    for path in source.rglob("*.py")
    if not path.is_relative_to(ROOT / "runtime/paceline/v1")
}


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules that `module` names in its imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            submodules = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= submodules or {base}
    return frozenset(found)


def absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def reached(start: str) -> dict[str, str]:
    """Every module that importing `start` loads or names, with the importer that leads to it."""
    via = {start: ""}
    queue = [start]
    while queue:
        module = queue.pop()
        parents = {module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)}
        for name in sorted((imported(module) if module in MODULES else frozenset()) | (parents & MODULES.keys())):
            if name not in via:
                via[name] = module
                queue.append(name)
    return via


def inside(package: str) -> list[str]:
    found = [module for module in MODULES if module == package or module.startswith(f"{package}.")]
    assert found, f"{package} has no modules"
    return found


def violations(package: str, forbidden: set[str], allowed: set[str]) -> Iterator[str]:
    for module in inside(package):
        for name, via in reached(module).items():
            bad = any(name == prefix or name.startswith(f"{prefix}.") for prefix in forbidden)
            if bad and name not in allowed:
                yield f"{module} reaches {name} through {via}"


@pytest.mark.parametrize("package", ["workflow", "transcript", "routing"])
def test_the_inside_knows_no_transport_and_no_database(package: str) -> None:
    forbidden = {
        "grpc",
        "google",
        "sqlalchemy",
        "alembic",
        "aiohttp",
        "paceline.v1",
        "paceline.app",
        "paceline.cli",
    }
    forbidden |= {f"paceline.{name}" for name in OUTER}
    assert list(violations(f"paceline.{package}", forbidden, PORT)) == []


@pytest.mark.parametrize("package", sorted(OUTER))
def test_the_outside_parts_do_not_know_each_other(package: str) -> None:
    forbidden = {f"paceline.{name}" for name in OUTER - {package}} | {"paceline.app", "paceline.cli"}
    assert list(violations(f"paceline.{package}", forbidden, PORT)) == []


def test_agents_need_the_generated_code_and_the_errors_only() -> None:
    allowed = {"grpc", "grpc_status", "google", "paceline_agents", *sys.stdlib_module_names}
    for module in inside("paceline_agents"):
        for name in imported(module):
            ours = name in {"paceline.errors", "paceline.v1"} or name.startswith("paceline.v1.")
            assert ours or name.split(".")[0] in allowed, f"{module} imports {name}"


def test_only_the_command_line_knows_the_composition_root() -> None:
    users = {module for module in MODULES if "paceline.app" in imported(module)}
    assert {module for module in users if not module.startswith("paceline.cli.")} == set()
