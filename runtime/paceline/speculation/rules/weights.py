"""Do the sizes in the configurations and in the weights fit the tokenizers and each other?"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.speculation.finding import Finding, Subject, ok, refused, warning
from paceline.speculation.modelfiles import ModelFiles

HEADS = ("eagle3", "dflash")
HALF = 0.5


def vocabulary_sizes(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """`vocab_size` of both configurations; vLLM does not start a draft model of another size."""
    if subject.profile.use_heterogeneous_vocab or subject.profile.method == "mtp":
        return
    rule, ours, theirs = "config.vocab_size", subject.target.vocab_size, drafter.vocab_size
    if ours is None or theirs is None:
        name = subject.target.name if ours is None else drafter.name
        yield warning(
            rule, f"{name} has no vocab_size in config.json", "add the model's config.json to its folder"
        )
    elif ours != theirs:
        yield refused(
            rule,
            f"vocab_size {ours} / {theirs}: vLLM does not start this pair",
            "take a drafter of the same size, or set `use_heterogeneous_vocab = true` with a draft model",
        )
    else:
        yield ok(rule, f"both have vocab_size {ours}")


def embedding_rows(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """Each embedding has as many rows as its configuration says, and one for every id of its tokenizer."""
    if subject.profile.method != "draft_model":
        return
    rule = "weights.embedding_rows"
    for model in (subject.target, drafter):
        rows = model.embedding_rows
        if rows is None:
            yield warning(
                rule,
                f"{model.name}: no safetensors weights with an embedding here, so its rows were not read",
                "fetch the model into a folder and name that",
            )
        elif wrong := _wrong_rows(model, rows):
            yield refused(
                rule, f"{model.name}: {wrong}", "fetch the model again; its files do not belong together"
            )
        else:
            yield ok(rule, f"{model.name}: {rows} rows")


def _wrong_rows(model: ModelFiles, rows: int) -> str:
    """Why the rows cannot be right; empty when they can. Rows without a token are usual padding."""
    if model.vocab_size is not None and rows != model.vocab_size:
        return f"{rows} rows, but vocab_size {model.vocab_size} in config.json"
    if model.head_rows is not None and model.head_rows != rows:
        return f"{rows} rows, but an output head of {model.head_rows}"
    if model.tokens is not None and model.tokens.highest_id >= rows:
        return f"{rows} rows, but its tokenizer has id {model.tokens.highest_id}"
    return ""


def drafter_size(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """A draft costs about as much as its weights: a drafter must be much smaller than what it drafts for."""
    if subject.profile.method != "draft_model":
        return
    target = subject.target
    if target.folder.resolve() == drafter.folder.resolve():
        yield refused(
            "pair.size",
            "the drafter is the target itself: each draft costs a whole step",
            "take a smaller model of the family, or method ngram, which needs none",
        )
        return
    if target.weights is None or drafter.weights is None:
        return
    share = drafter.weights.size_bytes / target.weights.size_bytes
    text = f"the drafter's weights are {share:.0%} of the target's"
    if share >= 1:
        yield refused("pair.size", f"{text}: it cannot be faster", "exchange the two, or take a smaller drafter")
    elif share > HALF:
        yield warning("pair.size", f"{text}: little can be won", "take a smaller drafter, or measure before use")
    else:
        yield ok("pair.size", text)


def hidden_size(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """A trained head reads the target's hidden states: their width is built into it."""
    if subject.profile.method not in HEADS:
        return
    wanted = drafter.text.get("target_hidden_size") or drafter.hidden_size
    if wanted is None or subject.target.hidden_size is None:
        return
    if wanted != subject.target.hidden_size:
        yield refused(
            "head.hidden_size",
            f"the head reads hidden states of {wanted}, the target has {subject.target.hidden_size}",
            "take the head that was trained for this target",
        )
    else:
        yield ok("head.hidden_size", f"both have hidden states of {wanted}")
