"""Runs in an engine venv's Python, without Paceline: which texts XGrammar lets through, as vLLM asks it.

Reads a JSON list of (structured outputs, texts) from stdin, writes a list of lists of booleans to stdout.
"""

import json
import sys

import xgrammar
from xgrammar.testing import _is_grammar_accept_string


def main() -> None:
    """Answer every question."""
    answers = []
    for outputs, texts in json.load(sys.stdin):
        if "structural_tag" in outputs:
            grammar = xgrammar.Grammar.from_structural_tag(outputs["structural_tag"])
        else:
            grammar = xgrammar.Grammar.from_json_schema(outputs.get("json", '{"type": "object"}'))
        answers.append([bool(_is_grammar_accept_string(grammar, text)) for text in texts])
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
