"""What the pages point at exists."""

import re
from pathlib import Path

import pytest
import typer.main

from paceline.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BASES = (ROOT, ROOT / "runtime/paceline", ROOT / "agents")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|\.proto|/))`", page.read_text())
    files = [file for file in named if not file.startswith("build/")]  # made by commands, not in a fresh clone
    assert [file for file in files if not any((base / file).exists() for base in BASES)] == []


def test_make_targets_that_pages_name_exist() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"check", "demo"} <= named
    assert named - targets == set()


def test_commands_that_pages_name_exist() -> None:
    commands = typer.main.get_group(app).commands
    known = {name: set(getattr(command, "commands", ())) for name, command in commands.items()}
    pattern = re.compile(r"(?:`|^|/bin/)paceline ([a-z]+)(?: ([a-z][a-z-]*))?", re.MULTILINE)
    named = {match for page in PAGES for match in pattern.findall(page.read_text())}
    assert {("serve", ""), ("db", "upgrade")} <= named
    assert [(name, inner) for name, inner in named if name not in known] == []
    assert [(name, inner) for name, inner in named if known[name] and inner not in known[name]] == []
