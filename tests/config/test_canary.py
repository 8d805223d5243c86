"""Which canaries a configuration may ask for."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paceline import config, config_references
from paceline.errors import ConfigError

PROFILES = {"n": {"method": "ngram"}, "off": {"method": "none"}}


def test_the_example_of_the_page_is_valid() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/speculation.md"
    profiles, canary, *_ = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    values = tomllib.loads(f"{profiles}\n{canary}")
    model = values["engines"]["plain"]["model"]
    made = config.parse(values | {"models": {model: {"path": model}}}, "speculation.md")
    assert config_references.plain_engines(made, model) == {"plain"}
    assert made.canary[model].share > 0


def settings(canary: Any, **engines: dict[str, Any]) -> config.Settings:
    common = {"model": "m", "platform": "emulated"}
    return config.parse(
        {
            "models": {"m": {"path": "emulated"}, "other": {"path": "emulated"}},
            "engines": {name: common | fields for name, fields in engines.items()},
            "speculation": PROFILES,
            "canary": canary,
        },
        "test",
    )


def test_a_plain_engine_has_no_profile_or_one_that_does_not_draft() -> None:
    made = settings(
        {"m": {"share": 0.5}},
        fast={"speculation": "n"},
        bare={},
        off={"speculation": "off"},
        hidden={"extra_args": ["--speculative-config={}"]},
        short={"extra_args": ["-sc", "{}"]},
        single={"extra_args": ["--spec-method", "ngram", "--spec-tokens=4"]},
        foreign={"model": "other"},
    )
    assert config_references.plain_engines(made, "m") == {"bare", "off"}
    assert config_references.drafting_profiles(made) == {"n"}


@pytest.mark.parametrize(
    ("canary", "engines", "part"),
    [
        ({"x": {}}, {}, "canary.x: no [models.x]; known: m, other"),
        ({"m": {"share": 1}}, {"a": {}}, "canary.m.share: no engine of m has a profile that drafts"),
        (
            {"m": {"share": 0.01}},
            {"a": {"speculation": "n"}, "b": {"speculation": "n"}, "c": {"model": "other"}},
            "canary.m.share: every engine of m drafts (a, b), so there is none to compare with; add an",
        ),
        ({"m": {"share": 1.1}}, {}, "canary.m.share: Input should be less than or equal to 1"),
        ({"m": {"share": 1, "max_output_tokens": 0}}, {}, "canary.m.max_output_tokens: Input should be greater"),
        ({"m": {"near_tie_logprob": -1}}, {}, "canary.m.near_tie_logprob: Input should be greater"),
        ({"m": {"shares": 1}}, {}, "canary.m.shares: no such setting"),
    ],
)
def test_what_cannot_be_compared_is_refused(canary: Any, engines: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(canary, **engines)
    assert part in caught.value.message


def test_a_share_of_nothing_needs_nothing() -> None:
    assert settings({"m": {"share": 0}}, a={"speculation": "n"}).canary["m"].max_output_tokens == 256
