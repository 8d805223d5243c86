"""Pools of one model at work: which replicas a step should run on, and what its end teaches."""

from __future__ import annotations

from dataclasses import replace

from paceline.routing.admission import Waiter
from paceline.routing.placement import ReplicaPhase
from paceline.routing.pools import Ask, PoolChoice, PoolReason, Pools
from paceline.routing.speeds import Measured
from paceline.workflow.model import StepState, UsageSource, Workflow
from paceline.workflow.ports import AttemptEnd, StepReport
from paceline.workflow.prompts import Prompt
from paceline.workflow.replicas import Replica, Replicas


class PoolRouter:
    """Asks `routing/pools.py` for each step, and tells it of each end as an `Observer` of steps."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._pools = Pools()

    def choose(
        self, workflow: Workflow, prompt: Prompt, *, sampled: bool, enforced: bool
    ) -> tuple[Waiter, PoolChoice]:
        """What to ask of admission for a step, and why. A sampled step never goes to a replica that must not
        sample, nor one with an enforced form to a replica without structured outputs, unless the model has no
        other."""
        serving = self._replicas.serving(workflow.model)
        barred = _barred(serving, sampled=sampled, enforced=enforced)
        fitting = [replica for replica in serving if replica.name not in barred]
        bound = next((replica for replica in fitting if replica.name == workflow.replica), None)
        pools = dict.fromkeys((replica.speculation_profile for replica in fitting), False)
        for replica in fitting:
            stays = replica is bound and replica.load.phase is ReplicaPhase.READY
            pools[replica.speculation_profile] |= replica.load.free or stays
        if not self._several(workflow.model):
            only = PoolChoice(next(iter(pools), ""), PoolReason.ONLY_POOL)
            return Waiter(workflow.tenant, workflow.model, workflow.replica, barred=barred), only
        route = self._pools.choose(
            Ask(
                model=workflow.model,
                workflow=_key(workflow.tenant, workflow.workflow_id),
                prompt_tokens=prompt.context.tokens,
                carried_tokens=prompt.carried,
                pools=pools,
                bound=bound.name if bound else None,
                bound_profile=bound.speculation_profile if bound else None,
                forked_from=_origin(workflow, prompt),
            )
        )
        chosen = route.choice.profile
        preferred = frozenset(replica.name for replica in fitting if replica.speculation_profile == chosen)
        return Waiter(workflow.tenant, workflow.model, route.replica, preferred, barred), route.choice

    def step_ended(self, report: StepReport) -> None:
        """Learn from a finished attempt."""
        end = report.end
        if end.state is StepState.FINISHED and self._several(report.model):
            key = _key(report.tenant, report.workflow_id)
            self._pools.learn(report.model, key, end.speculation.profile, _measured(report.prompt_tokens, end))

    def workflow_ended(self, workflow: Workflow) -> None:
        """Learn how long workflows go on."""
        self._pools.end(workflow.model, _key(workflow.tenant, workflow.workflow_id))

    def _several(self, model: str) -> bool:
        return len({replica.speculation_profile for replica in self._replicas.serving(model)}) > 1


def settled(choice: PoolChoice, replica: Replica) -> PoolChoice:
    """The choice as it came out: a step that could not be placed in its pool took a free place elsewhere."""
    profile = replica.speculation_profile
    return choice if choice.profile == profile else replace(choice, profile=profile, reason=PoolReason.NO_PLACE)


def _key(tenant: str, workflow_id: str) -> str:
    return f"{tenant}/{workflow_id}"


def _origin(workflow: Workflow, prompt: Prompt) -> str:
    """The workflow that the prompt's prefix comes from, where that is another one."""
    parent = prompt.parent
    if parent is None or parent.workflow_id == workflow.workflow_id:
        return ""
    return _key(workflow.tenant, parent.workflow_id)


def _barred(serving: list[Replica], *, sampled: bool, enforced: bool) -> frozenset[str]:
    barred = frozenset(
        replica.name
        for replica in serving
        if (sampled and replica.greedy_only) or (enforced and replica.info and not replica.enforces)
    )
    return barred if len(barred) < len(serving) else frozenset()


def _measured(prompt_tokens: int, end: AttemptEnd) -> Measured:
    output = end.usage.output or 0
    reported = end.usage.prompt_source is UsageSource.ENGINE
    return Measured(
        replica=end.replica,
        context_tokens=prompt_tokens + output,
        uncached_tokens=end.usage.uncached_prompt if reported else None,
        first_token_seconds=end.timings.first_token,
        output_tokens=output,
        accepted_tokens=end.speculation.accepted,
        decode_seconds=end.timings.decode,
    )
