"""Spectrum-based fault localisation: lines that failing tests execute and passing tests do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline_agents.repair.suite import CaseResult


def suspicious_lines(results: Sequence[CaseResult], *, most: int = 3) -> list[int]:
    """The most suspicious line numbers by the Ochiai score, best first, ties in program order.

    Empty when the scores say nothing: no failing test, no trace, or more than `most` lines share the best score.
    """
    failing = [result.lines for result in results if not result.passed]
    passing = [result.lines for result in results if result.passed]
    lines = sorted(frozenset().union(*failing)) if failing else []
    scores = {line: _ochiai(line, failing, passing) for line in lines}
    if not scores or sum(score == max(scores.values()) for score in scores.values()) > most:
        return []
    return sorted(lines, key=lambda line: (-scores[line], line))[:most]


def _ochiai(line: int, failing: Sequence[frozenset[int]], passing: Sequence[frozenset[int]]) -> float:
    failed = sum(line in lines for lines in failing)
    passed = sum(line in lines for lines in passing)
    return failed / math.sqrt(len(failing) * (failed + passed))
