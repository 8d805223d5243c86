"""Everything that is concluded from the cells with one number of steps at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.speculation.tune.drafts import Draft
from paceline.speculation.tune.points import Study, context_of, groups_of, kind_of
from paceline.speculation.tune.predict import (
    Prediction,
    StepTimes,
    drafts_in_passes,
    fit_times,
    forecaster,
    predict,
)
from paceline.speculation.tune.recommend import Recommendation, recommend


@dataclass(frozen=True, slots=True)
class Analysis:
    """A study, or a part of one, with what follows from it."""

    study: Study
    times: Mapping[str, StepTimes]
    """By draft; those without a measured one are missing."""
    predictions: Mapping[str, Mapping[int, Prediction]]
    """By draft and K."""
    recommendation: Recommendation | None
    """None while off or every draft is missing."""
    by_class: Mapping[str, Analysis] = field(default_factory=dict)
    by_context: Mapping[str, Analysis] = field(default_factory=dict)


def analyse(study: Study, drafts: Sequence[Draft], *, emulated: bool) -> Analysis:
    """Predict, recommend, and do the same for each class of steps and each length of prompts."""
    times = {
        draft.name: fit_times(
            study.off,
            study.of(draft.name),
            passes=drafts_in_passes(draft.profile.method, emulated=emulated),
        )
        for draft in drafts
    }
    known = {name: found for name, found in times.items() if found}
    by_class, by_context = (
        {name: _conclude(part, drafts, known, emulated) for name, part in groups_of(study, group).items()}
        for group in (kind_of, context_of)
    )
    whole = _conclude(study, drafts, known, emulated)
    return Analysis(study, known, whole.predictions, whole.recommendation, by_class, by_context)


def _conclude(study: Study, drafts: Sequence[Draft], times: Mapping[str, StepTimes], emulated: bool) -> Analysis:
    """The times of a step are those of all classes: they depend on K, not on the text."""
    predictions = {
        draft.name: predict(
            study, draft.name, times.get(draft.name), forecaster(draft.profile.method, emulated=emulated)
        )
        for draft in drafts
    }
    return Analysis(study, times, predictions, recommend(study, predictions))
