"""Can this drafter draft for this target, under this profile, on this platform? What vLLM does not ask.

Each rule is a small function that yields findings; a rule that does not apply yields nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline import config
from paceline.errors import ConfigError, ModelError
from paceline.models.catalog import EMULATED, resolve_model
from paceline.speculation.finding import Finding, Level, PairRule, Rule, Subject
from paceline.speculation.modelfiles import ModelFiles, open_model
from paceline.speculation.profiles import METHODS_OF_PLATFORMS
from paceline.speculation.rules import method, model, tokenizer, weights

PLATFORMS = tuple(METHODS_OF_PLATFORMS)
RULES: tuple[Rule, ...] = (
    method.platform,
    method.runner,
    method.neuron,
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
    findings = [finding for rule in RULES for finding in rule(subject)]
    if subject.drafter is not None:
        findings += [finding for rule in PAIR_RULES for finding in rule(subject, subject.drafter)]
    return findings


def verdict(findings: Sequence[Finding]) -> Level:
    """The worst level."""
    levels = {finding.level for finding in findings}
    return "refused" if "refused" in levels else "warning" if "warning" in levels else "ok"


def open_subject(
    profile: config.Speculation,
    target: str,
    *,
    platform: str = "",
    max_model_len: int | None = None,
    offline: bool,
) -> Subject:
    """Find the files of a pair; from the hub, unless `offline`, their small files are fetched.

    `target` and the profile's drafter are folders, hub ids or catalog names. Blocks. Raises `ModelError`.
    """
    drafter = _open(profile.drafter, offline) if profile.drafter else None
    return Subject(profile, _open(target, offline), drafter, platform, max_model_len)


def check_engine(engine: config.Engine, profile: config.Speculation | None, target: str) -> list[Finding]:
    """What to know before the engine starts. Only local files are read; blocks for a second with large tokenizers.

    Raises `ConfigError` with every refusal, `ModelError` where files are missing or broken.
    """
    if profile is None or profile.method == "none" or EMULATED in (engine.platform, target):
        return []
    subject = open_subject(
        profile, target, platform=engine.platform, max_model_len=engine.max_model_len, offline=True
    )
    findings = check(subject)
    if refusals := [finding for finding in findings if finding.level == "refused"]:
        reasons = "; ".join(f"{item.rule}: {item.statement} ({item.remedy})" for item in refusals)
        raise ConfigError(f"speculation: refused: {reasons}", field="speculation")
    return [finding for finding in findings if finding.level == "warning"]


def _open(name: str, offline: bool) -> ModelFiles:
    path = resolve_model(name)
    if path == EMULATED:
        raise ModelError("emulated: is built in and has no files to check; name a real model", model=name)
    return open_model(path, offline=offline)
