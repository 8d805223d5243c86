"""Read an edit from a model's answer and apply it to a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_BLOCK = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL | re.IGNORECASE)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class EditError(Exception):
    """The answer has no usable edit; the message tells the model why."""


def code_blocks(answer: str) -> list[str]:
    """The fenced code blocks of an answer; without a fence, the whole answer if it is Python."""
    blocks = _BLOCK.findall(answer)
    if not blocks and "def " in answer and is_python(answer):
        return [answer]
    return blocks


def apply_functions(source: str, answer: str) -> str:
    """Replace each function or class of `source` that the answer defines anew.

    Blocks are tried from the last to the first; the first one with a definition that `source` has counts.
    What else it defines or imports at top level is added. Raises EditError.
    """
    blocks = code_blocks(answer)
    if not blocks:
        raise EditError("Your answer has no ```python block.")
    problem = ""
    for block in reversed(blocks):
        try:
            return _merge(source, block)
        except EditError as error:
            problem = problem or str(error)
    raise EditError(problem)


def is_python(text: str) -> bool:
    """Whether the text is syntactically valid."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def fingerprint(source: str) -> str:
    """Equal for programs that differ only in layout, comments and docstrings; the text itself if not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [statement for statement in body if not _is_text(statement)] or [ast.Pass()]
    return ast.dump(tree)


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _require_syntax(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise EditError(f"Your code is not valid Python: {error.args[0]}{where}.") from error


def _merge(source: str, block: str) -> str:
    """`source` with the definitions of `block`; the block alone if `source` is no Python that could be merged."""
    new = _require_syntax(block)
    if not is_python(source):
        return block + "\n"
    known = dict(_definitions(ast.parse(source)))
    found = {known_name: node for name, node in _definitions(new) if (known_name := _known_name(name, known))}
    replaced = {name: node for name, node in found.items() if name.rpartition(".")[0] not in found}
    if not replaced:
        raise EditError("Your code defines no function of the program.")
    block_lines, lines = block.splitlines(), source.splitlines()
    for name in sorted(replaced, key=lambda name: -_first_line(known[name])):
        old, node = known[name], replaced[name]
        lines[_first_line(old) - 1 : old.end_lineno] = _reindent(
            block_lines[_first_line(node) - 1 : node.end_lineno], old.col_offset - node.col_offset
        )
    at = _insertion_line(source)
    lines[at:at] = _additions(new, block, source, known)
    merged = "\n".join(lines) + "\n"
    _require_syntax(merged)
    return merged


def _known_name(name: str, known: dict[str, Definition]) -> str:
    """The qualified name that a definition of the answer replaces; empty for a new one."""
    if name in known:
        return name
    methods = [key for key in known if key.endswith(f".{name}")]
    return methods[0] if len(methods) == 1 else ""


def _definitions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """Functions, classes and the methods of classes, by qualified name."""
    for node in tree.body:
        if isinstance(node, Definition):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{child.name}", child


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _reindent(lines: list[str], shift: int) -> list[str]:
    if shift >= 0:
        return [" " * shift + line if line.strip() else line for line in lines]
    return [line[-shift:] if not line[:-shift].strip() else line for line in lines]


def _additions(new: ast.Module, block: str, source: str, known: dict[str, Definition]) -> list[str]:
    """Imports and helpers of the block that the program does not have."""
    lines = block.splitlines()
    present = {ast.dump(node) for node in ast.parse(source).body}
    extra: list[str] = []
    for node in new.body:
        is_helper = isinstance(node, Definition) and not _known_name(node.name, known)
        is_import = isinstance(node, ast.Import | ast.ImportFrom) and ast.dump(node) not in present
        if is_helper or is_import:
            first = _first_line(node) if isinstance(node, Definition) else node.lineno
            extra += [*lines[first - 1 : node.end_lineno], *(["", ""] if is_helper else [])]
    return extra


def _insertion_line(source: str) -> int:
    """Index of the line before which additions go: after the docstring and the __future__ imports."""
    at = 0
    for index, node in enumerate(ast.parse(source).body):
        is_docstring = index == 0 and _is_text(node)
        if not is_docstring and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        at = node.end_lineno or at
    return at
