"""Everything that is fuzzed, in tests and by `make proof-fuzz`."""

from __future__ import annotations

from tests.fuzz import answers, long_answers, prompts, requests, resends, whole_calls
from tests.fuzz.target import Target, checked_by

TARGETS = (
    *(
        Target(f"answers of {reader.name}", answers.cases(reader), checked_by(answers.checker(reader)), 780)
        for reader in answers.READERS
    ),
    Target("whole calls", whole_calls.whole_calls(), checked_by(whole_calls.check_calls), 630),
    Target("long answers", long_answers.longs, checked_by(long_answers.check_long), 20),
    Target("conversations sent again", resends.resends(), checked_by(resends.check_resend), 600),
    Target("edited conversations", resends.edits(), checked_by(resends.check_edit), 600),
    Target("prompts of conversations", prompts.talks, prompts.opened, 430),
    Target("requests", requests.cases, requests.checked, 700),
)
