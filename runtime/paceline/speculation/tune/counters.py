"""The engine's own counters of speculation, from the text of its /metrics."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

import msgspec
from prometheus_client.parser import text_string_to_metric_families

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


class Counters(msgspec.Struct, frozen=True):
    """What speculation did. All 0 on a server that does not speculate."""

    drafts: int = 0
    """Steps that checked a draft."""
    drafted: int = 0
    accepted: int = 0
    per_position: tuple[int, ...] = ()
    """Drafts of which at least 1, 2, ... tokens were accepted."""

    def __add__(self, other: Counters) -> Counters:
        return self._with(other, 1)

    def __sub__(self, other: Counters) -> Counters:
        return self._with(other, -1)

    def _with(self, other: Counters, sign: int) -> Counters:
        positions = zip_longest(self.per_position, other.per_position, fillvalue=0)
        return Counters(
            self.drafts + sign * other.drafts,
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            tuple(mine + sign * its for mine, its in positions),
        )


def read_counters(text: str) -> Counters:
    """The counters of a scrape, those of all engine processes behind the server together."""
    totals: Counter[str] = Counter()
    positions: Counter[int] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == ACCEPTED_AT:
                positions[int(sample.labels["position"])] += int(sample.value)
            else:
                totals[sample.name] += int(sample.value) if sample.name in (DRAFTS, DRAFTED, ACCEPTED) else 0
    at = tuple(positions[place] for place in range(max(positions, default=-1) + 1))
    return Counters(totals[DRAFTS], totals[DRAFTED], totals[ACCEPTED], at)
