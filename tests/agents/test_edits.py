"""Edits in answers: what is taken from them and what is refused."""

from __future__ import annotations

import pytest

from paceline_agents.repair.edits import EditError, apply_functions, fingerprint
from paceline_agents.repair.gaps import find_gaps

SOURCE = '''"""A module."""

import math


def twice(x):
    return x + x


class Box:
    def __init__(self, x):
        self.x = x

    def area(self):
        return self.x


LIMIT = 3
'''


def block(code: str) -> str:
    return f"Here is the fix:\n\n```python\n{code}\n```\nIt works now."


def test_a_function_is_replaced_and_the_rest_stays() -> None:
    edited = apply_functions(SOURCE, block("def twice(x):\n    return 2 * x"))

    assert edited == SOURCE.replace("x + x", "2 * x")


def test_a_whole_file_in_the_answer_replaces_its_functions_only() -> None:
    answer = SOURCE.replace("x + x", "2 * x").replace("LIMIT = 3", "LIMIT = 4")

    assert apply_functions(SOURCE, block(answer)) == SOURCE.replace("x + x", "2 * x")


def test_a_method_given_without_its_class_finds_its_place() -> None:
    edited = apply_functions(SOURCE, block("def area(self):\n    return self.x ** 2"))

    assert edited == SOURCE.replace("return self.x\n", "return self.x ** 2\n")


def test_helpers_and_new_imports_are_added_and_known_imports_are_not() -> None:
    code = "import math\nimport os\n\ndef half(x):\n    return x / 2\n\ndef twice(x):\n    return half(4 * x)"
    edited = apply_functions(SOURCE, block(code))

    names: dict[str, object] = {}
    exec(edited, names)
    assert callable(names["twice"])
    assert names["twice"](3) == 6.0
    assert edited.count("import math") == edited.count("import os") == 1
    assert edited.startswith('"""A module."""')


def test_decorators_belong_to_the_function() -> None:
    source = "@decorate\ndef f():\n    return 1\n"

    assert apply_functions(source, block("@other\ndef f():\n    return 2")) == "@other\ndef f():\n    return 2\n"


def test_the_last_block_with_a_known_function_counts() -> None:
    answer = (
        block("def twice(x):\n    return 0") + block("def twice(x):\n    return 2 * x") + block("print(twice(2))")
    )

    assert "return 2 * x" in apply_functions(SOURCE, answer)


def test_an_answer_that_is_bare_code_is_taken() -> None:
    assert "2 * x" in apply_functions(SOURCE, "def twice(x):\n    return 2 * x\n")


def test_a_block_that_was_cut_off_is_still_read() -> None:
    assert "2 * x" in apply_functions(SOURCE, "```python\ndef twice(x):\n    return 2 * x")


def test_a_program_that_is_not_python_is_replaced_whole() -> None:
    assert apply_functions("def f(:\n", block("def f():\n    return 1")) == "def f():\n    return 1\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I do not know.", "no ```python block"),
        (block("def twice(x):\n    return ("), "not valid Python"),
        (block("def other(x):\n    return x"), "no function of the program"),
    ],
)
def test_an_unusable_answer_says_why(answer: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        apply_functions(SOURCE, answer)


def test_each_statement_with_an_expression_can_get_a_gap() -> None:
    source = (
        "def f(x):\n"
        '    """Ä."""\n'
        "    ü = 'ö' + g(\n"
        "        x)\n"
        "    for i in range(x):\n"
        "        if x and i: x += 1\n"
        "        yield x\n"
        "    while x > 1:\n"
        "        g(x)\n"
        "        break\n"
        "    return\n"
    )
    gaps = find_gaps(source)

    assert {line: gap.part for line, gap in gaps.items()} == {
        3: "ü = 'ö' + g(\n        x)",
        5: "range(x)",
        6: "x and i",
        7: "x",
        8: "x > 1",
        9: "g(x)",
    }
    assert gaps[3].program == source.replace("ü = 'ö' + g(\n        x)", "____")
    assert (gaps[3].kind, gaps[8].kind) == ("statement", "expression")
    assert gaps[8].program == source.replace("x > 1", "____")


def test_a_program_that_is_not_python_has_no_gaps() -> None:
    assert find_gaps("def (") == {}


def test_layout_comments_and_docstrings_do_not_make_another_program() -> None:
    same = SOURCE.replace("return x + x", '"""Twice."""\n    # sum\n    return (x  +  x)')

    assert fingerprint(same) == fingerprint(SOURCE)
    assert fingerprint(SOURCE.replace("x + x", "2 * x")) != fingerprint(SOURCE)
    assert fingerprint("def (") == "def ("
