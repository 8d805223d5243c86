"""Can this drafter draft for this target, under this profile, on this platform? What vLLM does not ask.

Each rule is a small function that yields findings; a rule that does not apply yields nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline import config
from paceline.errors import ModelError
from paceline.models.catalog import EMULATED, resolve_model
from paceline.rules.case import Case
from paceline.rules.check import findings, require
from paceline.speculation.finding import Finding, Level, PairRule, Rule, Subject
from paceline.speculation.modelfiles import ModelFiles, open_model
from paceline.speculation.rules import method, model, tokenizer, weights

PLATFORMS = ("cpu", "cuda", "neuron", "emulated")
RULES: tuple[Rule, ...] = (
    method.platform,
    method.hybrid,
    method.draft_length,
    method.caching,
    method.sampling,
)
PAIR_RULES: tuple[PairRule, ...] = (
    model.kind,
    model.family,
    tokenizer.token_maps,
    tokenizer.common_vocabulary,
    tokenizer.special_ids,
    tokenizer.chat_template,
    weights.vocabulary_sizes,
    weights.embedding_rows,
    weights.hidden_size,
    weights.drafter_size,
    model.lengths,
    model.quantization,
)


def check(subject: Subject) -> list[Finding]:
    """Apply every rule; nothing is said where there is no speculation. Raises `ModelError` for broken files."""
    if subject.profile.method == "none":
        return []
    found = [finding for rule in RULES for finding in rule(subject)]
    if subject.drafter is not None:
        found += [finding for rule in PAIR_RULES for finding in rule(subject, subject.drafter)]
    return found


def verdict(found: Sequence[Finding]) -> Level:
    """The worst level."""
    levels = {finding.level for finding in found}
    return "refused" if "refused" in levels else "warning" if "warning" in levels else "ok"


def open_subject(
    profile: config.Speculation,
    target: str,
    *,
    platform: str = "",
    max_model_len: int | None = None,
    engine: config.Engine | None = None,
    offline: bool,
) -> Subject:
    """Find the files of a pair; from the hub, unless `offline`, their small files are fetched.

    `target` and the profile's drafter are folders, hub ids or catalog names. Blocks. Raises `ModelError`.
    """
    drafter = _open(profile.drafter, offline) if profile.drafter else None
    return Subject(profile, _open(target, offline), drafter, platform, max_model_len, engine)


def check_engine(engine: config.Engine, profile: config.Speculation | None, target: str) -> list[Finding]:
    """What to know before the engine starts. Only local files are read; blocks for a second with large tokenizers.

    The platform's rules come first, those that ask for no files. Raises `ConfigError` with every refusal,
    `ModelError` where files are missing or broken.
    """
    if engine.platform == EMULATED:
        return check_platform(engine, profile) if engine.neuron else []
    if target == EMULATED:
        return []
    check_platform(engine, profile)
    drafting = _drafting(profile)
    if drafting is None:
        target_files = _open(target, offline=True) if engine.platform == "neuron" else None
        return require(findings(Case(engine.platform, engine, None, target_files)), "platform")
    subject = open_subject(
        drafting,
        target,
        platform=engine.platform,
        max_model_len=engine.max_model_len,
        engine=engine,
        offline=True,
    )
    return require(check(subject), "speculation")


def check_platform(engine: config.Engine, profile: config.Speculation | None) -> list[Finding]:
    """The warnings of the rules that ask for no model files. Raises `ConfigError` with every refusal."""
    platform = "neuron" if engine.neuron else engine.platform
    return require(findings(Case(platform, engine, _drafting(profile))), "platform")


def _drafting(profile: config.Speculation | None) -> config.Speculation | None:
    return profile if profile and profile.method != "none" else None


def _open(name: str, offline: bool) -> ModelFiles:
    path = resolve_model(name)
    if path == EMULATED:
        raise ModelError("emulated: is built in and has no files to check; name a real model", model=name)
    return open_model(path, offline=offline)
