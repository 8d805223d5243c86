"""Conversion of counts, durations and money."""

from __future__ import annotations

from paceline.rpc.convert.values import EnumTable, duration
from paceline.v1 import usage_pb2 as pb
from paceline.workflow.model import Cost, Reuse, ReuseBreak, Speculation, Timings, Usage, UsageSource

USAGE_SOURCES = EnumTable(UsageSource, pb.UsageSource, "USAGE_SOURCE")
REUSE_BREAKS = EnumTable(ReuseBreak, pb.ReuseBreak, "REUSE_BREAK")


def usage_to_proto(usage: Usage) -> pb.Usage:
    """Convert token counts; None stays unset."""
    return pb.Usage(
        uncached_prompt_token_count=usage.uncached_prompt,
        cached_prompt_token_count=usage.cached_prompt,
        cache_write_token_count=usage.cache_writes,
        output_token_count=usage.output,
        reasoning_token_count=usage.reasoning,
        prompt_source=USAGE_SOURCES.to_proto(usage.prompt_source),
        output_source=USAGE_SOURCES.to_proto(usage.output_source),
    )


def speculation_to_proto(speculation: Speculation) -> pb.Speculation:
    """Convert speculation counts; None stays unset."""
    return pb.Speculation(
        profile=speculation.profile,
        drafted_token_count=speculation.drafted,
        accepted_draft_token_count=speculation.accepted,
        mean_acceptance_length=speculation.mean_acceptance_length,
        draft_step_count=speculation.draft_steps,
    )


def reuse_to_proto(reuse: Reuse) -> pb.Reuse:
    """Convert what was carried over."""
    return pb.Reuse(
        prompt_token_count=reuse.prompt_tokens,
        carried_token_count=reuse.carried_tokens,
        rendered_token_count=reuse.rendered_tokens,
        break_reason=REUSE_BREAKS.to_proto(reuse.break_reason),
        break_message_index=reuse.break_message,
        dropped_token_count=reuse.dropped_tokens,
        kept_reasoning_token_count=reuse.kept_reasoning_tokens,
        volatile_block_count=reuse.volatile_blocks,
    )


def timings_to_proto(timings: Timings) -> pb.Timings:
    """Convert durations; None stays unset."""
    return pb.Timings(
        queue=duration(timings.queue),
        first_token=duration(timings.first_token),
        decode=duration(timings.decode),
        total=duration(timings.total),
    )


def cost_to_proto(cost: Cost) -> pb.Cost:
    """Convert money; None stays unset."""
    return pb.Cost(
        list_cost_usd_nanos=cost.list_nanos,
        infrastructure_cost_usd_nanos=cost.infrastructure_nanos,
        price_name=cost.price_name,
        example_price=cost.example_price,
    )
