"""`docs/emulator.md` and `docs/trainium.md` name what there is."""

import re
import shlex
from pathlib import Path
from typing import get_args

from paceline.emulator.__main__ import make_parser, to_settings
from paceline.emulator.faults import Fault
from paceline.emulator.neuron_times import table
from paceline.emulator.replies import NOTICE, read_script

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "emulator.md").read_text()
TRAINIUM = (DOCS / "trainium.md").read_text()


def test_each_flag_is_named() -> None:
    flags = re.findall(r"--[a-z-]+", make_parser().format_help())
    table = PAGE.partition("| flag |")[2].partition("## Its model")[0]
    assert set(re.findall(r"`(--[a-z-]+)`", table)) == set(flags) - {"--help"}


def test_each_fault_is_named() -> None:
    kinds = get_args(Fault.model_fields["kind"].annotation)
    assert tuple(re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Faults")[2], re.MULTILINE)) == kinds


def test_the_script_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    script = tmp_path / "script.json"
    script.write_text(text)
    assert [rule.times for rule in read_script(script)] == [1, None, None]
    assert NOTICE in PAGE


def test_each_time_of_the_emulated_device_is_told_with_its_source() -> None:
    section = TRAINIUM.partition("## The emulated device")[2].partition("\n## ")[0]
    for model, row in table()["models"].items():
        for figure in row.values():
            end = re.escape(f"| {figure['how']} | {', '.join(figure['source'])} |")
            assert re.search(rf"^\| `{re.escape(model)}` \| .* {end}$", section, re.MULTILINE), figure["how"]
    for name, source in table()["sources"].items():
        assert f"- {name}: {'by this project' if name == 'assumed' else source}\n" in section


def test_the_command_of_the_emulated_device_starts() -> None:
    section = TRAINIUM.partition("## The emulated device")[2]
    (command,) = re.findall(r"python -m paceline\.emulator (.*?)```", section.partition("\n## ")[0], re.DOTALL)
    options = make_parser().parse_args(shlex.split(command.replace("\\\n", " ")))
    settings = to_settings(options)
    assert settings.neuron is not None
    assert len(settings.neuron.graphs(drafting=True)) == 10
