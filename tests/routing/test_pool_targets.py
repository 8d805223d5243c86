"""The choice of a pool against the better single pool and against hindsight, on public acceptance curves.

Virtual time: the emulator's model of time, workflows and draws that are the same every run.
"""

import pytest
from benchmarks._pools import (
    DRAFTING,
    PLAIN,
    Scenario,
    always,
    curves_file,
    hindsight,
    make_workflows,
    paceline,
    read_curves,
)
from benchmarks.pools import SCENARIOS

from paceline.emulator.settings import Timing

pytestmark = [pytest.mark.data, pytest.mark.slow]

WORKFLOWS, SEED = 400, 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_never_much_worse_than_the_better_pool_nor_than_hindsight(scenario: Scenario) -> None:
    timing, ahead = scenario.timing(Timing()), scenario.tokens_ahead
    workflows = make_workflows(scenario, read_curves(curves_file()), WORKFLOWS, SEED)
    better = min(always(pool, workflows, timing, ahead) for pool in (PLAIN, DRAFTING))
    best = hindsight(workflows, timing, ahead)
    seconds = paceline(workflows, timing, ahead).seconds
    assert best <= better
    assert best <= seconds <= 1.03 * better
    assert seconds <= 1.05 * best
