"""Which lines of a program are suspicious: spectrum-based fault localisation with the executed lines of tests."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol


class Spectrum(Protocol):
    """What localisation needs of a test's result."""

    @property
    def passed(self) -> bool:
        """The test passed."""

    @property
    def lines(self) -> frozenset[int]:
        """The lines that it executed."""


def rank_lines(source: str, results: Sequence[Spectrum], within: str = "") -> list[int]:
    """The lines of the statements in a function (empty: in the whole program), most suspicious first.

    By the Ochiai score, then by how much the line computes. Lines that no failing test executes come last.
    Empty when the source is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    failing = [result.lines for result in results if not result.passed]
    passing = [result.lines for result in results if result.passed]
    work = _expressions_per_line(tree)
    lines = _statement_lines(tree, within)
    return sorted(lines, key=lambda line: (-_ochiai(line, failing, passing), -work[line], line))


def _ochiai(line: int, failing: Sequence[frozenset[int]], passing: Sequence[frozenset[int]]) -> float:
    failed = sum(line in lines for lines in failing)
    passed = sum(line in lines for lines in passing)
    return failed / math.sqrt(len(failing) * (failed + passed)) if failed else 0.0


def _statement_lines(tree: ast.Module, within: str) -> set[int]:
    """First lines of the statements in the functions named `within`, without definitions, imports and texts."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [function for function in functions if function.name == within]
    nodes = [
        node for function in named or functions for statement in function.body for node in ast.walk(statement)
    ]
    return {node.lineno for node in nodes if isinstance(node, ast.stmt) and not _is_no_suspect(node)}


_NO_SUSPECTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)


def _is_no_suspect(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, _NO_SUSPECTS)


def _expressions_per_line(tree: ast.Module) -> Counter[int]:
    return Counter(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Name | ast.Constant)
    )
