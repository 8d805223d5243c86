"""Do target and drafter mean the same token by the same id? vLLM compares the numbers of tokens only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.speculation.finding import Finding, Subject, ok, refused, warning
from paceline.speculation.modelfiles import ModelFiles
from paceline.speculation.tokenmap import PROBES, Difference, TokenMap, conflicts, missing

SHOWN = 3
FAMILY_REMEDY = (
    "take a drafter of the target's family, or set `use_heterogeneous_vocab = true` to draft only common tokens"
)
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
FEW_COMMON = 0.5
"""Share of the target's tokens below which a common vocabulary is called small."""


def token_maps(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """Every id stands for the same token on both sides, added and special tokens included."""
    if subject.profile.method != "draft_model" or subject.profile.use_heterogeneous_vocab:
        return
    ours, theirs = subject.target.tokens, drafter.tokens
    if ours is None or theirs is None:
        yield _not_comparable(subject.target if ours is None else drafter)
        return
    added = ours.added.keys() | theirs.added.keys()
    plain = [item for item in conflicts(ours.tokens, theirs.tokens) if item.token_id not in added]
    yield from _vocabulary(ours, theirs, added, plain)
    yield from _added(subject, ours, theirs, added)
    if not plain:
        yield from _encoding(ours, theirs)


def _not_comparable(model: ModelFiles) -> Finding:
    if model.partial:
        return warning(
            "tokenizer.files",
            f"the tokenizer.json of {model.name} is not on this machine, so nothing was compared",
            "run `paceline spec check` for the pair once, which fetches it",
        )
    return refused(
        "tokenizer.files",
        f"{model.name} has no tokenizer.json to compare",
        "add the model's tokenizer.json; without it nothing says that the ids mean the same",
    )


def _vocabulary(ours: TokenMap, theirs: TokenMap, added: set[int], plain: list[Difference]) -> Iterator[Finding]:
    lacking = [item for item in missing(ours.tokens, theirs.tokens) if item.token_id not in added]
    extra = [item for item in missing(theirs.tokens, ours.tokens) if item.token_id not in added]
    rule, total = "tokenizer.vocabulary", len(ours.tokens.keys() - added)
    if plain:
        yield refused(rule, f"{len(plain)} of {total} ids mean another token: {_first(plain)}", FAMILY_REMEDY)
    elif lacking or extra:
        yield refused(
            rule,
            f"the drafter lacks {len(lacking)} of {total} tokens and has {len(extra)} others: "
            f"{_first(lacking or extra)}",
            FAMILY_REMEDY,
        )
    else:
        yield ok(rule, f"{total} ids mean the same token")


def _added(subject: Subject, ours: TokenMap, theirs: TokenMap, added: set[int]) -> Iterator[Finding]:
    """What the drafter lacks is fed to it all the same; what it has beyond the target is never accepted."""
    rule = "tokenizer.added_tokens"
    ours_added = {key: token for key, token in ours.tokens.items() if key in added}
    theirs_added = {key: token for key, token in theirs.tokens.items() if key in added}
    other = conflicts(ours_added, theirs_added)
    lacking, extra = missing(ours_added, theirs_added), missing(theirs_added, ours_added)
    outside = [item for item in extra if item.token_id >= (subject.target.vocab_size or item.token_id + 1)]
    if other:
        yield refused(rule, f"{len(other)} added tokens differ: {_first(other)}", FAMILY_REMEDY)
    if lacking:
        yield refused(
            rule,
            f"the drafter never learned {len(lacking)} of the target's tokens: {_first(lacking)}",
            FAMILY_REMEDY,
        )
    if outside:
        yield refused(
            rule,
            f"the drafter can draft {len(outside)} ids beyond the target's vocabulary: {_first(outside)}",
            FAMILY_REMEDY,
        )
    elif extra:
        yield warning(
            rule,
            f"the drafter has {len(extra)} tokens more, of which no draft is accepted: {_first(extra)}",
            "prefer a drafter without them; measure the acceptance",
        )
    if not (other or lacking or extra):
        yield ok(rule, f"{len(added)} added tokens are the same, {len(ours.special)} special ones among them")


def _encoding(ours: TokenMap, theirs: TokenMap) -> Iterator[Finding]:
    """Text becomes ids by the target's rules; a drafter that learned other ids for the same text guesses badly."""
    rule, mine, other = "tokenizer.encoding", ours.definition(), theirs.definition()
    parts = [name for name in mine if mine[name] != other.get(name)]
    if not parts:
        yield ok(rule, "both cut text into tokens by the same rules")
        return
    named = ", ".join(parts)
    for probe in PROBES:
        if (left := ours.encode(probe)) != (right := theirs.encode(probe)):
            at = next((i for i, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 0)
            yield refused(
                rule,
                f"same vocabulary, other rules ({named}): the drafter learned {right[at : at + SHOWN]} where the "
                f"target has {left[at : at + SHOWN]}",
                FAMILY_REMEDY,
            )
            return
    yield warning(
        rule,
        f"{named}: written differently, with the same result on {len(PROBES)} test texts",
        "compare the two tokenizer.json; measure the acceptance",
    )


def special_ids(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """Both begin, end and pad by the same tokens. vLLM uses the target's only."""
    if subject.profile.method != "draft_model":
        return
    target = subject.target
    pairs = {name: (target.special(name), drafter.special(name)) for name in SPECIAL_TOKENS}
    pairs |= {name: (_end_ids(target, name), _end_ids(drafter, name)) for name in ("eos_token_id", "bos_token_id")}
    both = {name: pair for name, pair in pairs.items() if None not in pair}
    other = [f"{name} {ours} / {theirs}" for name, (ours, theirs) in both.items() if ours != theirs]
    if other:
        yield warning(
            "tokenizer.special_ids",
            f"target and drafter differ: {'; '.join(other)}",
            "a base model beside an instruct model ends its answers otherwise: take the same kind of model",
        )
    elif both:
        yield ok("tokenizer.special_ids", "beginning, end and padding are the same")


def common_vocabulary(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """Over mapped vocabularies only common tokens are drafted; on each side one stands for all others."""
    ours, theirs = subject.target.tokens, drafter.tokens
    if not subject.profile.use_heterogeneous_vocab or ours is None or theirs is None:
        return
    rule = "tokenizer.common_vocabulary"
    for model in (subject.target, drafter):
        if model.special("unk_token") is None and model.special("eos_token") is None:
            yield refused(
                rule,
                f"{model.name} has neither unk_token nor eos_token, one of which vLLM puts for unknown tokens",
                "complete its tokenizer_config.json, or take another drafter",
            )
    if ours.tokens == theirs.tokens:
        yield warning(
            rule,
            "both vocabularies are the same; mapping them costs time for nothing",
            "leave `use_heterogeneous_vocab` out",
        )
        return
    common = {_plain(token) for token in ours.ids} & {_plain(token) for token in theirs.ids}
    share = len(common) / len(ours.ids)
    text = f"{len(common)} of the target's {len(ours.ids)} tokens can be drafted ({share:.0%})"
    if share < FEW_COMMON:
        yield warning(rule, text, "expect a low acceptance; measure before use, or take a drafter of the family")
    else:
        yield ok(rule, text)


def chat_template(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """The drafter sees ids that the target's template made; its own is never used."""
    if subject.profile.method != "draft_model" or not (subject.target.template and drafter.template):
        return
    if subject.target.template == drafter.template:
        yield ok("template", "both chat templates are the same")
    else:
        yield warning(
            "template",
            "the chat templates differ; the drafter is shown the target's",
            "harmless where the difference is small; measure the acceptance",
        )


def _end_ids(model: ModelFiles, name: str) -> str | None:
    value = model.generation.get(name, model.text.get(name))
    return None if value is None else str(value)


def _plain(token: str) -> str:
    """A word's leading space as a space, whatever the tokenizer family writes for it; as vLLM maps them."""
    return f" {token[1:]}" if token[:1] in ("\u0120", "\u2581") else token


def _first(differences: Sequence[Difference]) -> str:
    more = f" and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return "; ".join(map(str, differences[:SHOWN])) + more
