"""Replace one suspicious part of a program by a gap, so that a model must think of it anew.

A small model that sees a wrong line copies it; one that sees a gap cannot.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

GAP = "____"


@dataclass(frozen=True, slots=True)
class Gap:
    """A part that may be cut out."""

    line: int
    """Line of its statement."""
    kind: Literal["expression", "statement"]
    part: str
    """Its text."""
    program: str
    """The program with the gap."""


def find_gaps(source: str) -> dict[int, Gap]:
    """What may be wrong in each statement, by the statement's line.

    That is the whole of an assignment, the condition of a branch, what a loop runs over, or what is returned,
    yielded, raised or called. Empty when the source is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    gaps: dict[int, Gap] = {}
    for node in ast.walk(tree):
        part = _part(node)
        if isinstance(node, ast.stmt) and part is not None and node.lineno not in gaps:
            kind: Literal["expression", "statement"] = "statement" if part is node else "expression"
            text = ast.get_source_segment(source, part) or ""
            gaps[node.lineno] = Gap(node.lineno, kind, text, _cut(source, part))
    return gaps


def _part(node: ast.AST) -> ast.expr | ast.stmt | None:
    match node:
        case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
            return node
        case ast.If(test=found) | ast.While(test=found) | ast.Assert(test=found):
            return found
        case ast.For(iter=found) | ast.AsyncFor(iter=found) | ast.Raise(exc=found):
            return found
        case ast.Expr(value=ast.Constant()):
            return None  # a docstring
        case (
            ast.Expr(value=ast.Yield(value=found) | ast.YieldFrom(value=found) | ast.Await(value=found))
            | ast.Return(value=found)
            | ast.Expr(value=found)
        ):
            return found
    return None


def _cut(source: str, part: ast.expr | ast.stmt) -> str:
    """`source` without the part; positions of `ast` count UTF-8 bytes."""
    lines = source.encode().splitlines(keepends=True)
    first, last = part.lineno - 1, (part.end_lineno or part.lineno) - 1
    before, after = lines[first][: part.col_offset], lines[last][part.end_col_offset :]
    return b"".join([*lines[:first], before + GAP.encode() + after, *lines[last + 1 :]]).decode()
