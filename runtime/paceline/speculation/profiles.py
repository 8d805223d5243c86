"""Speculation profiles in vLLM's form, and what the emulator does of them."""

from __future__ import annotations

from typing import Any

from paceline import config
from paceline.errors import ConfigError

SUFFIX_SETTINGS = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)
EMULATED_METHODS: tuple[config.SpeculationMethod, ...] = ("ngram", "draft_model")


def speculative_config(profile: config.Speculation) -> dict[str, Any] | None:
    """The value of vLLM's `--speculative-config`; None for no speculation.

    The drafter must be what an engine can load, no catalog name. What the profile leaves empty is left to vLLM,
    except the lengths of ngram, whose defaults differ from vLLM's.
    """
    if profile.method == "none":
        return None
    values: dict[str, Any] = {
        "method": profile.method,
        "num_speculative_tokens": profile.num_speculative_tokens,
    }
    if profile.drafter:
        values["model"] = profile.drafter
    if profile.use_heterogeneous_vocab:
        values["use_heterogeneous_vocab"] = True
    if profile.method == "ngram":
        values["prompt_lookup_min"], values["prompt_lookup_max"] = profile.lookup
    for name in SUFFIX_SETTINGS:
        if (value := getattr(profile, name)) is not None:
            values[name] = value
    return values


def unsupported(profile: config.Speculation, platform: str) -> str:
    """Why the emulator cannot run the profile; empty for other platforms, which have rules (`paceline.rules`)."""
    if platform != "emulated" or profile.method in ("none", *EMULATED_METHODS):
        return ""
    return (
        f"emulated does not run method {profile.method}: the emulator runs no model and imitates these methods "
        f"only ({' and '.join(EMULATED_METHODS)})"
    )


def require_supported(profile: config.Speculation, platform: str) -> None:
    """Raise `ConfigError` for a profile that the emulator cannot run."""
    if reason := unsupported(profile, platform):
        raise ConfigError(
            f"speculation: {reason}; set `method` to one of these, or leave the engine's `speculation` empty",
            field="method",
        )
