"""The settings and sums in the pages are right."""

import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from paceline import config, platforms
from paceline.emulator.__main__ import make_parser, to_settings
from paceline.ledger.prices import PriceBook
from paceline.speculation import checks
from paceline.workflow.model import Usage

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(page: str, **more: Any) -> config.Settings:
    """The first TOML block of a page, completed to a whole configuration."""
    found = re.search(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found
    return config.parse(tomllib.loads(found.group(1), parse_float=Decimal) | more, page)


def test_the_profiles_of_the_speculation_page_are_valid() -> None:
    settings = example("speculation.md", models={"qwen2.5-coder-1.5b": {"path": "qwen2.5-coder-1.5b"}})
    assert {profile.method for profile in settings.speculation.values()} == {"ngram", "draft_model"}
    assert settings.engines["cpu"].speculation in settings.speculation


def test_the_engine_of_the_trainium_page_keeps_the_rules() -> None:
    settings = example("trainium.md")
    engine = settings.engines["trn"]
    assert checks.check_platform(engine, settings.speculation[engine.speculation]) == []
    assert platforms.greedy_only(engine, None)


def test_the_engine_of_the_trainium_page_can_be_emulated() -> None:
    settings = example("trainium.md")
    here = settings.engines["trn"].model_copy(update={"platform": "emulated", "python": ""})
    profile = settings.speculation[here.speculation]
    assert checks.check_engine(here, profile, "emulated") == []
    command = platforms.plan(here, profile, "emulated", Path("python"), 8000).command
    emulated = to_settings(make_parser().parse_args(command[3:]))
    assert emulated.neuron is not None
    assert (emulated.spec_method, emulated.spec_tokens) == ("eagle3", 3)


def test_the_sums_of_the_cost_page_are_those_of_the_price_book() -> None:
    text = (DOCS / "costs.md").read_text()
    book = PriceBook.from_settings(example("costs.md", models={"qwen2": {"path": "emulated"}}))
    cached = book.list_cost("qwen2", Usage(uncached_prompt=100, cached_prompt=900, output=50)).list_nanos
    uncached = book.list_cost("qwen2", Usage(uncached_prompt=1000, output=50)).list_nanos
    share = book.infrastructure_cost("small", 5.0).infrastructure_nanos
    assert f"= {cached:,}\nnano-USD" in text
    assert f"it would be {uncached:,} nano-USD" in text
    assert f"that is {share:,}\nnano-USD each" in text
