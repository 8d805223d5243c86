"""Is the drafter the kind of model that the method wants, of the target's family, and long enough?"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.speculation.finding import Finding, Subject, ok, refused, warning
from paceline.speculation.modelfiles import ModelFiles

HEAD_MARKS = ("eagle", "dflash", "dspark", "medusa", "speculator")
"""What the classes or types of trained heads have in their names."""
HEAD_KEYS = ("draft_vocab_size", "dflash_config", "eagle_config", "speculators_model_type")


def kind(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """`draft_model` wants a whole model; `eagle3` and `dflash` want a head trained for the target."""
    if subject.profile.method == "mtp":
        return
    rule, method, marks = "drafter.kind", subject.profile.method, head_marks(drafter)
    if not drafter.config:
        yield warning(
            rule, f"{drafter.name} has no config.json, so its kind is not known", "add the model's config.json"
        )
    elif method == "draft_model" and marks:
        yield refused(
            rule,
            f"{drafter.name} is a trained head ({', '.join(marks)}), no whole model",
            "set `method` to eagle3 or dflash, whichever the head is",
        )
    elif method != "draft_model" and not marks:
        yield refused(
            rule,
            f"{drafter.name} has no sign of a trained head in its config.json",
            'name the head that was trained for the target, or set `method = "draft_model"`',
        )
    elif method != "draft_model" and not any(method.rstrip("3") in mark for mark in marks):
        yield warning(rule, f"{drafter.name} does not say that it is for {method}", "check its model card")
    else:
        yield ok(
            rule, f"{drafter.name} is {'a whole model' if method == 'draft_model' else f'a head for {method}'}"
        )


def head_marks(model: ModelFiles) -> list[str]:
    """What in the configuration says that this is no whole model."""
    names = [
        *model.architectures,
        str(model.config.get("model_type")),
        str(model.config.get("speculators_model_type")),
    ]
    marked = [name.lower() for name in names if any(mark in name.lower() for mark in HEAD_MARKS)]
    return [*dict.fromkeys(marked), *(key for key in HEAD_KEYS if model.config.get(key))]


def family(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """Models of one family were trained on the same texts and guess each other best."""
    ours, theirs = subject.target.family, drafter.family
    if subject.profile.method != "draft_model" or not (ours and theirs):
        return
    if ours == theirs:
        yield ok("architecture.family", f"both are {ours}")
    else:
        yield warning(
            "architecture.family",
            f"the target is {ours}, the drafter {theirs}",
            "prefer a drafter of the target's family; measure the acceptance",
        )


def lengths(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """Beyond its longest context a drafter drafts nothing, for the whole batch. vLLM stretches eagle3 heads."""
    context, longest = subject.context, drafter.max_length
    if subject.profile.method not in ("draft_model", "dflash") or context is None or longest is None:
        return
    if longest < context:
        yield warning(
            "length",
            f"the drafter ends at {longest} tokens, the engine at {context}: a longer step stops all drafts",
            f"set the engine's `max_model_len` to {longest}, or take a drafter with a longer context",
        )
    else:
        yield ok("length", f"the drafter reaches {longest} tokens, the engine {context}")


def quantization(subject: Subject, drafter: ModelFiles) -> Iterator[Finding]:
    """A quantised drafter needs its own kernels on the platform, and guesses a little worse."""
    ours, theirs = subject.target.quantization, drafter.quantization
    if theirs and theirs != ours:
        yield warning(
            "quantization",
            f"the drafter is quantised ({theirs}), the target {f'({ours})' if ours else 'is not'}",
            "make sure that the platform has fast kernels for it; compare with the plain drafter",
        )
    else:
        yield ok("quantization", f"both quantised ({ours})" if theirs else "the drafter is not quantised")
