"""`paceline models check`."""

import re
from pathlib import Path

from typer.testing import CliRunner

from paceline.cli import models

runner = CliRunner()
NUMBERED = (
    "{% for message in messages %}<|im_start|>{{ loop.revindex }}{{ message.content }}<|im_end|>\n{% endfor %}"
)


def test_each_probe_has_its_verdict() -> None:
    result = runner.invoke(models.app, ["check", "emulated"])
    assert result.exit_code == 0
    assert "family qwen3; an answer ends with <|im_end|>, <|endoftext|>" in result.stdout
    assert "equal    results of parallel calls\n" in result.stdout
    assert result.stdout.endswith("Conversations are continued by appending.\n")


def test_a_template_that_cannot_be_continued_fails_with_reason_and_remedy(tmp_path: Path) -> None:
    template = tmp_path / "numbered.jinja"
    template.write_text(NUMBERED)
    result = runner.invoke(models.app, ["check", "emulated", "--template", str(template)])
    assert result.exit_code == 1
    reason, remedy = "earlier messages change when new ones follow", "remedy: set `template`"
    assert re.search(rf"unsafe   a user goes on\n +{reason}\n +{remedy}", result.stdout)
    assert "every step will be rendered in full" in result.stderr


def test_arguments_reach_the_template(tmp_path: Path) -> None:
    template = tmp_path / "asks.jinja"
    template.write_text("{{ raise_exception('no tone') if not tone is defined }}" + NUMBERED)
    without = runner.invoke(models.app, ["check", "emulated", "--template", str(template)])
    command = ["check", "emulated", "--template", str(template), "--template-arguments"]
    given = runner.invoke(models.app, [*command, '{"tone": 1}'])
    assert "no tone" in without.stdout
    assert "no tone" not in given.stdout
    for broken, problem in [("{", "not JSON"), ("[]", "must be a JSON object")]:
        refused = runner.invoke(models.app, [*command, broken])
        assert (refused.exit_code, problem in refused.stderr) == (1, True)
