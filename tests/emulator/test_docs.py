"""`docs/emulator.md` names what there is."""

import re
from pathlib import Path
from typing import get_args

from paceline.emulator.__main__ import make_parser
from paceline.emulator.faults import Fault
from paceline.emulator.replies import NOTICE, read_script

PAGE = (Path(__file__).resolve().parents[2] / "docs/emulator.md").read_text()


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
