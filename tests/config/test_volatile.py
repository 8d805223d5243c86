"""Rules for volatile blocks of system prompts."""

import re
import tomllib
from pathlib import Path

import pytest

from paceline import config
from paceline.errors import ConfigError


def test_the_example_of_the_page_is_valid() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/transcript.md"
    (example,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    made = config.parse(tomllib.loads(example), "transcript.md")
    assert [rule.action for rule in made.volatile.values()] == ["remove", "move"]


@pytest.mark.parametrize(
    ("pattern", "problem"), [("(", "no regular expression"), (".*", "empty line"), ("", "empty line")]
)
def test_a_pattern_must_be_usable(pattern: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"volatile\.x\.pattern: .*{problem}"):
        config.parse({"volatile": {"x": {"pattern": pattern}}}, "test")
