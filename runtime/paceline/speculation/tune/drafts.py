"""What is compared: ways to draft, each with several K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec

from paceline import config
from paceline.errors import ConfigError


class Setting(msgspec.Struct, frozen=True):
    """One way to run the engine."""

    draft: str = ""
    """`Draft.name`; empty: no speculation."""
    k: int = 0
    """Tokens drafted per verification; 0: no speculation."""

    def __str__(self) -> str:
        return f"{self.draft}, K = {self.k}" if self.k else "no speculation"


OFF = Setting()


@dataclass(frozen=True, slots=True)
class Draft:
    """A way to draft, whatever its K."""

    profile: config.Speculation

    @property
    def name(self) -> str:
        """Everything that the profile says but K, so that two profiles of one name draft alike."""
        given = self.profile.model_dump(
            exclude_defaults=True, exclude={"method", "drafter", "num_speculative_tokens"}
        )
        rest = [name if value is True else f"{name}={value}" for name, value in given.items()]
        return " ".join(part for part in (self.profile.method, self.profile.drafter, *rest) if part)

    def at(self, k: int) -> config.Speculation:
        """The profile with this K."""
        return self.profile.model_copy(update={"num_speculative_tokens": k})


def parse(text: str) -> Draft:
    """`ngram`, `suffix` or `mtp`; a model, which drafts as `draft_model`; or METHOD:MODEL.

    Raises `ConfigError` for a method without the model that it needs.
    """
    method, _, drafter = text.partition(":")
    if method not in get_args(config.SpeculationMethod):
        method, drafter = "draft_model", text
    return from_values({"method": method, "drafter": drafter}, f"--drafter {text}")


def from_values(values: Mapping[str, str], origin: str) -> Draft:
    """Raises `ConfigError` for values that make no profile that drafts."""
    profile = config.parse({"speculation": {"draft": dict(values)}}, origin).speculation["draft"]
    return of_profile(profile, origin)


def of_profile(profile: config.Speculation, origin: str) -> Draft:
    """A profile of the configuration. Raises `ConfigError` for one that does not draft."""
    if profile.method == "none":
        raise ConfigError(f"{origin}: does not draft; no speculation is measured in any case")
    return Draft(profile)


def rounds(drafts: Sequence[Draft], ks: Sequence[int], repeats: int) -> list[tuple[Setting, int]]:
    """(setting, repeat) in the order of measuring.

    Rounds over all settings, every other one backwards, so that a drift of the machine meets all alike. The first
    begins with what every prediction needs: off, then for each draft the largest K and the smallest.
    """
    rest = sorted(set(ks))
    order = list(dict.fromkeys([rest[-1], rest[0], *rest]))
    first = [OFF, *(Setting(draft.name, k) for k in order for draft in drafts)]
    return [(one, repeat) for repeat in range(repeats) for one in (first[::-1] if repeat % 2 else first)]
