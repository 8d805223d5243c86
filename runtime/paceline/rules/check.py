"""Apply the platform's rules to a case."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import ConfigError
from paceline.rules import engines, heads, shapes
from paceline.rules.case import Case, Check
from paceline.rules.table import table
from paceline.speculation.finding import Finding, Level

CHECKS: dict[str, Check] = heads.CHECKS | shapes.CHECKS | engines.CHECKS


def findings(case: Case) -> list[Finding]:
    """What is wrong or doubtful, in the order of the table. Raises `ModelError` for broken model files."""
    found = []
    for rule in table().values():
        check = CHECKS.get(rule.id)
        if check is None or rule.platform != case.platform or not rule.holds_for(case.plugin):
            continue
        for values in check(rule, case):
            level: Level = "refused" if rule.severity == "refused" else "warning"
            found.append(Finding(rule.id, level, *rule.text(**values)))
    return found


def require(found: Sequence[Finding], field: str) -> list[Finding]:
    """The warnings. Raises `ConfigError` with every refusal, its rule and remedy."""
    if refusals := [finding for finding in found if finding.level == "refused"]:
        reasons = "; ".join(f"{item.rule}: {item.statement} ({item.remedy})" for item in refusals)
        raise ConfigError(f"{field}: refused: {reasons}", field=field)
    return [finding for finding in found if finding.level == "warning"]
