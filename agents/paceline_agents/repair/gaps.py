"""Replace one suspicious expression of a program by a gap, so that a model must think of it anew.

A small model that sees a wrong line copies it; one that sees a gap cannot.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

GAP = "____"


@dataclass(frozen=True, slots=True)
class Gap:
    """An expression that may be cut out."""

    line: int
    """Line of its statement."""
    expression: str
    program: str
    """The program with the gap."""


def find_gaps(source: str) -> dict[int, Gap]:
    """The main expression of each statement that has one, by the statement's line.

    That is a condition, what a loop runs over, or what is assigned, returned, yielded, raised or called.
    Empty when the source is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    gaps: dict[int, Gap] = {}
    for node in ast.walk(tree):
        expression = _main_expression(node)
        if isinstance(node, ast.stmt) and expression is not None and node.lineno not in gaps:
            text = ast.get_source_segment(source, expression) or ""
            gaps[node.lineno] = Gap(node.lineno, text, _cut(source, expression))
    return gaps


def _main_expression(node: ast.AST) -> ast.expr | None:
    match node:
        case ast.If(test=found) | ast.While(test=found) | ast.Assert(test=found):
            return found
        case ast.For(iter=found) | ast.AsyncFor(iter=found) | ast.Raise(exc=found):
            return found
        case ast.Expr(value=ast.Constant()):
            return None  # a docstring
        case (
            ast.Expr(value=ast.Yield(value=found) | ast.YieldFrom(value=found) | ast.Await(value=found))
            | ast.Return(value=found)
            | ast.Assign(value=found)
            | ast.AugAssign(value=found)
            | ast.AnnAssign(value=found)
            | ast.Expr(value=found)
        ):
            return found
    return None


def _cut(source: str, expression: ast.expr) -> str:
    """`source` without the expression; positions of `ast` count UTF-8 bytes."""
    lines = source.encode().splitlines(keepends=True)
    first, last = expression.lineno - 1, (expression.end_lineno or expression.lineno) - 1
    before, after = lines[first][: expression.col_offset], lines[last][expression.end_col_offset :]
    return b"".join([*lines[:first], before + GAP.encode() + after, *lines[last + 1 :]]).decode()
